package bench

import (
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
)

// A Schedule is an endless ascending sequence of times at which requests are due, counted
// from the start of the load.
type Schedule = iter.Seq[time.Duration]

// constant returns a schedule with the given rate in req/s, at equal intervals.
func constant(rate float64) Schedule {
	return func(yield func(time.Duration) bool) {
		for n := 0; ; n++ {
			// Multiply instead of adding intervals, to avoid accumulated rounding errors.
			if !yield(seconds(float64(n) / rate)) {
				return
			}
		}
	}
}

// Poisson returns a schedule with the given mean rate in req/s and random intervals, as many
// independent clients produce it. The same seed gives the same schedule.
func Poisson(rate float64, seed uint64) Schedule {
	return func(yield func(time.Duration) bool) {
		chance := rand.New(rand.NewPCG(seed, 0))
		for at := 0.0; ; {
			at += chance.ExpFloat64() / rate
			if !yield(seconds(at)) {
				return
			}
		}
	}
}

// bursts returns a schedule in which size requests are due at each time of s.
func bursts(s Schedule, size int) Schedule {
	return func(yield func(time.Duration) bool) {
		for at := range s {
			for range size {
				if !yield(at) {
					return
				}
			}
		}
	}
}

// repeating returns a schedule that repeats the given intervals, at least one of which must
// be above zero.
func repeating(intervals []time.Duration) Schedule {
	return func(yield func(time.Duration) bool) {
		for at := time.Duration(0); ; {
			for _, d := range intervals {
				if !yield(at) {
					return
				}
				at += d
			}
		}
	}
}

// A Planned request has a due time after the start of the load.
type Planned struct {
	At      time.Duration
	Request int // index of the prepared request
}

// A Plan is requests sorted by due time.
type Plan = iter.Seq[Planned]

// A Kind is the properties of a recorded request.
type Kind struct {
	Rows     int
	Priority uint64
}

// Replay returns a plan that sends requests as they were recorded, and the kinds of requests
// in it. The plan cycles through the prepared requests of each kind, which are numbered one
// kind after the other. Time zero of the plan is zero of the recording.
func Replay(recorded []arrivals.Arrival, zero time.Duration, each int) ([]Planned, []Kind) {
	var plan []Planned
	var kinds []Kind
	for n, a := range recorded {
		kind := Kind{a.Rows, a.Priority}
		k := slices.Index(kinds, kind)
		if k < 0 {
			k = len(kinds)
			kinds = append(kinds, kind)
		}
		plan = append(plan, Planned{a.At - zero, k*each + n%each})
	}
	return plan, kinds
}

// planned returns the mean rate of a plan in req/s.
func planned(plan []Planned) float64 {
	if len(plan) == 0 {
		return 0
	}
	span := plan[len(plan)-1].At - plan[0].At
	if span <= 0 {
		return float64(len(plan))
	}
	return float64(len(plan)-1) / span.Seconds()
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
