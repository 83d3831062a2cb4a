package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// holdForBurst waits for the next request if one is imminent, and as long as the
// batch that it saves allows. Half of what is saved counts: the wait delays those
// that are here for certain, and what it saves helps those that come later.
func (p *Policy) holdForBurst(s *situation) batching.Time {
	saved := p.saved(s.rows, p.oneMore())
	if saved <= 0 || s.waited >= saved/2 {
		return 0
	}
	wait := p.gaps.wait(s.now, p.unit, p.rate.of(s.now), saved/2, float64(s.items), min(saved/4, saved/2-s.waited))
	return s.now + batching.Time(math.Ceil(wait))
}
