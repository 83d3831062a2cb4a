package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	shortWindow   = 64  // arrivals that tell the rate while it changes
	longWindow    = 512 // arrivals that tell it while it does not; a power of two
	minRateChange = 0.35
)

// A rate is how often requests arrive, and how many rows they have.
type rate struct {
	at   [longWindow]batching.Time // of the last arrivals, round and round
	n    int                       // of all arrivals
	rows float64                   // of a request, on average
}

func (r *rate) arrived(now batching.Time, rows int) {
	r.at[r.n%longWindow] = now
	r.n++
	if r.rows == 0 {
		r.rows = float64(rows)
	}
	r.rows += (float64(rows) - r.rows) / shortWindow
}

// of returns requests per nanosecond. It falls while none come.
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
