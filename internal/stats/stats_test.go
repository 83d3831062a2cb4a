package stats

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
)

const ms = time.Millisecond

// timeline returns a timeline whose steps took the given times.
func timeline(queue, input, run, output time.Duration) *infer.Timeline {
	t := &infer.Timeline{Queued: time.Now()}
	t.Taken = t.Queued.Add(queue)
	t.RunStarted = t.Taken.Add(input)
	t.RunEnded = t.RunStarted.Add(run)
	t.Split = t.RunEnded.Add(output)
	return t
}

func sum(count uint64, d time.Duration) Sum { return Sum{Count: count, Nanos: uint64(d)} }

func TestRequestsAreCountedWithTheirTimes(t *testing.T) {
	c := New(8)
	c.Objective = 15 * ms
	c.Succeeded(2, 12*ms, timeline(1*ms, 2*ms, 4*ms, 3*ms))
	c.Succeeded(3, 20*ms, timeline(10*ms, 0, 4*ms, 0))
	c.Failed(infer.Overloaded, ms)
	c.Failed(infer.Overloaded, 2*ms)
	c.Failed(infer.Cancelled, 5*ms)
	got := c.Snapshot()
	if got.Late != 1 || got.Objective != 15*ms {
		t.Errorf("%d are late, want the one that took longer than 15ms", got.Late)
	}
	if got.Success != sum(2, 32*ms) || got.Queue != sum(2, 11*ms) || got.Input != sum(2, 2*ms) || got.Infer != sum(2, 8*ms) || got.Output != sum(2, 3*ms) || got.Rows != 5 {
		t.Errorf("of successes there are %+v", got)
	}
	want := [infer.NumCodes]uint64{infer.Overloaded: 2, infer.Cancelled: 1}
	if got.Fail != sum(3, 8*ms) || got.Failed != want {
		t.Errorf("of failures there are %+v, %v", got.Fail, got.Failed)
	}
	if got.Runs != 0 || got.Sizes != nil || !got.LastRun.IsZero() {
		t.Errorf("nothing ran, but there is %+v", got)
	}
}

func TestStepsOfCalibrationAreNoRuns(t *testing.T) {
	c := New(8)
	c.CalibrationStep()
	if got := c.Snapshot(); got.CalibrationSteps != 1 || got.Runs != 0 {
		t.Errorf("%d steps and %d runs, want 1 and 0", got.CalibrationSteps, got.Runs)
	}
}

func TestRestartsAreCounted(t *testing.T) {
	c := New(8)
	c.Restarted()
	c.Restarted()
	if got := c.Snapshot(); got.Restarts != 2 {
		t.Errorf("%d restarts, want 2", got.Restarts)
	}
}

func TestADurationIsInTheBucketWhoseBoundItDoesNotExceed(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want int
	}{
		{0, 0},
		{50 * time.Microsecond, 0},
		{50*time.Microsecond + 1, 1},
		{100 * time.Microsecond, 1},
		{100*time.Microsecond + 1, 2},
		{BucketBound(NumBounds - 1), NumBounds - 1},
		{BucketBound(NumBounds-1) + 1, NumBounds},
		{100 * time.Hour, NumBounds},
	} {
		var d DurationHistogram
		d.add(tt.d)
		if got := slices.Index(d.Buckets[:], 1); got != tt.want || d.Nanos != uint64(tt.d) {
			t.Errorf("%v is in bucket %d with %dns, want %d", tt.d, got, d.Nanos, tt.want)
		}
	}
	if last := BucketBound(NumBounds - 1); last != 52428800*time.Microsecond {
		t.Errorf("the last bound is %v", last)
	}
}

func TestTheLastBucketOfBatchSizesHasTheLargest(t *testing.T) {
	for maxRows, want := range map[int][]uint64{
		0: {1}, // a model without a batch dimension, whose batches count as one row
		1: {1},
		4: {1, 1, 2},
		6: {1, 1, 2, 2},
	} {
		c := New(maxRows)
		for rows := range max(maxRows, 1) {
			c.Ran(&Run{Rows: rows + 1})
		}
		if got := c.Snapshot().BatchSizes.Buckets; !slices.Equal(got, want) {
			t.Errorf("up to %d rows: %v, want %v", maxRows, got, want)
		}
	}
}

func TestASnapshotDoesNotChange(t *testing.T) {
	c := New(4)
	c.Ran(&Run{Rows: 4, Infer: ms, CloseReason: batching.Full})
	before := c.Snapshot()
	c.Ran(&Run{Rows: 4, Infer: ms, CloseReason: batching.Full})
	if before.Runs != 1 || before.BatchSizes.Buckets[2] != 1 || before.Sizes[0].Infer != sum(1, ms) {
		t.Errorf("the snapshot changed to %+v", before)
	}
}

func TestCountingDoesNotAllocate(t *testing.T) {
	c := New(8)
	r := &Run{Rows: 3, Infer: ms, QueueTimes: []time.Duration{ms, ms}}
	times := timeline(ms, ms, ms, ms)
	allocs := testing.AllocsPerRun(100, func() {
		c.Ran(r)
		c.Succeeded(3, 5*ms, times)
		c.Failed(infer.Deadline, ms)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func BenchmarkCounting(b *testing.B) {
	b.Run("request", func(b *testing.B) {
		c := New(8)
		b.RunParallel(func(p *testing.PB) {
			times := timeline(ms, ms, ms, ms)
			for p.Next() {
				c.Succeeded(1, 5*ms, times)
			}
		})
	})
	b.Run("run", func(b *testing.B) {
		c := New(8)
		r := &Run{Rows: 3, Infer: ms, QueueTimes: []time.Duration{ms}}
		for b.Loop() {
			c.Ran(r)
		}
	})
}
