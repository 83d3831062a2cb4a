package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/tensor"
)

func TestAllTypesComeBackAsTheyWereSent(t *testing.T) {
	inputs := []client.Tensor{
		client.NewTensor("INb", []bool{true, false, true}),
		client.NewTensor("INu8", []uint8{0, 255}),
		client.NewTensor("INu16", []uint16{0, math.MaxUint16}),
		client.NewTensor("INu32", []uint32{0, math.MaxUint32}),
		client.NewTensor("INu64", []uint64{0, math.MaxUint64}),
		client.NewTensor("INi8", []int8{-128, 127}),
		client.NewTensor("INi16", []int16{math.MinInt16, math.MaxInt16}),
		client.NewTensor("INi32", []int32{math.MinInt32, math.MaxInt32}),
		client.NewTensor("INi64", []int64{math.MinInt64, math.MaxInt64}),
		client.NewTensor("INf32", []float32{-0.5, float32(math.Inf(1)), math.MaxFloat32, 1}, 2, 2),
		client.NewTensor("INf64", []float64{math.SmallestNonzeroFloat64}, 1, 1, 1),
		client.NewStrings("INs", []string{"", "a", "\xff\x00"}, 3, 1),
		{Name: "INhalf", Type: tensor.FP16, Shape: []int64{2}, Data: []byte{1, 2, 3, 4}},
		client.NewTensor("INempty", []float32{}, 0, 4),
	}
	overBoth(t, client.Options{}, func(t *testing.T, _ *kservetest.Server, c *client.Client) {
		resp, err := c.Infer(t.Context(), &client.Request{Model: "alltypes", Version: "1", ID: "x", Inputs: inputs})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Model != "alltypes" || resp.Version != "1" || resp.ID != "x" || !resp.Final || len(resp.Outputs) != len(inputs) {
			t.Errorf("got %+v", resp)
		}
		for _, in := range inputs {
			out := resp.Output("OUT" + strings.TrimPrefix(in.Name, "IN"))
			if out == nil || out.Type != in.Type || !slices.Equal(out.Shape, in.Shape) || string(out.Data) != string(in.Data) {
				t.Errorf("got %v, want %v", out, in)
			}
		}
		numbers, err := client.Values[float32](resp.Output("OUTf32"))
		if want := []float32{-0.5, float32(math.Inf(1)), math.MaxFloat32, 1}; err != nil || !slices.Equal(numbers, want) {
			t.Errorf("got %v, %v", numbers, err)
		}
		words, err := client.Strings(resp.Output("OUTs"))
		if want := []string{"", "a", "\xff\x00"}; err != nil || !slices.Equal(words, want) {
			t.Errorf("got %q, %v", words, err)
		}
		half, err := client.Values[uint16](resp.Output("OUThalf"))
		if want := []uint16{0x0201, 0x0403}; err != nil || !slices.Equal(half, want) {
			t.Errorf("got %x, %v", half, err)
		}
	})
}

func TestARequestIsSentWithAllItsFields(t *testing.T) {
	overBoth(t, client.Options{}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		var got infer.Request
		s.Before = func(_ context.Context, req *infer.Request) error {
			got = *req
			return nil
		}
		req := &client.Request{
			Model: "two", Version: "1", ID: "7", Priority: 3, Timeout: 1500 * time.Millisecond,
			Inputs:  []client.Tensor{client.NewTensor("INa", []int32{1, 2}, 1, 2), client.NewStrings("INb", []string{"word"}, 1, 1)},
			Outputs: []string{"OUTb"},
			Parameters: map[string]any{
				"sequence_id": uint32(9), "sequence_start": true, "float": 0.5, "whole": 1.0, "large": 1e20, "zero": math.Copysign(0, -1), "int": -1, "text": "é", "most": uint64(math.MaxUint64), "flag": false,
			},
		}
		resp, err := c.Infer(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Outputs) != 1 || resp.Outputs[0].Name != "OUTb" {
			t.Errorf("got %v", resp.Outputs)
		}
		if got.ID != "7" || got.Version != "1" || got.Priority != 3 || got.Timeout != req.Timeout || got.Correlation != 9 || got.Flags != infer.SequenceStart {
			t.Errorf("the server received %+v", got)
		}
		parameters := map[string]string{}
		for _, p := range got.Parameters {
			parameters[p.Name] = fmt.Sprintf("%T %[1]v", p.Value)
		}
		want := map[string]string{
			"float": "float64 0.5", "whole": "float64 1", "large": "float64 1e+20", "zero": "float64 -0",
			"int": "int64 -1", "text": "string é", "most": fmt.Sprintf("uint64 %d", uint64(math.MaxUint64)), "flag": "bool false",
		}
		if !maps.Equal(parameters, want) {
			t.Errorf("the server received the parameters %v, want %v", parameters, want)
		}
	})
}

func TestClassesComeInsteadOfValues(t *testing.T) {
	overBoth(t, client.Options{}, func(t *testing.T, _ *kservetest.Server, c *client.Client) {
		resp, err := c.Infer(t.Context(), &client.Request{
			Model: "alltypes", Version: "1", Inputs: []client.Tensor{client.NewTensor("INf32", []float32{0.25, 4, 1}, 1, 3)},
			Outputs: []string{"OUTf32"}, Classes: 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Strings(resp.Output("OUTf32"))
		if want := []string{"4.000000:1", "1.000000:2"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	})
}

func TestTheDeadlineOfTheContextEndsACall(t *testing.T) {
	for _, protocol := range []string{"HTTP", "gRPC"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBackend(t)
				s.Before = func(ctx context.Context, _ *infer.Request) error {
					_, ok := ctx.Deadline()
					if ok != (protocol == "gRPC") {
						t.Errorf("the server knows of a deadline: %v", ok)
					}
					<-ctx.Done()
					return ctx.Err()
				}
				c := connect(t, s, client.Options{Retry: client.Retry{Budget: time.Hour}})[protocol]
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				_, err := c.Infer(ctx, identity())
				if !errors.Is(err, client.Deadline) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took != time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestACanceledCallEnds(t *testing.T) {
	overBoth(t, client.Options{}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		s.Before = func(ctx context.Context, _ *infer.Request) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := c.Infer(ctx, identity()); !errors.Is(err, client.Canceled) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestErrorsHaveTheSameCodesOverBoth(t *testing.T) {
	overBoth(t, client.Options{}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		s.Before = func(_ context.Context, req *infer.Request) error {
			codes := map[string]infer.Code{
				"internal": infer.Internal, "invalid": infer.Invalid, "unavailable": infer.Unavailable, "overloaded": infer.Overloaded, "unsupported": infer.Unsupported,
			}
			return &infer.Error{Code: codes[req.ID], Text: "no: " + req.ID}
		}
		for id, want := range map[string]client.Code{
			"internal": client.Internal, "invalid": client.Invalid, "unavailable": client.Unavailable, "overloaded": client.Overloaded, "unsupported": client.Unsupported,
		} {
			req := identity()
			req.ID = id
			_, err := c.Infer(t.Context(), req)
			e, ok := errors.AsType[*client.Error](err)
			if !ok || e.Code != want || client.CodeOf(err) != want || !errors.Is(err, want) || e.Message != "no: "+id || e.Status == "" {
				t.Errorf("%s: got %v", id, err)
			}
		}
		req := identity()
		req.Model = "nosuch"
		_, err := c.Infer(t.Context(), req)
		if !errors.Is(err, client.NotFound) || !strings.HasPrefix(err.Error(), "Request for unknown model: 'nosuch' is not found (") {
			t.Errorf("got %v", err)
		}
		_, err = c.Metadata(t.Context(), "identity", "7")
		if !errors.Is(err, client.NotFound) {
			t.Errorf("got %v", err)
		}
	})
}

func TestWhatCannotSucceedIsNotSent(t *testing.T) {
	overBoth(t, client.Options{}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		s.Before = func(context.Context, *infer.Request) error { panic("it was sent") }
		for name, change := range map[string]func(*client.Request){
			"the request names no model":              func(r *client.Request) { r.Model = "" },
			`input "INPUT": 64 bytes of data, but sh`: func(r *client.Request) { r.Inputs[0].Shape = []int64{2, 16} },
			`input "INPUT": elements of type INVALID`: func(r *client.Request) { r.Inputs[0].Type = tensor.Invalid },
			"the request asks for classes and names":  func(r *client.Request) { r.Classes = 1 },
			`"\xff" is not UTF-8`:                     func(r *client.Request) { r.ID = "\xff" },
			`"a\xff" is not UTF-8`:                    func(r *client.Request) { r.Parameters = map[string]any{"p": "a\xff"} },
			`parameter "p" is of type []int: expecte`: func(r *client.Request) { r.Parameters = map[string]any{"p": []int{1}} },
			`parameter "p" is of type float64: expec`: func(r *client.Request) { r.Parameters = map[string]any{"p": math.NaN()} },
			`parameter "p" is of type <nil>: expecte`: func(r *client.Request) { r.Parameters = map[string]any{"p": nil} },
		} {
			req := identity()
			change(req)
			if _, err := c.Infer(t.Context(), req); !errors.Is(err, client.Invalid) || !strings.HasPrefix(err.Error(), name) {
				t.Errorf("got %v, want %s", err, name)
			}
		}
		if _, err := c.Metadata(t.Context(), "", ""); !errors.Is(err, client.Invalid) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCallsAreRetriedWhenTheServerAsksForIt(t *testing.T) {
	const most = 1500 * time.Millisecond
	for _, tt := range []struct {
		name     string
		retry    client.Retry
		after    time.Duration // that the server asks for
		failures int           // before it answers
		deadline time.Duration // of the context
		http     time.Duration // how long the call takes, over HTTP, where only seconds are known
		grpc     time.Duration
		calls    int // that the server receives
		fails    bool
	}{
		{name: "never by default", after: most, failures: 1, calls: 1, fails: true},
		{name: "until it succeeds", retry: client.Retry{Budget: time.Minute}, after: most, failures: 2, http: 4 * time.Second, grpc: 3 * time.Second, calls: 3},
		{name: "up to a number", retry: client.Retry{Max: 2}, after: most, failures: 9, http: 4 * time.Second, grpc: 3 * time.Second, calls: 3, fails: true},
		{name: "within the budget", retry: client.Retry{Budget: 5 * time.Second}, after: 2 * time.Second, failures: 9, http: 4 * time.Second, grpc: 4 * time.Second, calls: 3, fails: true},
		{name: "to the end of the budget", retry: client.Retry{Budget: 4 * time.Second}, after: 2 * time.Second, failures: 2, http: 4 * time.Second, grpc: 4 * time.Second, calls: 3},
		{name: "not beyond the deadline", retry: client.Retry{Budget: time.Hour}, after: 2 * time.Second, failures: 9, deadline: 5 * time.Second, http: 4 * time.Second, grpc: 4 * time.Second, calls: 3, fails: true},
	} {
		for _, protocol := range []string{"HTTP", "gRPC"} {
			for _, code := range []infer.Code{infer.Overloaded, infer.Unavailable} {
				t.Run(fmt.Sprint(tt.name, "/", protocol, "/", code), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newBackend(t)
						calls := 0
						s.Before = func(context.Context, *infer.Request) error {
							if calls++; calls > tt.failures {
								return nil
							}
							return &infer.Error{Code: code, Text: "busy", RetryAfter: tt.after}
						}
						c := connect(t, s, client.Options{Retry: tt.retry})[protocol]
						ctx := t.Context()
						if tt.deadline > 0 {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(ctx, tt.deadline)
							defer cancel()
						}
						began := time.Now()
						_, err := c.Infer(ctx, identity())
						want := tt.http
						if protocol == "gRPC" {
							want = tt.grpc
						}
						if took := time.Since(began); took != want || calls != tt.calls || (err != nil) != tt.fails {
							t.Errorf("%d calls in %v, and %v, want %d in %v", calls, took, err, tt.calls, want)
						}
						if e, ok := errors.AsType[*client.Error](err); tt.fails && (!ok || e.Message != "busy" || e.RetryAfter < tt.after) {
							t.Errorf("got %#v", err)
						}
					})
				})
			}
		}
	}
}

func TestARetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBackend(t)
		s.Before = func(context.Context, *infer.Request) error {
			return &infer.Error{Code: infer.Overloaded, Text: "busy", RetryAfter: time.Minute}
		}
		c := connect(t, s, client.Options{Retry: client.Retry{Max: 1}})["gRPC"]
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if _, err := c.Infer(ctx, identity()); !errors.Is(err, client.Canceled) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestHealthIsAnswered(t *testing.T) {
	overBoth(t, client.Options{}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		ask := func(name string, want bool, f func(context.Context) (bool, error)) {
			t.Helper()
			if got, err := f(t.Context()); got != want || err != nil {
				t.Errorf("%s: got %v, %v", name, got, err)
			}
		}
		model := func(name string) func(context.Context) (bool, error) {
			return func(ctx context.Context) (bool, error) { return c.ModelReady(ctx, name, "") }
		}
		ask("live", true, c.Live)
		ask("ready", true, c.Ready)
		s.NotReady.Store(true)
		ask("not ready", false, c.Ready)
		ask("model", true, model("identity"))
		ask("unknown model", false, model("nosuch"))
	})
}

func TestWhatTheServerSaysOfItsModelsIsTheSameOverBoth(t *testing.T) {
	s := newBackend(t)
	var said []string
	for _, protocol := range []string{"HTTP", "gRPC"} {
		c := connect(t, s, client.Options{})[protocol]
		server, err := c.ServerMetadata(t.Context())
		if err != nil || server.Name != "shoal" || server.Version != "1.2.3" || !slices.Contains(server.Extensions, "statistics") {
			t.Errorf("got %v, %v", server, err)
		}
		meta, err := c.Metadata(t.Context(), "two", "")
		if err != nil {
			t.Fatal(err)
		}
		want := []client.TensorMetadata{{"INa", tensor.Int32, []int64{-1, 2}}, {"INb", tensor.Bytes, []int64{-1, 1}}}
		if meta.Name != "two" || !reflect.DeepEqual(meta.Inputs, want) || len(meta.Outputs) != 2 {
			t.Errorf("got %v", meta)
		}
		config, err := c.Config(t.Context(), "identity", "")
		if err != nil {
			t.Fatal(err)
		}
		var parsed struct {
			Name         string
			MaxBatchSize int `json:"max_batch_size"`
		}
		if err := json.Unmarshal(config, &parsed); err != nil || parsed.Name != "identity" || parsed.MaxBatchSize != 64 {
			t.Errorf("got %s, %v", config, err)
		}
		statistics, err := c.Statistics(t.Context(), "", "")
		if err != nil || len(statistics) != 2 {
			t.Fatalf("got %v, %v", statistics, err)
		}
		first := statistics[0]
		if first.Model != "failing" || first.Inferences != 31 || first.Executions != 33 || first.Success != (client.Total{Count: 30, Time: 44777434}) ||
			first.Success.Mean() != 44777434/30 || !first.LastInference.Equal(time.UnixMilli(1794705269097)) || len(first.Batches) != 2 || first.Batches[1].Size != 2 {
			t.Errorf("got %+v", first)
		}
		if last := statistics[1]; !last.LastInference.IsZero() || last.Success.Mean() != 0 {
			t.Errorf("got %+v", last)
		}
		index, err := c.Index(t.Context())
		if err != nil || len(index) != len(kservetest.RecordedIndex) || index[1] != (client.IndexEntry{Model: "badconfig"}) || index[2].State != "UNAVAILABLE" {
			t.Errorf("got %v, %v", index, err)
		}
		all := fmt.Sprint(server, meta, string(config), statistics, index)
		said = append(said, all)
	}
	if said[0] != said[1] {
		t.Errorf("over HTTP\n%s\nover gRPC\n%s", said[0], said[1])
	}
}

func TestModelsAreLoadedAndUnloaded(t *testing.T) {
	overBoth(t, client.Options{Retry: client.Retry{Max: 9}}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		var loaded catalog.LoadOptions
		s.Loading = func(_ string, opts catalog.LoadOptions) error {
			loaded = opts
			return nil
		}
		s.Unloading = func(model string, _ catalog.UnloadOptions) error {
			return infer.Errorf(infer.Invalid, "no model %s", model)
		}
		err := c.Load(t.Context(), "identity", client.LoadOptions{Config: "{}", Files: map[string][]byte{"1/model.onnx": {0, 255}}})
		if err != nil || loaded.Config != "{}" || !strings.Contains(fmt.Sprint(loaded.Files), "[0 255]") {
			t.Errorf("got %v, %v", loaded, err)
		}
		if err := c.Load(t.Context(), "identity", client.LoadOptions{}); err != nil || loaded.Config != "" {
			t.Errorf("got %v, %v", loaded, err)
		}
		if err := c.Unload(t.Context(), "identity"); !errors.Is(err, client.Invalid) || !strings.Contains(err.Error(), "no model identity") {
			t.Errorf("got %v", err)
		}
		loads := 0
		s.Loading = func(string, catalog.LoadOptions) error {
			loads++
			return infer.Errorf(infer.Unavailable, "not allowed")
		}
		if err := c.Load(t.Context(), "identity", client.LoadOptions{}); !errors.Is(err, client.Unavailable) || loads != 1 {
			t.Errorf("got %v after %d loads, want one", err, loads)
		}
	})
}

func TestOneTransportSaysWhatTheOtherCanDo(t *testing.T) {
	clients := connect(t, newBackend(t), client.Options{})
	var doc struct{ Name string }
	body, err := clients["HTTP"].Explain(t.Context(), "identity", "1")
	if err != nil || json.Unmarshal(body, &doc) != nil || doc.Name != "identity" {
		t.Errorf("got %s, %v", body, err)
	}
	if _, err := clients["gRPC"].Explain(t.Context(), "identity", "1"); !errors.Is(err, client.Unsupported) || !strings.Contains(err.Error(), "use NewHTTP") {
		t.Errorf("got %v", err)
	}
	if _, err := clients["HTTP"].Stream(t.Context()); !errors.Is(err, client.Unsupported) || !strings.Contains(err.Error(), "use NewGRPC") {
		t.Errorf("got %v", err)
	}
}

func TestAResponseThatIsTooLargeIsAnError(t *testing.T) {
	overBoth(t, client.Options{MaxResponse: 200, Retry: client.Retry{Max: 3}}, func(t *testing.T, s *kservetest.Server, c *client.Client) {
		calls := 0
		s.Before = func(context.Context, *infer.Request) error { calls++; return nil }
		req := &client.Request{Model: "alltypes", Inputs: []client.Tensor{client.NewTensor("IN", make([]byte, 300))}}
		if _, err := c.Infer(t.Context(), req); !errors.Is(err, client.TooLarge) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		req.Inputs[0] = client.NewTensor("IN", make([]byte, 10))
		if _, err := c.Infer(t.Context(), req); err != nil {
			t.Error(err)
		}
	})
}

func TestAnErrorThatIsTooLargeKeepsItsCode(t *testing.T) {
	for _, protocol := range []string{"HTTP", "gRPC"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBackend(t)
				calls := 0
				s.Before = func(context.Context, *infer.Request) error {
					calls++
					return &infer.Error{Code: infer.Unavailable, Text: strings.Repeat("busy ", 100), RetryAfter: time.Second}
				}
				c := connect(t, s, client.Options{MaxResponse: 200, Retry: client.Retry{Max: 1}})[protocol]
				if _, err := c.Infer(t.Context(), identity()); !errors.Is(err, client.Unavailable) || !strings.Contains(err.Error(), "busy busy") || calls != 2 {
					t.Errorf("%d calls, %v", calls, err)
				}
			})
		})
	}
}

func TestAServerThatCannotBeReachedIsUnavailable(t *testing.T) {
	refused := errors.New("connection refused")
	opts := client.Options{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, refused }}
	web, err := client.NewHTTP("localhost:1", opts)
	if err != nil {
		t.Fatal(err)
	}
	rpc, err := client.NewGRPC("127.0.0.1:1", opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Client{web, rpc} {
		if _, err := c.Live(t.Context()); !errors.Is(err, client.Unavailable) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for _, url := range []string{"", "ftp://localhost", "http://", "http://localhost?a=b", "http://local host", "http://localhost/#a"} {
		if _, err := client.NewHTTP(url, client.Options{}); !errors.Is(err, client.Invalid) {
			t.Errorf("%q: got %v", url, err)
		}
	}
	if _, err := client.NewGRPC("no\x00target://%", client.Options{}); !errors.Is(err, client.Invalid) {
		t.Errorf("got %v", err)
	}
}

func TestHeadersAndThePrefixOfAURLAreSent(t *testing.T) {
	var path, token string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		path, token = r.URL.EscapedPath(), r.Header.Get("Authorization")
	}))
	defer server.Close()
	c, err := client.NewHTTP(server.URL+"/prefix/", client.Options{Header: map[string]string{"Authorization": "Bearer x"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ready, err := c.ModelReady(t.Context(), "a/b", "1")
	if !ready || err != nil || path != "/prefix/v2/models/a%2Fb/versions/1/ready" || token != "Bearer x" {
		t.Errorf("%v, %v: %s with %q", ready, err, path, token)
	}
}

func TestConnectionsMayBeEncrypted(t *testing.T) {
	s := newBackend(t)
	web := httptest.NewTLSServer(kservehttp.New(s, s, s, kservehttp.Options{}))
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	var token []string
	rpc := kservegrpc.New(s, s, s, kservegrpc.Options{},
		grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			token = metadata.ValueFromIncomingContext(ctx, "authorization")
			return handle(ctx, req)
		}))
	listener := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := rpc.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		rpc.Stop()
		serving.Wait()
	})
	opts := client.Options{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}, Header: map[string]string{"Authorization": "Bearer x"}}
	overHTTP, err := client.NewHTTP(web.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	opts.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
	overGRPC, err := client.NewGRPC("127.0.0.1:1", opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Client{overHTTP, overGRPC} {
		if _, err := c.Infer(t.Context(), identity()); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(token, []string{"Bearer x"}) {
		t.Errorf("the server received the token %q", token)
	}
}

func TestOneClientServesManyGoroutines(t *testing.T) {
	// Over TCP: connections in memory sometimes report a deadline that net/http has taken back,
	// and the server then closes them.
	for protocol, c := range connectTCP(t, newBackend(t)) {
		t.Run(protocol, func(t *testing.T) {
			req := identity()
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					for range 10 {
						if _, err := c.Infer(t.Context(), req); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}
