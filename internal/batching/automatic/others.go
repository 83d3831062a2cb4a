package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// holdForOthers is for when other batches run: not to begin right behind the last
// one, and not to slow down one that ends soon.
func (p *Policy) holdForOthers(s *situation) (rule, batching.Time) {
	rate := p.rate.of(s.now) * p.rate.rows // rows
	k := float64(p.contention.useful)
	speed := p.contention.speed(p.contention.useful)
	if p.ledger.on(pace) {
		saved := p.saved(s.rows, p.oneMore())
		// Instances that begin one after the other, each with what came since the last
		// one, have the shortest queue: every period, with period·rate rows.
		period := p.curve.fixed / max(0.08*speed, speed-p.curve.perRow*rate)
		load := rate / p.speed(p.sizes.efficient) / speed
		part := max(0, min(1, (0.9-load)/0.3))
		running := 0
		for i := range p.runs {
			if p.runs[i].busy {
				running += p.runs[i].rows
			}
		}
		need := min(part*rate*period, part/(k-part)*float64(running))
		until := p.began + batching.Time(math.Ceil(period))
		if float64(s.rows) < need && until > s.now && s.waited < saved {
			return pace, min(until, s.now+batching.Time(math.Ceil(saved-s.waited)))
		}
	}
	if p.ledger.on(share) && p.betterAfter(s, rate) {
		return share, batching.Never // the batch that ends asks again
	}
	return none, 0
}

// betterAfter reports whether it is better to begin when the next batch has ended
// than now, beside it, on a device that they share.
func (p *Policy) betterAfter(s *situation, rate float64) bool {
	beside, without := p.contention.by(p.running+1), p.contention.by(p.running)
	if beside <= 1.02*without {
		return false
	}
	left, running := math.Inf(1), 0
	for i := range p.runs {
		if b := &p.runs[i]; b.busy {
			running += b.rows
			takes := p.curve.at(b.rows)
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

// portion returns how many rows are one instance's part, where several run.
func (p *Policy) portion(s *situation) int {
	k := max(1, p.contention.useful)
	rate := p.rate.of(s.now) * p.rate.rows
	speed := p.contention.speed(k)
	period := p.curve.fixed / max(0.08*speed, speed-p.curve.perRow*rate)
	rows := int(math.Ceil(max(1.25*rate*period, float64(p.rows)/float64(k))))
	if p.contention.by(k) > 1.1 {
		rows = max(rows, min(s.rows, s.target/2)) // small batches waste what is shared
	}
	return max(1, min(rows, s.target))
}
