//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// goClients returns a public client of each kind.
func goClients(s *servertest.Server, opts client.Options) map[string]*client.Client {
	s.T.Helper()
	return map[string]*client.Client{"HTTP": s.Closing(client.NewHTTP(s.HTTP, opts)), "gRPC": s.Closing(client.NewGRPC(s.GRPC, opts))}
}

// row returns a request for a row of a model of config, which answers with what it gets.
func row(id string, values ...float32) *client.Request {
	return &client.Request{Model: "m", ID: id, Inputs: []client.Tensor{client.NewTensor("INPUT", values, 1, 4)}}
}

func TestTheGoClientRunsModels(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "dynamic_batching { }")}))
	clients := goClients(s, client.Options{})
	for protocol, c := range clients {
		t.Run(protocol, func(t *testing.T) {
			ready, err := c.Ready(t.Context())
			if !ready || err != nil {
				t.Errorf("ready: %v, %v", ready, err)
			}
			meta, err := c.Metadata(t.Context(), "m", "")
			if err != nil || len(meta.Inputs) != 1 || meta.Inputs[0].Type != tensor.FP32 || !slices.Equal(meta.Inputs[0].Shape, []int64{-1, 4}) {
				t.Errorf("metadata: %v, %v", meta, err)
			}
			resp, err := c.Infer(t.Context(), row("x", 1, 2, 3, 4))
			if err != nil {
				t.Fatal(err)
			}
			values, err := client.Values[float32](resp.Output("OUTPUT"))
			if err != nil || resp.ID != "x" || resp.Version != "1" || !slices.Equal(values, []float32{1, 2, 3, 4}) {
				t.Errorf("got %v, %v, %v", resp, values, err)
			}
			statistics, err := c.Statistics(t.Context(), "m", "1")
			if err != nil || len(statistics) != 1 || statistics[0].Success.Count == 0 || statistics[0].Success.Mean() < time.Millisecond {
				t.Errorf("statistics: %+v, %v", statistics, err)
			}
			wrong := row("x", 1, 2, 3, 4)
			wrong.Inputs[0].Name = "INPUTS"
			if _, err := c.Infer(t.Context(), wrong); !errors.Is(err, client.Invalid) {
				t.Errorf("got %v", err)
			}
			wrong.Model = "nosuch"
			if _, err := c.Infer(t.Context(), wrong); !errors.Is(err, client.NotFound) {
				t.Errorf("got %v", err)
			}
		})
	}
	var doc struct{ Name string }
	if body, err := clients["HTTP"].Explain(t.Context(), "m", ""); err != nil || json.Unmarshal(body, &doc) != nil || doc.Name != "m" {
		t.Errorf("explain: %s, %v", body, err)
	}
}

func TestTheGoClientStreams(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "dynamic_batching { }")}))
	stream, err := goClients(s, client.Options{})["gRPC"].Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	const requests = 20
	for i := range requests {
		if err := stream.Send(row(strconv.Itoa(i), float32(i), 0, 0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		values, err := client.Values[float32](resp.Output("OUTPUT"))
		if err != nil || resp.ID != strconv.Itoa(i) || !resp.Final || values[0] != float32(i) {
			t.Errorf("got %v, %v, %v", resp, values, err)
		}
	}
	if resp, err := stream.Recv(); resp != nil || !errors.Is(err, io.EOF) {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestTheGoClientLoadsModels(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "")}), "--model-control-mode=explicit")
	for protocol, c := range goClients(s, client.Options{}) {
		t.Run(protocol, func(t *testing.T) {
			isReady := func(want bool) {
				t.Helper()
				if ready, err := c.ModelReady(t.Context(), "m", ""); ready != want || err != nil {
					t.Errorf("ready: %v, %v", ready, err)
				}
			}
			isReady(false)
			if err := c.Load(t.Context(), "m", client.LoadOptions{}); err != nil {
				t.Fatal(err)
			}
			isReady(true)
			index, err := c.Index(t.Context())
			if err != nil || len(index) != 1 || index[0].Model != "m" || index[0].State != "READY" {
				t.Errorf("index: %v, %v", index, err)
			}
			if err := c.Unload(t.Context(), "m"); err != nil {
				t.Fatal(err)
			}
			for range 100 { // the version is drained first
				if ready, _ := c.ModelReady(t.Context(), "m", ""); !ready {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			isReady(false)
			if err := c.Load(t.Context(), "nosuch", client.LoadOptions{}); err == nil {
				t.Error("a model that does not exist was loaded")
			}
		})
	}
}

// TestTheGoClientRetriesWhereTheQueueIsFull sends more requests at once than a model has
// room for.
func TestTheGoClientRetriesWhereTheQueueIsFull(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"m": servertest.Config(100*time.Millisecond, "1", "dynamic_batching { default_queue_policy { max_queue_size: 4 } }"),
	}))
	crowd := func(c *client.Client) (refused int64) {
		var n atomic.Int64
		var all sync.WaitGroup
		for range 24 {
			all.Go(func() {
				switch _, err := c.Infer(t.Context(), row("", 1, 2, 3, 4)); {
				case errors.Is(err, client.Overloaded):
					n.Add(1)
				case err != nil:
					t.Error(err)
				}
			})
		}
		all.Wait()
		return n.Load()
	}
	once := goClients(s, client.Options{})
	patient := goClients(s, client.Options{Retry: client.Retry{Budget: time.Minute}})
	for protocol := range once {
		if refused := crowd(once[protocol]); refused == 0 {
			t.Errorf("%s: the queue was never full", protocol)
		}
		if refused := crowd(patient[protocol]); refused > 0 {
			t.Errorf("%s: %d of 24 requests were refused in spite of retries", protocol, refused)
		}
	}
}
