package evict

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A traffic is requests for models with given rates, of which some fit into memory.
type traffic struct {
	rates    []float64 // requests per second, by model
	slots    int       // models that fit
	load     time.Duration
	duration time.Duration
	guards   bool // false evicts by worth alone, as the control of the rules against thrashing
}

// An outcome is what came of a traffic.
type outcome struct {
	requests, hits, loads, refused int
	loaded                         []int // loads, by model
}

func (o outcome) hitRatio() float64 { return float64(o.hits) / float64(o.requests) }

// arrivals are the next requests, the earliest first.
type arrivals []struct {
	at    time.Time
	model int
}

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a arrivals) Push(any)           {}
func (a arrivals) Pop() any           { return nil }

// run plays Poisson requests in virtual time. A request for a model that is being loaded is
// neither a hit nor a new load.
func (tr traffic) run(seed uint64) (o outcome) {
	random := rand.New(rand.NewPCG(seed, 1))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	gap := func(rate float64) time.Duration {
		return time.Duration(random.ExpFloat64() / rate * float64(time.Second))
	}
	next := make(arrivals, len(tr.rates))
	for i, rate := range tr.rates {
		next[i].at, next[i].model = start.Add(gap(rate)), i
	}
	heap.Init(&next)
	rates := make([]Rate, len(tr.rates))
	ready := make([]time.Time, len(tr.rates)) // when it can answer; zero if it is not in memory
	names, numbers := make([]string, len(tr.rates)), map[string]int{}
	for i := range names {
		names[i] = fmt.Sprintf("m%05d", i)
		numbers[names[i]] = i
	}
	var all []Model // buffer
	o.loaded = make([]int, len(tr.rates))
	for now := next[0].at; now.Sub(start) < tr.duration; now = next[0].at {
		i := next[0].model
		next[0].at = now.Add(gap(tr.rates[i]))
		heap.Fix(&next, 0)
		o.requests++
		rates[i].Add(now, 1)
		if !ready[i].IsZero() {
			if !ready[i].After(now) {
				o.hits++
			}
			continue
		}
		model := func(i int, loaded time.Time) Model {
			return Model{Name: names[i], Bytes: 1, Reload: tr.load, Rate: rates[i].PerSecond(now), Loaded: loaded, InUse: loaded.After(now)}
		}
		all = all[:0]
		for k, at := range ready {
			if !at.IsZero() {
				all = append(all, model(k, at))
			}
		}
		var d Decision
		if tr.guards {
			d = Decide(now, int64(tr.slots), all, model(i, time.Time{}))
		} else if len(all) == tr.slots {
			d.Evict = []string{slices.MinFunc(all, func(a, b Model) int { return cmp.Compare(a.Rate, b.Rate) }).Name}
		}
		if d.Reason != Admitted {
			o.refused++
			continue
		}
		for _, out := range d.Evict {
			ready[numbers[out]] = time.Time{}
		}
		ready[i] = now.Add(tr.load)
		o.loads++
		o.loaded[i]++
	}
	return o
}

// zipf returns rates in proportion to 1/rank, with the given sum.
func zipf(models int, total float64) (rates []float64) {
	sum := 0.0
	for i := range models {
		rates = append(rates, 1/float64(i+1))
		sum += rates[i]
	}
	for i := range rates {
		rates[i] *= total / sum
	}
	return rates
}

// cheLRU returns the hit ratio of an LRU cache by Che's approximation: a model is in the
// cache if it was asked for in the last T, where T is such that the cache is full.
func cheLRU(rates []float64, slots int) float64 {
	full := func(t float64) (n float64) {
		for _, r := range rates {
			n += 1 - math.Exp(-r*t)
		}
		return n
	}
	low, high := 0.0, 1e9
	for range 200 {
		if mid := (low + high) / 2; full(mid) < float64(slots) {
			low = mid
		} else {
			high = mid
		}
	}
	hits, total := 0.0, 0.0
	for _, r := range rates {
		hits += r * (1 - math.Exp(-r*low))
		total += r
	}
	return hits / total
}

func best(rates []float64, slots int) float64 {
	sorted := slices.Sorted(slices.Values(rates))
	slices.Reverse(sorted)
	kept, total := 0.0, 0.0
	for i, r := range sorted {
		total += r
		if i < slots {
			kept += r
		}
	}
	return kept / total
}

func TestHitsAreAtLeastThoseOfLRU(t *testing.T) {
	for _, load := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond} {
		tr := traffic{rates: zipf(1000, 200), slots: 100, load: load, duration: 5 * time.Minute, guards: true}
		o, lru := tr.run(1), cheLRU(tr.rates, tr.slots)
		t.Logf("load %v: hit ratio %.3f, LRU %.3f, best static %.3f; %d of %d refused", load, o.hitRatio(), lru, best(tr.rates, tr.slots), o.refused, o.requests)
		if o.hitRatio() < lru-0.01 {
			t.Errorf("load %v: hit ratio %.3f, want at least that of LRU, %.3f, less a point", load, o.hitRatio(), lru)
		}
	}
}

func TestMoreModelsThanMemoryDoNotThrash(t *testing.T) {
	equal := make([]float64, 200)
	for i := range equal {
		equal[i] = 1
	}
	for name, rates := range map[string][]float64{"equal rates": equal, "Zipf": zipf(200, 200)} {
		t.Run(name, func(t *testing.T) {
			tr := traffic{rates: rates, slots: 20, load: time.Second, duration: 5 * time.Minute, guards: true}
			o := tr.run(2)
			tr.guards = false
			control := tr.run(2)
			want := best(rates, tr.slots)
			t.Logf("goodput %.3f of the 20 best alone; without the rules %.3f; %d loads against %d", o.hitRatio()/want, control.hitRatio()/want, o.loads, control.loads)
			if o.hitRatio() < 0.9*want {
				t.Errorf("goodput is %.3f of the 20 best alone, want at least 0.9", o.hitRatio()/want)
			}
			if control.loads < 10*o.loads || float64(control.loads)*tr.load.Seconds() < tr.duration.Seconds() {
				t.Error("the control does not load all the time, so the test shows nothing")
			}
			served := 0
			for _, loads := range o.loaded[tr.slots:] {
				served += min(1, loads)
			}
			if served < 30 {
				t.Errorf("of the 180 models that do not fit only %d were ever loaded: rare models starve", served)
			}
		})
	}
}
