package sched

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// costs are the ways of queueing whose price is held.
var costs = map[string]func() batching.Config{
	"plain": func() batching.Config { return batching.Config{MaxRows: 64, Policy: batching.Triton{MaxRows: 64}} },
	"levels": func() batching.Config {
		return batching.Config{
			MaxRows: 64, Policy: batching.Triton{MaxRows: 64},
			Levels: []batching.Level{{Timeout: time.Hour}, {Timeout: 2 * time.Hour, AllowOverride: true, MaxQueue: 10000}}, DefaultLevel: 2,
		}
	},
	"automatic": func() batching.Config {
		return batching.Config{MaxRows: 64, Policy: automatic.New(automatic.Options{MaxRows: 64, Instances: 1})}
	},
}

func startNoOp(tb testing.TB, cfg batching.Config) *Scheduler {
	p := pacer.New()
	s := New(open(tb, &enginetest.Echo{NoOp: true}, 1), Options{Pacer: p, Batching: cfg, Stats: stats.New(cfg.MaxRows)})
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		p.Close()
	})
	return s
}

func smallRequest() *infer.Request {
	in := tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 4}, Data: make([]byte, 16)}
	return &infer.Request{Rows: 1, Inputs: []tensor.Tensor{in}}
}

// run has the given number of callers share n requests.
func run(tb testing.TB, s *Scheduler, callers, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range callers {
		wg.Go(func() {
			req := smallRequest()
			req.Priority = uint64(i % 3)
			var resp infer.Response
			for left.Add(-1) >= 0 {
				if err := s.Submit(ctx, req, &resp); err != nil {
					tb.Error(err)
					return
				}
				resp.Release()
			}
		})
	}
	wg.Wait()
}

func BenchmarkSubmit(b *testing.B) {
	for name, cfg := range costs {
		for _, callers := range []int{1, 2, 16, 64, 512, 4096} {
			b.Run(fmt.Sprintf("%s/%d", name, callers), func(b *testing.B) {
				s := startNoOp(b, cfg())
				run(b, s, callers, 10*callers)
				b.ReportAllocs()
				b.ResetTimer()
				run(b, s, callers, b.N)
			})
		}
	}
}

// BenchmarkAutomatic measures how much more a request costs under the automatic policy than
// under Triton's rule, in CPU time of the process, so that waiting does not count. Both
// run in turn, and the result is the median of the differences.
func BenchmarkAutomatic(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 512} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			rule, policy := startNoOp(b, costs["plain"]()), startNoOp(b, costs["automatic"]())
			const turns = 15
			n := max(b.N/turns, 10*callers)
			cost := func(s *Scheduler) float64 {
				before := processCPU(b)
				run(b, s, callers, n)
				return float64(processCPU(b)-before) / float64(n)
			}
			cost(rule)
			cost(policy)
			var more []float64
			b.ResetTimer()
			for range turns {
				r := cost(rule)
				more = append(more, cost(policy)-r)
			}
			slices.Sort(more)
			b.ReportMetric(more[turns/2], "more-ns/request")
		})
	}
}

func processCPU(tb testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
