package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/shoal-serving/shoal/client"
)

// maxSentence is the maximum length of an error message, in bytes.
const maxSentence = 64 << 10

// httpCaller sends tensors with the binary tensor extension. It has one connection per
// request in flight.
type httpCaller struct {
	about
	model    *url.URL
	requests [][]byte    // encoded, including headers
	parts    []bodyParts // the same, for requests of sequences
	token    string      // "" means none
	wires    wires
}

// NewHTTP returns a caller of a model over HTTP. An empty version means that the server
// chooses. opts has the credentials. It connects on first use.
func NewHTTP(address, name, version string, opts client.Options) (Caller, error) {
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if opts.TLS != nil {
			scheme = "https://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not an address for HTTP, such as localhost:8000", address)
	}
	asks, err := client.NewHTTP(address, opts)
	if err != nil {
		return nil, err
	}
	c := &httpCaller{about: about{asks, name, version}, token: opts.Token}
	c.wires.to, c.wires.tls = u, opts.TLS
	if u.Path == "" {
		u.Path = "/" // otherwise joined paths would be relative
	}
	c.model = u.JoinPath("v2", "models", url.PathEscape(name))
	if version != "" {
		c.model = c.model.JoinPath("versions", url.PathEscape(version))
	}
	return c, nil
}

// Prepare implements [Caller].
func (c *httpCaller) Prepare(requests []Request) error {
	for _, r := range requests {
		head, data, err := httpBody(r)
		if err != nil {
			return err
		}
		c.requests = append(c.requests, c.encode(head, data))
		c.parts = append(c.parts, bodyParts{head, data})
	}
	return nil
}

// bodyParts are those of a body: JSON, and the data of tensors.
type bodyParts struct{ head, data []byte }

// encode returns a request with its header.
func (c *httpCaller) encode(head, data []byte) []byte {
	header := fmt.Sprintf("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n", len(head))
	if c.token != "" {
		header += "Authorization: Bearer " + c.token + "\r\n"
	}
	return post(c.model.Host, c.model.EscapedPath()+"/infer", header, head, data)
}

// InferStep implements [SequenceCaller].
func (c *httpCaller) InferStep(ctx context.Context, request int, s Step) error {
	p := c.parts[request]
	// The JSON begins with the parameters, of which there is at least one.
	const begins = `{"parameters":{`
	head := fmt.Appendf(nil, `%s"sequence_id":%d,"sequence_start":%t,"sequence_end":%t,%s`, begins, s.ID, s.Start, s.End, p.head[len(begins):])
	return c.wires.exchange(ctx, c.encode(head, p.data))
}

// httpBody returns the two parts of a body.
func httpBody(r Request) (head, data []byte, err error) {
	type parameters map[string]any
	type input struct {
		Name       string     `json:"name"`
		Datatype   string     `json:"datatype"`
		Shape      []int64    `json:"shape"`
		Parameters parameters `json:"parameters"`
	}
	var doc struct {
		Parameters parameters `json:"parameters"`
		Inputs     []input    `json:"inputs"`
	}
	doc.Parameters = parameters{"binary_data_output": true}
	if r.Priority > 0 {
		doc.Parameters["priority"] = r.Priority
	}
	for _, t := range r.Inputs {
		doc.Inputs = append(doc.Inputs, input{t.Name, t.Type.String(), t.Shape, parameters{"binary_data_size": len(t.Data)}})
		data = append(data, t.Data...)
	}
	head, err = json.Marshal(doc)
	return head, data, err
}

// Infer implements [Caller].
func (c *httpCaller) Infer(ctx context.Context, request int) error {
	return c.wires.exchange(ctx, c.requests[request])
}

// Close implements [Caller].
func (c *httpCaller) Close() error {
	return errors.Join(c.client.Close(), c.wires.close())
}

// sentence returns the error in a response.
func sentence(status string, body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, maxSentence))
	if err != nil {
		return err
	}
	var doc struct{ Error string }
	if json.Unmarshal(text, &doc) != nil || doc.Error == "" {
		return fmt.Errorf("answered with %s", status)
	}
	return fmt.Errorf("%s (%s)", doc.Error, status)
}
