package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// maxSentence is how much is read of an error's text.
const maxSentence = 64 << 10

// httpCaller sends tensors as the binary extension has them, over as many
// connections as there are requests at a time.
type httpCaller struct {
	client *http.Client
	model  string // the address of the model
	header http.Header
	body   []byte
}

// NewHTTP returns a caller of a model over HTTP. version is empty for the one
// that the server chooses. It connects when it is first used.
func NewHTTP(address, name, version string) (Caller, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is not an address for HTTP, such as localhost:8000", address)
	}
	u = u.JoinPath("v2", "models", url.PathEscape(name))
	if version != "" {
		u = u.JoinPath("versions", url.PathEscape(version))
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: maxInFlight, // a new connection for each request would be measured as well
		DisableCompression:  true,
	}
	return &httpCaller{client: &http.Client{Transport: transport}, model: u.String()}, nil
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
func (c *httpCaller) Prepare(inputs []tensor.Tensor) error {
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
	var data []byte
	for _, t := range inputs {
		doc.Inputs = append(doc.Inputs, input{t.Name, t.Type.String(), t.Shape, parameters{"binary_data_size": len(t.Data)}})
		data = append(data, t.Data...)
	}
	head, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	c.body = append(head, data...)
	c.header = http.Header{
		"Content-Type":                    {"application/octet-stream"},
		"Inference-Header-Content-Length": {strconv.Itoa(len(head))},
	}
	return nil
}

// Infer implements [Caller].
func (c *httpCaller) Infer(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.model+"/infer", bytes.NewReader(c.body))
	if err != nil {
		return err
	}
	req.Header = c.header // which the client only reads
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return sentence(resp)
	}
	_, err = io.Copy(io.Discard, resp.Body) // to its end, so that the connection can be used again
	return err
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
	return nil
}

// get reads a page of the model into a message. found is false if the server has
// no such page.
func (c *httpCaller) get(ctx context.Context, page string, into proto.Message) (found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.model+page, nil)
	if err != nil {
		return true, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode != http.StatusNotFound, sentence(resp)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return true, err
	}
	// Servers may tell more than we know.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, into); err != nil {
		return true, fmt.Errorf("GET %s is not answered as KServe v2 has it: %w", req.URL, err)
	}
	return true, nil
}

// sentence returns the error that a response carries.
func sentence(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSentence))
	if err != nil {
		return err
	}
	var doc struct{ Error string }
	if json.Unmarshal(body, &doc) != nil || doc.Error == "" {
		return fmt.Errorf("answered with %s", resp.Status)
	}
	return fmt.Errorf("%s (%s)", doc.Error, resp.Status)
}
