package bench

import (
	"iter"
	"math/rand/v2"
	"time"
)

// A Schedule says when requests are due, counted from the begin of the load, in
// ascending order and without end.
type Schedule = iter.Seq[time.Duration]

// Constant returns the schedule of so many requests a second, at equal distances.
func Constant(rate float64) Schedule {
	return func(yield func(time.Duration) bool) {
		for n := 0; ; n++ {
			// Not a sum of distances, whose rounding would add up.
			if !yield(seconds(float64(n) / rate)) {
				return
			}
		}
	}
}

// Poisson returns a schedule of so many requests a second on average, as many
// clients send them that know nothing of each other. The same seed gives the same
// schedule.
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

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
