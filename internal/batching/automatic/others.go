package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Tuned in the simulator; the same for all models and traffic.
const (
	minHeadroom   = 0.08 // minimum share of the capacity that period assumes to be free
	maxPacedLoad  = 0.9  // share of the capacity above which batches are not paced
	paceRange     = 0.3  // over this share of the capacity below maxPacedLoad, pacing rises to its full extent
	maxOverrun    = 8    // times the expected duration of a batch, after which no other waits for it
	portionFactor = 1.25 // times the rows that arrive in a period is the minimum portion of an instance
)

// holdForOthers holds a batch while others run, for one of two reasons: so that it does
// not begin right after the last one, and so that it does not slow down one that ends
// soon.
func (p *Policy) holdForOthers(s *situation) (d batching.Decision) {
	rate := p.rate.current(s.now) * s.shape.share * p.rate.rows // in rows per nanosecond
	if p.ledger.enabled(pace) {
		if until := p.nextStart(s, rate); until > s.now {
			return batching.Decision{Rule: pace, Until: until}
		}
	}
	if p.ledger.enabled(share) && p.waitsForEnd(s, rate) {
		_, next := p.overdue(s.now)
		return batching.Decision{Rule: share, Until: batching.Never, Recheck: next} // the core asks again when a batch ends
	}
	return d
}

// overdueAt returns when a running batch has taken far longer than expected, however many ran
// beside it: then it may never end, and no other batch waits for it. It is Never if the
// expected time is unknown.
func (p *Policy) overdueAt(b *run) batching.Time {
	takes := p.contention.slowdown(p.opt.Instances) * b.scale * b.costs.curve.expected(b.rows)
	if takes <= 0 {
		return batching.Never
	}
	return b.began + batching.Time(maxOverrun*takes)
}

// overdue returns the number of running batches that are overdue, and when the next one will
// be.
func (p *Policy) overdue(now batching.Time) (n int, next batching.Time) {
	next = batching.Never
	for i := range p.runs {
		if b := &p.runs[i]; b.busy {
			if at := p.overdueAt(b); at > now {
				next = min(next, at)
			} else {
				n++
			}
		}
	}
	return n, next
}

// period returns the time between the starts of two batches if instances start one after
// the other, each with the rows that arrived since the last start. That order gives the
// shortest queue.
func (p *Policy) period(rate float64) float64 {
	speed := p.contention.speedup(p.contention.useful)
	return p.curve.fixed / max(minHeadroom*speed, speed-p.curve.perRow*rate)
}

// nextStart returns when the next batch should begin if too few requests wait to begin
// now; 0 if it should begin now. It does not pace batches near capacity, where every
// instance is needed.
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

// waitsForEnd reports whether it is better to begin when the next running batch ends than
// to begin now, in parallel, on a device that both share.
func (p *Policy) waitsForEnd(s *situation, rate float64) bool {
	beside, without := p.contention.slowdown(p.running+1), p.contention.slowdown(p.running)
	if beside <= 1.02*without {
		return false
	}
	left, running := math.Inf(1), 0
	for i := range p.runs {
		if b := &p.runs[i]; b.busy {
			running += b.rows
			if p.overdueAt(b) <= s.now {
				continue
			}
			takes := b.scale * b.costs.curve.expected(b.rows)
			left = min(left, max(0.02*takes, float64(b.began-s.now)+without*takes))
		}
	}
	if math.IsInf(left, 1) {
		return false // all are overdue
	}
	takes, x := p.curve.smooth(s.rows), float64(s.rows)
	costNow := x*beside*takes + float64(running)*(beside/without-1)*min(left, beside*takes)
	costLater := x * (left + without*p.curve.smooth(min(s.target, s.rows+int(rate*left))))
	load := rate / p.speed(p.sizes.efficient)
	bias := 0.85 + 0.45*max(0, min(1, (load-0.4)/0.4))
	return costNow >= bias*costLater
}

// portion returns the number of rows for one of k instances. It uses the rate over a long
// time, because the rate of a burst would put the burst into one batch, but follows a
// rising rate sooner than a falling one.
func (p *Policy) portion(s *situation, k int) int {
	rate := max(p.rate.over(s.now, longWindow), p.rate.over(s.now, longWindow/2)) * p.rate.rows
	rows := int(math.Ceil(max(portionFactor*rate*p.period(rate), float64(p.waitingRows)/float64(k))))
	if p.contention.slowdown(k) > minGain {
		rows = max(rows, p.sizes.efficient/2) // small batches waste the shared device
	}
	return rows + p.rowsPerRequest() - 1 // whole requests have at least these rows
}
