package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// holdForBurst waits for the next request if one is imminent, and as long as the
// batch that it saves allows. Half of what is saved counts: the wait delays those
// that are here for certain, and what it saves helps those that come later.
func (p *Policy) holdForBurst(s *situation) batching.Time {
	saved := p.saved(s.rows, p.rowsPerRequest())
	if saved <= 0 || s.waited >= saved/2 || p.gaps.misses.tooMany() {
		return 0
	}
	wait := p.gaps.bestWait(s.now, p.unit, p.rate.current(s.now), saved/2, float64(s.items), min(saved/4, saved/2-s.waited))
	return s.now + batching.Time(math.Ceil(wait))
}

// vain counts holds for a burst in which nobody came, since somebody last did. Gaps
// are remembered for long, and those who made them may have left: without it a client
// that stays behind would wait for them some hundred times.
type missedHolds struct {
	count int
	reach batching.Time // of the last such hold
}

// enoughVain holds in a row mean that there are no bursts any more. Where three of
// four are in vain a third of all bursts are given up by mistake, until the next one
// shows itself, and that is where holding hardly pays.
const maxMissedHolds = 4

func (v *missedHolds) tooMany() bool { return v.count >= maxMissedHolds }

// ended takes in a hold for a burst, in which somebody came or not.
func (v *missedHolds) holdEnded(took batching.Time, came bool) {
	v.count++
	v.reach = took
	if came {
		v.count = 0
	}
}

// arrived takes in a request that came so long after another one. If it would have
// come within a hold, there are bursts.
func (v *missedHolds) arrived(gap batching.Time) {
	if gap <= v.reach {
		v.count = 0
	}
}
