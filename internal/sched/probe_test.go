package sched

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// try runs a probe at the given time, and checks its result and when it returns.
func (b *bench) try(at time.Duration, instances, runs int, ends time.Duration, want ...time.Duration) {
	b.calls.Go(func() {
		req := request("try", 2)
		defer req.Memory.Release()
		time.Sleep(at - time.Since(b.began))
		took, err := b.Probe(context.Background(), req, instances, runs)
		if now := time.Since(b.began); err != nil || !slices.Equal(took, want) || now != ends {
			b.t.Errorf("a probe returned %v, %v after %v; want %v after %v", took, err, now, want, ends)
		}
	})
}

func TestATrialTellsHowLongEachRunTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters, gate := stats.New(8), &IdleGate{}
		eng := &enginetest.Echo{Takes: constant(3 * ms)}
		b := start(t, eng, 2, Options{IdleGate: gate, Stats: counters, Batching: batching.Config{MaxRows: 8}})
		b.try(0, 1, 3, 9*ms, 3*ms, 3*ms, 3*ms)
		b.calls.Wait()
		b.try(20*ms, 2, 2, 26*ms, 3*ms, 3*ms, 3*ms, 3*ms)
		b.finish()
		if got := counters.Snapshot(); got.Runs != 0 || len(eng.Batches()) != 7 {
			t.Errorf("%d runs were counted, and %v were run", got.Runs, eng.Batches())
		}
	})
}

func TestATrialMakesWayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &IdleGate{}
		slow := start(t, &enginetest.Echo{Takes: constant(100 * ms)}, 1, Options{IdleGate: gate})
		other := start(t, &enginetest.Echo{Takes: constant(5 * ms)}, 1, Options{IdleGate: gate})

		slow.try(0, 1, 5, 30*ms)
		slow.submit(30*ms, request("own", 1), 130*ms)
		slow.try(50*ms, 1, 5, 50*ms) // the model is not idle
		slow.calls.Wait()

		slow.try(200*ms, 1, 5, 220*ms)
		other.submit(220*ms, request("else", 1), 225*ms)
		other.calls.Wait()
		other.finish()
		slow.finish()
	})
}

func TestATrialEndsWithItsSchedulerAndItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{Takes: constant(100 * ms)}, 1, Options{IdleGate: &IdleGate{}})
		req := request("try", 1)
		defer req.Memory.Release()
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		if _, err := b.Probe(ctx, req, 1, 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(b.began) != 10*ms {
			t.Errorf("%v after %v", err, time.Since(b.began))
		}
		b.try(20*ms, 1, 5, 40*ms)
		time.Sleep(30 * ms)
		if err := b.Close(); err != nil || time.Since(b.began) != 40*ms {
			t.Errorf("closed with %v after %v", err, time.Since(b.began))
		}
		b.calls.Wait()
	})
}

func TestATrialThatFailsSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{Fails: func([]tensor.Tensor) error { return errors.New("cold") }}, 2, Options{IdleGate: &IdleGate{}})
		req := request("try", 1)
		if _, err := b.Probe(t.Context(), req, 2, 3); infer.CodeOf(err) != infer.Internal {
			t.Errorf("%v", err)
		}
		req.Memory.Release()
		b.finish()
	})
}

func TestSpareTimeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &IdleGate{}
		b := start(t, &enginetest.Echo{Takes: constant(70 * ms)}, 1, Options{IdleGate: gate})
		b.submit(20*ms, request("a", 1), 90*ms)
		// It is looked each 50ms: at 50 and 100 something had run since.
		if err := gate.Await(t.Context(), 50*ms); err != nil || time.Since(b.began) != 150*ms {
			t.Errorf("%v after %v", err, time.Since(b.began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := gate.Await(ctx, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		b.finish()
	})
}

func TestAPolicyIsToldWhatWasMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := automatic.New(automatic.Options{MaxRows: 8})
		b := start(t, &enginetest.Echo{}, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: policy}})
		b.Calibrated(batching.Profile{Sizes: []batching.Timing{{Rows: 1, Median: 7 * ms, P95: 8 * ms, Runs: 5}}})
		if got := policy.Explain().Curve; len(got) == 0 || got[0].Rows != 1 || got[0].Expected != 7*ms {
			t.Errorf("times %+v, want %v for a row", got, 7*ms)
		}
		b.finish()
	})
}
