package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// holdForBurst returns until when to wait for the next request if it is imminent; 0 if it
// is not. The wait is limited by the batch that it saves, of which only half counts: the
// wait certainly delays the requests that are held, while the saving helps requests that
// may come later.
func (p *Policy) holdForBurst(s *situation) batching.Time {
	saved := p.saved(s.rows, p.rowsPerRequest())
	if saved <= 0 || s.waited >= saved/2 || p.gaps.misses.tooMany() {
		return 0
	}
	wait := p.gaps.bestWait(s.now, p.unit, p.rate.current(s.now), s.shape.share*saved/2, float64(s.items), min(saved/4, saved/2-s.waited))
	return s.now + batching.Time(math.Ceil(wait))
}

// missedHolds counts consecutive holds for a burst during which no request arrived. Gaps
// are remembered for long, and the clients that caused them may have left: without this
// count, a remaining client would wait for them some hundred times.
type missedHolds struct {
	count int
	reach batching.Time // duration of the last hold for a burst
}

// maxMissedHolds missed holds in a row mean that there are no bursts any more. If three
// of four holds are missed, a third of all bursts are given up by mistake, until the next
// burst arrives; at that rate holding hardly pays anyway.
const maxMissedHolds = 4

func (v *missedHolds) tooMany() bool { return v.count >= maxMissedHolds }

// holdEnded records a hold for a burst, and whether a request arrived during it.
func (v *missedHolds) holdEnded(took batching.Time, requestArrived bool) {
	v.count++
	v.reach = took
	if requestArrived {
		v.count = 0
	}
}

// arrived records the gap before a request. A gap that fits into a hold shows that there
// are bursts.
func (v *missedHolds) arrived(gap batching.Time) {
	if gap <= v.reach {
		v.count = 0
	}
}
