//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

var leaving = flag.Duration("leaving", 0, "how long clients leave early, in each of eight settings; 0 means 10s in one")

// longestStay is the longest that a client waits before it leaves.
const longestStay = 20 * time.Millisecond

// TestClientsThatLeaveHarmNobody has clients of an ONNX, a Python and a simulated model
// leave after a random time, while another client of each stays and gets what it asked
// for, during the test and after it.
func TestClientsThatLeaveHarmNobody(t *testing.T) {
	onnxtest.Library(t)
	s := start(t, leavingRepository(t), "--log-verbose=0")
	settings := []leavers{{s: s, clients: 4, overHTTP: true, overGRPC: true}}
	length := 10 * time.Second
	if *leaving > 0 {
		settings, length = nil, *leaving
		for _, clients := range []int{1, 2, 8, 32} {
			settings = append(settings, leavers{s: s, clients: clients, overGRPC: true}, leavers{s: s, clients: clients, overHTTP: true})
		}
	}
	for _, l := range settings {
		l.run(t, length)
	}
}

// leavingRepository has a model of each engine that takes some milliseconds.
func leavingRepository(t *testing.T) string {
	t.Helper()
	dir := pythonRepository(t, "", "import time\n"+`
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.004)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy())]) for r in requests]
`)
	model, err := os.ReadFile(filepath.Join(root, "internal", "engine", "onnx", "testdata", "spin.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sim/config.pbtxt":   config(4*time.Millisecond, "2", "dynamic_batching { }"),
		"spin/1/model.onnx":  string(model),
		"spin/config.pbtxt":  "backend: \"onnxruntime\"\nmax_batch_size: 8\ndynamic_batching { }\n",
		"sim/1/.placeholder": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// leavers are clients of all models that leave early.
type leavers struct {
	s                  *server
	clients            int // of each model and protocol
	overHTTP, overGRPC bool
}

// A leaverModel is one that they ask.
type leaverModel struct {
	name    string
	request *kservepb.ModelInferRequest
	body    []byte    // the same, for HTTP
	want    []float32 // nil until the first answer, where that is what later ones are held against
}

func leaverModels() []*leaverModel {
	const steps = 1000 // some milliseconds
	models := []*leaverModel{
		{name: "sim", request: smallRequest("sim", 1)},
		{name: "m", request: smallRequest("m", 1), want: []float32{0, 0, 0, 0}},
		{name: "spin", request: &kservepb.ModelInferRequest{
			ModelName: "spin",
			Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
				{Name: "x", Datatype: "FP32", Shape: []int64{1, 64}}, {Name: "steps", Datatype: "INT64", Shape: []int64{1, 1}},
			},
			RawInputContents: [][]byte{floats(make([]float32, 64)...), binary.LittleEndian.AppendUint64(nil, steps)},
		}},
	}
	for _, m := range models {
		type input struct {
			Name     string  `json:"name"`
			Datatype string  `json:"datatype"`
			Shape    []int64 `json:"shape"`
			Data     []int   `json:"data"`
		}
		var inputs []input
		for _, in := range m.request.GetInputs() {
			data := make([]int, in.GetShape()[1])
			if in.GetName() == "steps" {
				data[0] = steps
			}
			inputs = append(inputs, input{in.GetName(), in.GetDatatype(), in.GetShape(), data})
		}
		m.body, _ = json.Marshal(map[string]any{"inputs": inputs})
	}
	return models
}

func (l leavers) run(t *testing.T, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var left, stayed, kept atomic.Int64
	var clients sync.WaitGroup
	models := leaverModels()
	stays := l.s.client()
	for _, m := range models {
		l.stay(t, stays, m) // before anybody leaves, which is also where some answers come from
		for range l.clients {
			if l.overGRPC {
				clients.Go(func() { l.leaveGRPC(ctx, t, m, &left, &stayed) })
			}
			if l.overHTTP {
				clients.Go(func() { l.leaveHTTP(ctx, t, m, &left, &stayed) })
			}
		}
		clients.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				l.stay(t, stays, m)
				kept.Add(1)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	clients.Wait()
	for _, m := range models {
		l.stay(t, stays, m)
	}
	t.Logf("%d clients of each model, gRPC %v, HTTP %v, %v: %d left, %d were answered before they would have, %d stayed and were answered",
		l.clients, l.overGRPC, l.overHTTP, length, left.Load(), stayed.Load(), kept.Load())
	if left.Load() < 100 || kept.Load() < 10 {
		t.Errorf("%d clients left and %d stayed, which shows little\n%s", left.Load(), kept.Load(), l.s.logged())
	}
}

// stay asks a model over gRPC, and checks the answer. While others use all cores, as 96
// clients do beside a server with the race detector in it, a request may be refused, which
// is an answer: then it asks again. It sends no deadline, for the same reason.
func (l leavers) stay(t *testing.T, c kservepb.GRPCInferenceServiceClient, m *leaverModel) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	patience := time.AfterFunc(time.Minute, cancel)
	defer patience.Stop()
	answer, err := c.ModelInfer(ctx, m.request)
	for status.Code(err) == codes.ResourceExhausted && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		answer, err = c.ModelInfer(ctx, m.request)
	}
	if err != nil {
		t.Errorf("%s: a client that stays gets %v\n%s", m.name, err, l.s.logged())
		return
	}
	got := make([]float32, len(answer.GetRawOutputContents()[0])/4)
	for i := range got {
		got[i] = math.Float32frombits(binary.LittleEndian.Uint32(answer.GetRawOutputContents()[0][4*i:]))
	}
	if m.want == nil {
		m.want = got
	}
	for i := range m.want {
		if len(got) != len(m.want) || math.Abs(float64(got[i]-m.want[i])) > 1e-3 {
			t.Errorf("%s: got %v, want %v", m.name, got, m.want)
			return
		}
	}
}

func (l leavers) leaveGRPC(ctx context.Context, t *testing.T, m *leaverModel, left, stayed *atomic.Int64) {
	c := l.s.client()
	for ctx.Err() == nil && !t.Failed() {
		asked, leave := context.WithCancel(ctx) // no deadline is sent: the server learns of it when the client leaves
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(longestStay))), leave)
		_, err := c.ModelInfer(asked, m.request)
		timer.Stop()
		leave()
		switch status.Code(err) {
		case codes.OK:
			stayed.Add(1)
		case codes.Canceled, codes.DeadlineExceeded:
			left.Add(1)
		case codes.ResourceExhausted: // the queue is full of those who left just now
			time.Sleep(time.Millisecond)
		default:
			t.Errorf("%s over gRPC: %v\n%s", m.name, err, l.s.logged())
		}
	}
}

func (l leavers) leaveHTTP(ctx context.Context, t *testing.T, m *leaverModel, left, stayed *atomic.Int64) {
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for ctx.Err() == nil && !t.Failed() {
		asked, leave := context.WithCancel(ctx)
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(longestStay))), leave)
		code, err := postAndLeave(asked, c, l.s.http+"/v2/models/"+m.name+"/infer", m.body)
		timer.Stop()
		gone := asked.Err() != nil
		leave()
		switch {
		case err == nil && code == http.StatusOK:
			stayed.Add(1)
		case gone:
			left.Add(1)
		case err == nil && code == http.StatusTooManyRequests:
			time.Sleep(time.Millisecond)
		default:
			t.Errorf("%s over HTTP: status %d, %v\n%s", m.name, code, err, l.s.logged())
		}
	}
}

func postAndLeave(ctx context.Context, c *http.Client, url string, body []byte) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, err
}
