package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/pause"
)

const (
	pollWait    = 5 * time.Second // a node answers a poll after this time at the latest
	pollTimeout = pollWait + 2*time.Second
	measureTime = 2 * time.Second        // a node that takes longer for figures is asked again
	pollAgain   = 250 * time.Millisecond // after a poll that failed
	orderTime   = 10 * time.Minute       // a load may take this long
	maxBody     = 1 << 30

	epochHeader  = "Shoal-Epoch"
	tagHeader    = "If-None-Match"
	failedHeader = "Shoal-Load-Failed"
)

// refused is an answer other than 200 and 304.
type refused struct {
	status int
	text   string
	failed bool // a load that the node has tried
}

func (r refused) Error() string { return r.text }

// ask sends a request with one header, if that has a value, and returns the answer and its tag.
// The answer is nil if it has not changed since the one with the tag in the header.
func (c *Controller) ask(ctx context.Context, limit time.Duration, method, address, header, value string) (body []byte, tag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, http.NoBody)
	if err != nil {
		return nil, "", err
	}
	if value != "" {
		req.Header.Set(header, value)
	}
	resp, err := c.opts.Client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotModified {
		return nil, value, nil
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if resp.StatusCode == http.StatusOK {
		return body, resp.Header.Get("ETag"), err
	}
	var answer struct{ Error string }
	if json.Unmarshal(body, &answer) != nil || answer.Error == "" {
		answer.Error = strings.TrimSpace(string(body))
	}
	return nil, "", refused{resp.StatusCode, fmt.Sprintf("%s: %s", resp.Status, answer.Error), resp.Header.Get(failedHeader) != ""}
}

// at returns the URL of a path of a node.
func (c *Controller) at(n cell.Node, p string) string { return c.opts.Scheme + "://" + n.HTTP + p }

// poll reports the pages of a node until ctx ends.
func (c *Controller) poll(ctx context.Context, n cell.Node) {
	for tag, after := "", time.Duration(0); pause.For(ctx, after) == nil; {
		body, next, err := c.ask(ctx, pollTimeout, http.MethodGet, c.at(n, "/v2/node?wait="+pollWait.String()), tagHeader, tag)
		report := cell.Reported{Node: n.Name}
		if err == nil && body != nil {
			report.Page = &node.Page{}
			err = json.Unmarshal(body, report.Page)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			tag, after = "", pollAgain // the next page counts, also if it is the same
			c.send(ctx, cell.Unreachable{Node: n.Name, Reason: err.Error()})
		default:
			tag, after = next, 0
			if body == nil {
				after = 10 * time.Millisecond // a node that drains does not wait
			}
			c.send(ctx, report)
		}
	}
}

// carryOut sends an order to its node, and returns what became of it. An order whose epoch is not
// on disk is not sent: the cell could be started again with the same one.
func (c *Controller) carryOut(ctx context.Context, o cell.Order) cell.Carried {
	result := cell.Carried{Order: o}
	if c.opts.StateFile != "" && c.fenced.Load() < o.Epoch {
		result.Failed, result.Untried = fmt.Sprintf("it was not sent: epoch %d is not in %s", o.Epoch, c.opts.StateFile), true
		return result
	}
	_, _, err := c.ask(ctx, orderTime, http.MethodPost, c.at(o.Node, "/v2/repository/models/"+url.PathEscape(o.Model)+"/"+o.Verb()), epochHeader, strconv.FormatUint(o.Epoch, 10))
	if err != nil {
		answer, _ := errors.AsType[refused](err)
		result.Failed, result.Outdated, result.Untried = err.Error(), answer.status == http.StatusConflict, !answer.failed
	}
	return result
}

// measure returns the figures of a model's versions on a node; none if it does not answer.
func (c *Controller) measure(ctx context.Context, m cell.Measure) cell.Measured {
	result := cell.Measured{Node: m.Node.Name, Model: m.Model}
	body, _, err := c.ask(ctx, measureTime, http.MethodGet, c.at(m.Node, "/v2/node?model="+url.QueryEscape(m.Model)), "", "")
	var figures struct{ Versions []node.Figures }
	if err == nil && json.Unmarshal(body, &figures) == nil { // polls report nodes that do not answer
		result.Versions = figures.Versions
	}
	return result
}
