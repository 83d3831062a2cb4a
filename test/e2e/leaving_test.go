//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

var leaving = flag.Duration("leaving", 0, "how long clients leave early, in each of eight settings; 0 means 10s in one")

// longestStay is the longest that a client waits before it leaves.
const longestStay = 20 * time.Millisecond

// TestClientsThatLeaveHarmNobody has clients of an ONNX, a Python and a simulated model
// leave after a random time, while another client of each stays and gets what it asked
// for, during the test and after it.
func TestClientsThatLeaveHarmNobody(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, leavingRepository(t), "--log-verbose=0")
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
	dir := servertest.PythonRepository(t, "", "import time\n"+`
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.004)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy())]) for r in requests]
`)
	model, err := os.ReadFile(filepath.Join(servertest.Root, "internal", "engine", "onnx", "testdata", "spin.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sim/config.pbtxt":   servertest.Config(4*time.Millisecond, "2", "dynamic_batching { }"),
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
	s                  *servertest.Server
	clients            int // of each model and protocol
	overHTTP, overGRPC bool
}

// A leaverModel is one that they ask.
type leaverModel struct {
	name    string
	request *client.Request
	want    []float32 // nil until the first answer, where that is what later ones are held against
}

func leaverModels() []*leaverModel {
	const steps = 1000 // some milliseconds
	return []*leaverModel{
		{name: "sim", request: servertest.SmallRequest("sim", 1)},
		{name: "m", request: servertest.SmallRequest("m", 1), want: []float32{0, 0, 0, 0}},
		{name: "spin", request: &client.Request{Model: "spin", Inputs: []client.Tensor{
			{Name: "x", Type: tensor.FP32, Shape: []int64{1, 64}, Data: servertest.Floats(make([]float32, 64)...)},
			{Name: "steps", Type: tensor.Int64, Shape: []int64{1, 1}, Data: binary.LittleEndian.AppendUint64(nil, steps)},
		}}},
	}
}

func (l leavers) run(t *testing.T, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, which clients would send to the server
	defer cancel()
	defer time.AfterFunc(length, cancel).Stop()
	var left, stayed, kept atomic.Int64
	var clients sync.WaitGroup
	models := leaverModels()
	stays := l.s.Client()
	for _, m := range models {
		l.stay(t, stays, m) // before anybody leaves, which is also where some answers come from
		for range l.clients {
			var leavers []*client.Client // each with connections of its own
			if l.overGRPC {
				leavers = append(leavers, l.s.Client())
			}
			if l.overHTTP {
				leavers = append(leavers, l.s.Closing(client.NewHTTP(l.s.HTTP, client.Options{})))
			}
			for _, c := range leavers {
				clients.Go(func() { l.leave(ctx, t, c, m, &left, &stayed) })
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
		t.Errorf("%d clients left and %d stayed, which shows little\n%s", left.Load(), kept.Load(), l.s.Log())
	}
}

// stay asks a model over gRPC, and checks the answer. While others use all cores, as 96
// clients do beside a server with the race detector in it, a request may be refused, which
// is an answer: then it asks again. It sends no deadline, for the same reason.
func (l leavers) stay(t *testing.T, c *client.Client, m *leaverModel) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	patience := time.AfterFunc(time.Minute, cancel)
	defer patience.Stop()
	answer, err := c.Infer(ctx, m.request)
	for errors.Is(err, client.Overloaded) && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		answer, err = c.Infer(ctx, m.request)
	}
	if err != nil {
		t.Errorf("%s: a client that stays gets %v\n%s", m.name, err, l.s.Log())
		return
	}
	got := make([]float32, len(answer.Outputs[0].Data)/4)
	for i := range got {
		got[i] = math.Float32frombits(binary.LittleEndian.Uint32(answer.Outputs[0].Data[4*i:]))
	}
	if m.want == nil {
		m.want = got
	}
	for i := range m.want {
		if len(got) != len(m.want) || !(math.Abs(float64(got[i]-m.want[i])) <= 1e-3) {
			t.Errorf("%s: got %v, want %v", m.name, got, m.want)
			return
		}
	}
}

// leave asks a model again and again, and leaves after a random time.
func (l leavers) leave(ctx context.Context, t *testing.T, c *client.Client, m *leaverModel, left, stayed *atomic.Int64) {
	for ctx.Err() == nil && !t.Failed() {
		asked, leave := context.WithCancel(ctx) // no deadline is sent: the server learns of it when the client leaves
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(longestStay))), leave)
		_, err := c.Infer(asked, m.request)
		timer.Stop()
		gone := asked.Err() != nil
		leave()
		switch {
		case err == nil:
			stayed.Add(1)
		case gone:
			left.Add(1)
		case errors.Is(err, client.Overloaded): // the queue is full of those who left just now
			time.Sleep(time.Millisecond)
		default:
			t.Errorf("%s: %v\n%s", m.name, err, l.s.Log())
		}
	}
}
