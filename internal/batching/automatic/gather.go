package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// holdForReturns decides how long to wait for the clients that were just answered: all of
// them, or as many as fill the batch. If one of them is missing, it needs a batch of its
// own and the wait saved nothing, so the decision uses the probability that all have
// returned. It returns the end of the wait, and the number of waiting requests that ends
// it early.
func (p *Policy) holdForReturns(s *situation) (until batching.Time, full int) {
	if p.hold.rule == gather && p.waiting < p.hold.full && s.now < p.hold.until {
		return p.hold.until, p.hold.full // only some clients have returned; the decision stands
	}
	var back awaited
	p.returns.fillAwaited(s.now, p.unit, s.shape, &back)
	if back.requests < 0.5 {
		return 0, 0
	}
	expected := max(1, int(back.requests+0.5))
	need := min(expected, (s.target-s.rows)/p.rowsPerRequest())
	if need < 1 {
		return 0, 0 // no further request fits
	}
	moreRows := need * p.rowsPerRequest()
	saved := p.saved(s.rows, moreRows)
	if need == 1 {
		saved *= p.rate.fits(s.target - s.rows) // of several requests, the average counts
	}
	best, bestWait := 0.0, 0.0
	waits, at, missing := 0.0, 0.0, 1.0
	for k := binOf(0.02 * saved / p.unit); k < bins; k++ {
		w := edges[k+1] * p.unit
		if w+s.waited > saved {
			break
		}
		all := atLeast(need, expected, back.shareWithin(&p.returns, edges[k+1]))
		waits += (w - at) * (missing + 1 - all) / 2
		at, missing = w, 1-all
		if value := saved*all - waits; value > best {
			best, bestWait = value, w
		}
	}
	return s.now + batching.Time(math.Ceil(bestWait)), p.waiting + need
}
