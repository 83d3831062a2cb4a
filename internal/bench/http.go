package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// maxSentence is how much is read of an error's text.
const maxSentence = 64 << 10

// httpCaller sends tensors as the binary extension has them, over as many
// connections as there are requests at a time.
type httpCaller struct {
	client   *http.Client // for all but requests
	model    *url.URL
	requests [][]byte // as they go over the wire, with their headers
	wires    wires
}

// NewHTTP returns a caller of a model over HTTP. version is empty for the one
// that the server chooses. It connects when it is first used.
func NewHTTP(address, name, version string) (Caller, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not an address for HTTP, such as localhost:8000", address)
	}
	c := &httpCaller{client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	c.wires.to = u
	if u.Path == "" {
		u.Path = "/" // or what is joined would be relative
	}
	c.model = u.JoinPath("v2", "models", url.PathEscape(name))
	if version != "" {
		c.model = c.model.JoinPath("versions", url.PathEscape(version))
	}
	return c, nil
}

// Model implements [Caller].
func (c *httpCaller) Model(ctx context.Context) (Model, error) {
	var meta kservepb.ModelMetadataResponse
	if _, err := c.get(ctx, "", &meta); err != nil {
		return Model{}, err
	}
	var config configpb.ModelConfig
	found, err := c.get(ctx, "/config", &config)
	if !found {
		return modelOf(&meta, -1)
	}
	if err != nil {
		return Model{}, err
	}
	return modelOf(&meta, int(config.GetMaxBatchSize()))
}

// Prepare implements [Caller].
func (c *httpCaller) Prepare(requests []Request) error {
	for _, r := range requests {
		head, data, err := httpBody(r)
		if err != nil {
			return err
		}
		header := fmt.Sprintf("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n", len(head))
		c.requests = append(c.requests, post(c.model.Host, c.model.EscapedPath()+"/infer", header, head, data))
	}
	return nil
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

// Statistics implements [Caller].
func (c *httpCaller) Statistics(ctx context.Context) (Statistics, error) {
	var resp kservepb.ModelStatisticsResponse
	if _, err := c.get(ctx, "/stats", &resp); err != nil {
		return Statistics{}, err
	}
	return statisticsOf(resp.GetModelStats()), nil
}

// Close implements [Caller].
func (c *httpCaller) Close() error {
	c.client.CloseIdleConnections()
	return c.wires.close()
}

// get reads a page of the model into a message. found is false if the server has
// no such page.
func (c *httpCaller) get(ctx context.Context, page string, into proto.Message) (found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.model.String()+page, nil)
	if err != nil {
		return true, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode != http.StatusNotFound, sentence(resp.Status, resp.Body)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return true, err
	}
	// Servers may send fields that this program does not know.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, into); err != nil {
		return true, fmt.Errorf("GET %s is not answered as KServe v2 has it: %w", req.URL, err)
	}
	return true, nil
}

// sentence returns the error that an answer carries.
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
