//go:build e2e && proofs

package e2e

import (
	"runtime"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/bare"
)

// TestProofThroughputIsNearTheBareEngines holds what 64 clients get over gRPC, a row
// each, against what the bare engine does in the setting that is best for it. The
// clients and the bare engine are in the process of the test, the server is not, and
// they share the cores: what the clients use, the server cannot.
func TestProofThroughputIsNearTheBareEngines(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, p := range []struct {
		model, config string
		rows          []int   // sizes of batches to try on the bare engine
		share         float64 // of the bare engine's throughput
	}{
		{"text_recognition", `max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 0 } instance_group [ { count: 2 } ]`, []int{1, 2, 4, 8, 16, 32}, 0.92},
		{"ppocrv4_rec", `max_batch_size: 1 instance_group [ { count: 2 } ]`, []int{1, 2, 4}, 0.88},
		{"wide_mlp", `max_batch_size: 32 dynamic_batching { max_queue_delay_microseconds: 3000 } instance_group [ { count: 3 } ]`, []int{1, 2, 4, 8, 16, 32}, 0.65},
	} {
		t.Run(p.model, func(t *testing.T) {
			file := realModel(t, p.model)
			m := bare.Open(r, modelsDir, p.model)
			defer m.Close()
			results := search(t, m, p.rows)
			best := bare.Best(results)
			t.Logf("the bare engine is best with %v: %.0f rows a second", best.Setting, best.RowsPerSecond)

			s := start(t, onnxRepository(t, map[string]onnxModel{p.model: {file, p.config}}))
			one := choose(3*time.Second, time.Second)
			var used, computed time.Duration
			clients := crowd{
				clients: 64,
				sharing: 6, // as Triton's own clients do
				request: func(n int) *kservepb.ModelInferRequest {
					in, err := m.Inputs(1, uint64(n))
					if err != nil {
						t.Fatal(err)
					}
					return requestOf(p.model, in)
				},
				during: func() {
					cpu, batches := s.usage().cpu, s.batches(p.model)
					time.Sleep(one)
					used += s.usage().cpu - cpu
					for rows, b := range s.batches(p.model) {
						computed += time.Duration(b.count-batches[rows].count) * cpuOf(results, rows)
					}
				},
			}
			room := choose(1, 0.5)
			hold(t, "share of the bare engine's throughput", room*p.share, 1.5, func() float64 {
				alone, err := m.Measure(best.Setting, one)
				if err != nil {
					t.Fatal(err)
				}
				served := clients.run(t, s)
				t.Logf("bare %.0f rows a second, served %.0f, p99 %v", alone.RowsPerSecond, served.perSecond(), served.p99())
				return served.perSecond() / alone.RowsPerSecond
			})
			// The engine's part: the batches that the server counted, each for the time
			// that one of its size took the bare engine.
			inside := computed.Seconds() / used.Seconds()
			t.Logf("share of the server's CPU time that is inside the engine: %.2f, want 0.80 or more", inside)
			if inside < room*0.80 {
				t.Errorf("%.2f of the server's CPU time is inside the engine, want 0.80 or more", inside)
			}
		})
	}
}

// search measures the bare engine in all settings.
func search(t *testing.T, m *bare.Model, rows []int) (results []bare.Result) {
	t.Helper()
	for _, s := range bare.Settings(rows, runtime.NumCPU()) {
		r, err := m.Measure(s, choose(time.Second, 200*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	return results
}

// cpuOf returns what a batch costs that one thread computes while the other cores
// do the same, between the two sizes that were measured.
func cpuOf(results []bare.Result, rows int) time.Duration {
	var low, high bare.Result
	for _, r := range results {
		if r.Threads != 1 || r.Callers != runtime.NumCPU() {
			continue
		}
		if r.Rows <= rows {
			low = r
		}
		if r.Rows >= rows && high.Rows == 0 {
			high = r
		}
	}
	if low.Rows == high.Rows {
		return low.CPU
	}
	return low.CPU + (high.CPU-low.CPU)*time.Duration(rows-low.Rows)/time.Duration(high.Rows-low.Rows)
}
