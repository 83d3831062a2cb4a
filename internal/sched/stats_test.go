package sched

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
)

// once returns what one run of the given number of rows adds.
func once(rows int, took time.Duration) stats.Size {
	return stats.Size{Rows: rows, Input: stats.Sum{Count: 1}, Infer: stats.Sum{Count: 1, Nanos: uint64(took)}, Output: stats.Sum{Count: 1}}
}

// within returns a histogram of these durations.
func within(all ...time.Duration) (d stats.DurationHistogram) {
	for _, t := range all {
		i := 0
		for i < stats.NumBounds && t > stats.BucketBound(i) {
			i++
		}
		d.Buckets[i]++
		d.Nanos += uint64(t)
	}
	return d
}

func closed(reasons ...batching.Reason) (n [batching.NumReasons]uint64) {
	for _, r := range reasons {
		n[r]++
	}
	return n
}

func TestWhatRunsIsCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := stats.New(8)
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Stats: counters, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, request("a", 8), 10*ms)
		b.submit(1*ms, request("b", 2), 20*ms)
		b.submit(2*ms, request("c", 3), 20*ms)
		ctx, cancel := context.WithTimeout(t.Context(), 15*ms)
		defer cancel()
		b.submitContext(ctx, 3*ms, request("leaves", 1), 15*ms, infer.Deadline)
		time.Sleep(4 * ms)
		if got := b.Waiting(); got != 3 {
			t.Errorf("%d requests wait, want 3", got)
		}
		b.finish()
		got := counters.Snapshot()
		if want := []stats.Size{once(6, 10*ms), once(8, 10*ms)}; got.Runs != 2 || !slices.Equal(got.Sizes, want) {
			t.Errorf("%d runs, %+v, want 2, %+v", got.Runs, got.Sizes, want)
		}
		if want := within(0, 9*ms, 8*ms, 7*ms); got.QueueTimes != want {
			t.Errorf("waited %v, want %v", got.QueueTimes, want)
		}
		if want := within(10*ms, 10*ms); got.EngineTimes != want {
			t.Errorf("the engine took %v, want %v", got.EngineTimes, want)
		}
		if want := closed(batching.Full, batching.Idle); got.CloseReasons != want {
			t.Errorf("closed for %v, want %v", got.CloseReasons, want)
		}
		if want := []uint64{0, 0, 0, 2}; !slices.Equal(got.BatchSizes.Buckets, want) || got.BatchSizes.Total != 14 {
			t.Errorf("batch sizes %v with %d rows, want %v with 14", got.BatchSizes.Buckets, got.BatchSizes.Total, want)
		}
		if last := got.LastRun.Sub(b.began); last != 20*ms {
			t.Errorf("the last run ended at %v, want 20ms", last)
		}
	})
}

func TestABatchThatIsCutCountsOnceAndEachOfItsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := stats.New(8)
		eng := &enginetest.Echo{Fails: poisoned, Takes: constant(ms)}
		b := start(t, eng, 1, Options{
			Bisect: true, Stats: counters,
			Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8, MaxDelay: 5 * ms}},
		})
		req := request("good", 3)
		b.calls.Go(func() {
			defer req.Memory.Release()
			var resp infer.Response
			if err := b.Submit(t.Context(), req, &resp); err != nil {
				t.Error(err)
			}
			at := func(u time.Time) time.Duration { return u.Sub(b.began) }
			// Both run from 5ms to 6ms, "good" by itself until 7ms.
			if x := resp.Times; at(x.Queued) != 0 || at(x.Taken) != 5*ms || at(x.RunStarted) != 5*ms || at(x.RunEnded) != 7*ms || at(x.Split) != 7*ms {
				t.Errorf("the request's times are %+v", x)
			}
			resp.Release()
		})
		b.submit(1*ms, request("bad", 1), 8*ms, infer.Internal)
		b.finish()
		got := counters.Snapshot()
		if want := []stats.Size{once(1, ms), once(3, ms), once(4, ms)}; got.Runs != 3 || !slices.Equal(got.Sizes, want) {
			t.Errorf("%d runs, %+v, want 3, %+v", got.Runs, got.Sizes, want)
		}
		if got.CloseReasons != closed(batching.Waited) || got.BatchSizes.Total != 4 || got.QueueTimes != within(5*ms, 4*ms) || got.EngineTimes != within(ms, ms, ms) {
			t.Errorf("closed %v with %d rows, waited %v, took %v; want one batch of 4", got.CloseReasons, got.BatchSizes.Total, got.QueueTimes, got.EngineTimes)
		}
	})
}

func TestWarmingUpIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := stats.New(8)
		b := start(t, &enginetest.Echo{Takes: constant(ms)}, 2, Options{Stats: counters, Batching: batching.Config{MaxRows: 8}})
		req := request("warm", 8)
		if err := b.WarmUp(t.Context(), req, 3); err != nil {
			t.Error(err)
		}
		req.Memory.Release()
		b.finish()
		if got := counters.Snapshot(); got.Runs != 0 || got.Sizes != nil {
			t.Errorf("counted %+v, want nothing", got)
		}
	})
}

func TestViewersSeeWhatRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := stats.New(8)
		watch := counters.Watch()
		defer watch.Close()
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		began := time.Now()
		b := start(t, eng, 1, Options{Stats: counters, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, request("a", 8), 10*ms)
		b.submit(1*ms, request("b", 2), 20*ms)
		b.submit(2*ms, request("c", 3), 20*ms)
		b.finish()
		batches, missed := watch.Next(10)
		at := func(t time.Time) time.Duration { return t.Sub(began) }
		if len(batches) != 2 || missed != 0 {
			t.Fatalf("%d batches, want 2", len(batches))
		}
		first, second := batches[0], batches[1]
		if first.CloseReason != batching.Full || first.Rows != 8 || len(first.Requests) != 1 || at(first.Taken) != 0 || at(first.RunEnded) != 10*ms {
			t.Errorf("the first batch is %+v", first)
		}
		if second.CloseReason != batching.Idle || second.Instance != 1 || second.Rows != 5 || at(second.Taken) != 10*ms || at(second.RunStarted) != 10*ms || at(second.Split) != 20*ms {
			t.Errorf("the second batch is %+v", second)
		}
		if r := second.Requests; len(r) != 2 || at(r[0].Queued) != 1*ms || r[0].Rows != 2 || at(r[1].Queued) != 2*ms || r[1].Rows != 3 {
			t.Errorf("its requests are %+v", r)
		}
	})
}
