package stats

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

func TestABucketOfLatenciesIsNarrow(t *testing.T) {
	for d := 20 * time.Microsecond; d < time.Minute; d += d/50 + 1 {
		b := latencyBucket(d)
		low, high := latencyBound(b-1), latencyBound(b)
		if d < low || d >= high {
			t.Fatalf("%v is in the bucket from %v to %v", d, low, high)
		}
		if high-low > low/16 {
			t.Fatalf("the bucket from %v to %v is too wide", low, high)
		}
	}
	if got := latencyBucket(time.Hour); got != latencyBuckets-1 {
		t.Errorf("an hour is in bucket %d", got)
	}
}

func TestLatenciesAreCountedOnceSomeoneAsks(t *testing.T) {
	c := New(1)
	c.Succeeded(1, time.Millisecond, &infer.Timeline{})
	c.Misshapen()
	c.Unavailable()
	if all, misshapen, unavailable := c.Latencies(); len(all) != 0 || misshapen != 0 || unavailable != 0 || !c.Compared() {
		t.Errorf("%v, %d, %d before someone asked", all, misshapen, unavailable)
	}
	c.Succeeded(1, time.Millisecond, &infer.Timeline{})
	c.CacheHit(time.Millisecond, 0)
	c.Misshapen()
	c.Unavailable()
	c.Unavailable()
	if all, misshapen, unavailable := c.Latencies(); len(all) != 1 || all[0].Count != 2 || misshapen != 1 || unavailable != 2 {
		t.Errorf("%v, %d, %d", all, misshapen, unavailable)
	}
}
