package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	shortWindow   = 64   // arrivals that determine the rate while it changes
	longWindow    = 512  // arrivals that determine it otherwise; a power of two
	minRateChange = 0.35 // relative difference at which the rate counts as changing
)

// A rate measures how often requests arrive, and how many rows they have.
type rate struct {
	at      [longWindow]batching.Time // ring buffer of the last arrivals
	n       int                       // number of arrivals
	rows    float64                   // average rows of a request
	largest float64                   // rows of the largest requests; falls to the average if none come
}

func (r *rate) arrived(now batching.Time, rows int) {
	r.at[r.n%longWindow] = now
	r.n++
	if r.rows == 0 {
		r.rows = float64(rows)
	}
	r.rows += (float64(rows) - r.rows) / shortWindow
	r.largest = max(float64(rows), r.largest-(r.largest-r.rows)/shortWindow)
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
