package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/node"
)

const (
	pollWait    = 5 * time.Second // a node answers a poll after this time at the latest
	pollTimeout = pollWait + 2*time.Second
	measureTime = 2 * time.Second        // a node that takes longer for figures is asked again
	pollAgain   = 250 * time.Millisecond // after a poll that failed
	orderTime   = 10 * time.Minute       // a load may take this long
	maxPage     = 64 << 20
	maxError    = 4 << 10

	epochHeader = "Shoal-Epoch"
)

// poll reports the pages of a node until ctx ends.
func (c *Controller) poll(ctx context.Context, n cell.Node) {
	tag := ""
	for {
		page, next, err := c.readPage(ctx, n, tag)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			tag = "" // the next page counts, also if it is the same
			c.send(ctx, cell.Unreachable{Node: n.Name, Reason: err.Error()})
			if !wait(ctx, pollAgain) {
				return
			}
		default:
			tag = next
			c.send(ctx, cell.Reported{Node: n.Name, Page: page})
			if page == nil && !wait(ctx, 10*time.Millisecond) { // a node that drains does not wait
				return
			}
		}
	}
}

// readPage returns the page of a node once it differs from that with the tag; nil if it does
// not within the time.
func (c *Controller) readPage(ctx context.Context, n cell.Node, tag string) (*node.Page, string, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.opts.Scheme+"://"+n.HTTP+"/v2/node?wait="+pollWait.String(), nil)
	if err != nil {
		return nil, "", err
	}
	if tag != "" {
		req.Header.Set("If-None-Match", tag)
	}
	resp, err := c.opts.Client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotModified {
		return nil, tag, nil
	}
	if resp.StatusCode != http.StatusOK {
		return nil, "", failure(resp)
	}
	page := &node.Page{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(page); err != nil {
		return nil, "", err
	}
	return page, resp.Header.Get("ETag"), nil
}

// failure returns the error of an answer.
func failure(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // part of a message is better than none
	var body struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(text, &body) == nil && body.Error != "" {
		return fmt.Errorf("%s: %s", resp.Status, body.Error)
	}
	return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
}

// carryOut sends an order to its node, and returns what became of it.
func (c *Controller) carryOut(ctx context.Context, o cell.Order) cell.Carried {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	verb := "load"
	if o.Unload {
		verb = "unload"
	}
	result := cell.Carried{Order: o}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.opts.Scheme+"://"+o.Node.HTTP+"/v2/repository/models/"+url.PathEscape(o.Model)+"/"+verb, strings.NewReader("{}"))
	if err != nil {
		result.Failed = err.Error()
		return result
	}
	req.Header.Set(epochHeader, strconv.FormatUint(o.Epoch, 10))
	resp, err := c.opts.Client.Do(req)
	if err != nil {
		result.Failed = err.Error()
		return result
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		result.Outdated = resp.StatusCode == http.StatusConflict
		result.Failed = failure(resp).Error()
	}
	return result
}

// measure returns the figures of a model's versions on a node; none if it does not answer.
func (c *Controller) measure(ctx context.Context, m cell.Measure) cell.Measured {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	result := cell.Measured{Node: m.Node.Name, Model: m.Model}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.opts.Scheme+"://"+m.Node.HTTP+"/v2/node?model="+url.QueryEscape(m.Model), nil)
	if err != nil {
		return result
	}
	resp, err := c.opts.Client.Do(req)
	if err != nil {
		return result // polls report nodes that do not answer
	}
	defer func() { _ = resp.Body.Close() }()
	var body struct{ Versions []node.Figures }
	if resp.StatusCode == http.StatusOK && json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&body) == nil {
		result.Versions = body.Versions
	}
	return result
}
