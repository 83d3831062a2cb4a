package node

import (
	"maps"
	"slices"
	"time"
)

// A Tally is what versions did between two looks at their figures, added up over nodes. The zero
// Tally is empty.
type Tally struct {
	Requests, Failures uint64
	times              map[time.Duration]uint64 // by upper bound
}

// Add adds what happened on a node between before and now.
func (t *Tally) Add(before, now *Figures) {
	if now.beganAfter(before) {
		before = &Figures{}
	}
	t.Requests += now.Requests - before.Requests
	t.Failures += now.Failures - min(now.Failures, before.Failures)
	if t.times == nil {
		t.times = map[time.Duration]uint64{}
	}
	for _, b := range now.Times {
		t.times[b.Most] += b.Count
	}
	for _, b := range before.Times {
		t.times[b.Most] -= b.Count
	}
}

// beganAfter reports whether the version was loaded again since before: then it counts from zero.
func (f *Figures) beganAfter(before *Figures) bool {
	if f.Requests < before.Requests {
		return true
	}
	counts := make(map[time.Duration]uint64, len(f.Times))
	for _, b := range f.Times {
		counts[b.Most] = b.Count
	}
	return slices.ContainsFunc(before.Times, func(b Bucket) bool { return counts[b.Most] < b.Count })
}

// P99 returns the 99th percentile of the times; 0 if there are none.
func (t *Tally) P99() time.Duration {
	total, below := uint64(0), uint64(0)
	for _, n := range t.times {
		total += n
	}
	for _, most := range slices.Sorted(maps.Keys(t.times)) {
		if below += t.times[most]; total > 0 && below*100 >= total*99 {
			return most
		}
	}
	return 0
}

// Above returns the number of times in buckets that begin above the limit.
func (t *Tally) Above(limit time.Duration) (n uint64) {
	for most, count := range t.times {
		if most-most/16 > limit { // a bucket is at most a sixteenth wide
			n += count
		}
	}
	return n
}
