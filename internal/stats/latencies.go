package stats

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latencies counts the times of successful requests more finely than [DurationHistogram]: a
// bucket is at most a sixteenth wider than its lower bound, so that two versions of a model can
// be compared. It exists for versions that someone has asked about; others pay a check of a
// pointer.
type latencies struct {
	buckets     [latencyBuckets]atomic.Uint64
	misshapen   atomic.Uint64
	unavailable atomic.Uint64
}

const (
	subBuckets = 16 // of each power of two microseconds
	// The last bucket has everything from 65 s.
	latencyBuckets = 23 * subBuckets
)

// A Latency is a number of requests, and the time that none of them exceeded.
type Latency struct {
	Most  time.Duration
	Count uint64
}

func (c *Counters) countLatency(d time.Duration) {
	if l := c.latencies.Load(); l != nil {
		l.buckets[latencyBucket(d)].Add(1)
	}
}

// latencyBucket returns the bucket of a time: one per microsecond up to 16, and then sixteen for
// each power of two.
func latencyBucket(d time.Duration) int {
	us := uint64(max(d, 0) / time.Microsecond)
	shift := max(0, bits.Len64(us)-5)
	return min(shift*subBuckets+int(us>>shift), latencyBuckets-1)
}

// latencyBound returns the time that all durations of a bucket are below.
func latencyBound(bucket int) time.Duration {
	if bucket < subBuckets {
		return time.Duration(bucket+1) * time.Microsecond
	}
	shift := bucket/subBuckets - 1
	return time.Duration(bucket%subBuckets+subBuckets+1) << shift * time.Microsecond
}

// Compared reports whether someone has asked for latencies, so that it is worth to look at
// responses more closely.
func (c *Counters) Compared() bool { return c.latencies.Load() != nil }

// Misshapen counts a successful request with outputs that the configuration does not describe,
// if someone has asked for latencies.
func (c *Counters) Misshapen() {
	if l := c.latencies.Load(); l != nil {
		l.misshapen.Add(1)
	}
}

// Unavailable counts a request that failed with [infer.Unavailable], and the version may be the
// reason, if someone has asked for latencies.
func (c *Counters) Unavailable() {
	if l := c.latencies.Load(); l != nil {
		l.unavailable.Add(1)
	}
}

// Latencies returns the times of successful requests since it was first called, ascending,
// without empty buckets, how many of the requests were misshapen, and how many others were
// unavailable.
func (c *Counters) Latencies() (all []Latency, misshapen, unavailable uint64) {
	l := c.latencies.Load()
	if l == nil {
		c.latencies.CompareAndSwap(nil, &latencies{})
		return nil, 0, 0
	}
	for i := range l.buckets {
		if n := l.buckets[i].Load(); n > 0 {
			all = append(all, Latency{latencyBound(i), n})
		}
	}
	return all, l.misshapen.Load(), l.unavailable.Load()
}
