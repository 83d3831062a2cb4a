package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Tuned in the simulator, the same for all models and traffic.
const (
	minHeadroom   = 0.08 // of the speed; a rate that leaves less is taken to leave that
	maxPacedLoad  = 0.9  // of the capacity: from there on no batch is held for its turn
	paceRange     = 0.3  // of the capacity below that: from there on each is
	portionFactor = 1.25 // times what comes in a period is one instance's part at least
)

// holdForOthers is for when other batches run: not to begin right behind the last
// one, and not to slow down one that ends soon.
func (p *Policy) holdForOthers(s *situation) (d batching.Decision) {
	rate := p.rate.current(s.now) * p.rate.rows // rows
	if p.ledger.enabled(pace) {
		if until := p.nextStart(s, rate); until > s.now {
			return batching.Decision{Rule: pace, Until: until}
		}
	}
	if p.ledger.enabled(share) && p.waitsForEnd(s, rate) {
		return batching.Decision{Rule: share, Until: batching.Never} // the batch that ends asks again
	}
	return d
}

// period returns the time from the begin of one batch to that of the next, of
// instances that begin one after the other, each with what came since the last
// one. That is how they have the shortest queue.
func (p *Policy) period(rate float64) float64 {
	speed := p.contention.speedup(p.contention.useful)
	return p.curve.fixed / max(minHeadroom*speed, speed-p.curve.perRow*rate)
}

// nextTurn returns when the next batch is to begin, if too little waits to begin
// before. Near capacity that is not looked at: each instance is needed.
func (p *Policy) nextStart(s *situation, rate float64) batching.Time {
	saved, period := p.saved(s.rows, p.rowsPerRequest()), p.period(rate)
	k := float64(p.contention.useful)
	load := rate / p.speed(p.sizes.efficient) / p.contention.speedup(p.contention.useful)
	part := max(0, min(1, (maxPacedLoad-load)/paceRange))
	running := 0
	for i := range p.runs {
		if p.runs[i].busy {
			running += p.runs[i].rows
		}
	}
	need := min(part*rate*period, part/(k-part)*float64(running))
	if float64(s.rows) >= need || s.waited >= saved {
		return 0
	}
	return min(p.lastBegan+batching.Time(math.Ceil(period)), s.now+batching.Time(math.Ceil(saved-s.waited)))
}

// betterAfter reports whether it is better to begin when the next batch has ended
// than now, beside it, on a device that they share.
func (p *Policy) waitsForEnd(s *situation, rate float64) bool {
	beside, without := p.contention.slowdown(p.running+1), p.contention.slowdown(p.running)
	if beside <= 1.02*without {
		return false
	}
	left, running := math.Inf(1), 0
	for i := range p.runs {
		if b := &p.runs[i]; b.busy {
			running += b.rows
			takes := p.curve.expected(b.rows)
			left = min(left, max(0.02*takes, float64(b.began-s.now)+without*takes))
		}
	}
	takes, x := p.curve.smooth(s.rows), float64(s.rows)
	now := x*beside*takes + float64(running)*(beside/without-1)*min(left, beside*takes)
	then := x * (left + without*p.curve.smooth(min(s.target, s.rows+int(rate*left))))
	load := rate / p.speed(p.sizes.efficient)
	bias := 0.85 + 0.45*max(0, min(1, (load-0.4)/0.4))
	return now >= bias*then
}

// portion returns how many rows are one instance's part, where k run. The rate is that
// of a while, since that of a burst would make it one batch, but rises sooner than it
// falls.
func (p *Policy) portion(s *situation, k int) int {
	rate := max(p.rate.over(s.now, longWindow), p.rate.over(s.now, longWindow/2)) * p.rate.rows
	rows := int(math.Ceil(max(portionFactor*rate*p.period(rate), float64(p.rows)/float64(k))))
	if p.contention.slowdown(k) > minGain {
		rows = max(rows, p.sizes.efficient/2) // small batches waste what is shared
	}
	return rows
}
