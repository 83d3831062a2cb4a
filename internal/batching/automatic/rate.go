package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

const (
	shortWindow   = 64   // arrivals that determine the rate while it changes
	longWindow    = 512  // arrivals that determine it otherwise; a power of two
	minRateChange = 0.35 // relative difference at which the rate counts as changing
)

// A rate measures how often requests arrive, and how many rows they have.
type rate struct {
	at       [longWindow]batching.Time // ring buffer of the last arrivals
	n        int                       // number of arrivals
	rows     float64                   // average rows of a request
	squares  float64                   // average of their squares
	largest  float64                   // rows of the largest requests; falls to the average if none come
	smallest float64                   // rows of the smallest requests; rises to the average if none come
}

func (r *rate) arrived(now batching.Time, rows int) {
	r.at[r.n%longWindow] = now
	r.n++
	one := float64(rows)
	if r.rows == 0 {
		r.rows, r.squares, r.smallest = one, one*one, one
	}
	r.rows += (one - r.rows) / shortWindow
	r.squares += (one*one - r.squares) / shortWindow
	r.largest = max(one, r.largest-(r.largest-r.rows)/shortWindow)
	r.smallest = min(one, r.smallest+(r.rows-r.smallest)/shortWindow)
}

// alike reports whether nearly all requests have the same number of rows.
func (r *rate) alike() bool { return r.squares-r.rows*r.rows < r.rows*r.rows/16 }

// possible reports whether whole requests make up a batch of the given number of rows.
func (r *rate) possible(rows int) bool {
	switch smallest := rounded(r.smallest); {
	case r.n == 0:
		return true
	case smallest == rounded(r.largest):
		return rows%smallest == 0
	default:
		return rows >= smallest
	}
}

// fill returns how many rows of a batch requests fill on average: whole ones, if all have one size.
// Otherwise the first one that does not fit closes the batch. That is often a large one, and renewal
// theory says how many rows it leaves empty.
func (r *rate) fill(rows int) float64 {
	if r.alike() {
		return r.rows * max(1, math.Floor(float64(rows)/r.rows+0.1))
	}
	variance := r.squares - r.rows*r.rows
	return max(r.rows, float64(rows)-min(variance/r.rows, r.squares/(2*r.rows)-0.5))
}

// fits returns the share of requests that have at most the given number of rows, as if all had one
// row or as many as the largest.
func (r *rate) fits(rows int) float64 {
	if float64(rows)+0.5 >= r.largest {
		return 1
	}
	return 1 - (r.rows-1)/(r.largest-1)
}

// current returns the rate in requests per nanosecond. It falls while no requests arrive.
func (r *rate) current(now batching.Time) float64 {
	fast, slow := r.over(now, shortWindow), r.over(now, longWindow)
	if fast > (1+minRateChange)*slow || fast < (1-minRateChange)*slow {
		return fast
	}
	return slow
}

func (r *rate) over(now batching.Time, n int) float64 {
	n = min(n, r.n)
	if n < 2 {
		return 0
	}
	span := now - r.at[(r.n-n)%longWindow]
	if span <= 0 {
		return 0
	}
	return float64(n) / float64(span)
}
