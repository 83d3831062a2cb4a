package automatic

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Decide implements [batching.Policy].
func (p *Policy) Decide(now batching.Time, line batching.Line) batching.Decision {
	most := p.parallel(p.rows)
	if p.running >= most {
		return batching.Decision{Until: batching.Never} // the next batch to end asks again
	}
	if n := p.preferred(line); n > 0 {
		return batching.Decision{Take: n, Why: batching.Preferred}
	}
	target := p.target()
	items, rows, all := line.Fit(target)
	s := situation{
		now: now, items: items, rows: rows, target: target, slots: most - p.running,
		moreWaiting: !all, closed: !all || line.Cut() || line.Closing(),
	}
	if rows < p.fullAt(target) && p.curve.known() && p.frozenUntil <= p.ledger.batch && p.probing() == 0 {
		if p.hold.rule != none {
			s.waited = float64(now - p.hold.since)
		}
		if d := p.holdDecision(&s); d.Rule != none {
			return d
		}
	}
	take, why := p.size(&s, line)
	if n := p.retestItems(line); n > take {
		take, why = n, batching.Retest
	}
	return batching.Decision{Take: take, Why: why}
}

// preferred returns how many requests make the largest of the sizes that the user
// prefers; 0 if they make none.
func (p *Policy) preferred(line batching.Line) int {
	for _, size := range slices.Backward(p.opt.Preferred) {
		if items, rows, _ := line.Fit(size); rows == size {
			return items
		}
	}
	return 0
}

// A situation is what there is to decide about.
type situation struct {
	now         batching.Time
	items, rows int     // that could go now
	target      int     // rows that a batch is worth to have
	slots       int     // batches that could begin
	waited      float64 // nanoseconds for which they could have gone
	moreWaiting bool    // somebody waits behind them who could go as well
	closed      bool    // nothing can join them
}

// parallel returns how many batches are worth running at once, while so many rows
// wait.
func (p *Policy) parallel(rows int) int {
	if p.opt.Instances == 1 {
		return 1
	}
	flooded := rows >= p.opt.Instances*p.sizes.efficient
	switch n := p.probing(); {
	case n > 1 && flooded:
		return max(n, p.contention.flood) // a few at once are tried when fewer wait
	case n > 0:
		return n
	case p.cycle.rows > 0:
		return p.cycle.parallel
	case flooded:
		return p.contention.flood
	case rows >= p.sizes.efficient:
		return p.contention.backlog
	}
	return p.contention.useful
}

// tries returns how many batches at once are being tried, since nobody has measured
// them; 0 if none are. The policy is greedy meanwhile, for some batches.
func (p *Policy) probing() int {
	switch {
	case p.opt.Instances == 1:
		return 0
	case p.curve.solo < minSamples:
		return 1 // how long they take alone comes first
	case p.probed > probeBatches:
		return 0
	}
	return p.contention.probe
}

// target returns how large a batch may be.
func (p *Policy) target() int {
	if n := len(p.opt.Preferred); n > 0 {
		return p.opt.Preferred[n-1]
	}
	if !p.curve.known() {
		return p.curve.max()
	}
	if p.cycle.rows > 0 && p.ledger.enabled(cut) && p.probing() == 0 {
		return min(p.cycle.rows, maxGrowth*p.curve.largest)
	}
	size := p.sizes.max
	if p.curve.nonlinear {
		size = p.sizes.peak // whatever waits, more at once would take longer in all
	}
	// A size that was never seen is not trusted beyond what is near to one that was.
	return min(size, maxGrowth*p.curve.largest)
}

// filled returns from how many rows on a batch is not held for more.
func (p *Policy) fullAt(target int) int {
	if p.cycle.rows > 0 {
		return target // one that takes less leaves a client over in each round
	}
	return min(target, p.sizes.efficient)
}

func (p *Policy) speed(rows int) float64 { return float64(rows) / p.curve.smooth(rows) }

// saved returns how much less time one batch takes than two.
func (p *Policy) saved(rows, more int) float64 {
	return p.curve.smooth(rows) + p.curve.smooth(more) - p.curve.smooth(rows+more)
}

// holds returns the rule that holds the requests back, and until when.
func (p *Policy) holdDecision(s *situation) (d batching.Decision) {
	if s.closed {
		return d
	}
	loops := p.returns.closedLoop
	if !loops && p.ledger.enabled(burst) {
		if until := p.holdForBurst(s); until > s.now {
			return batching.Decision{Rule: burst, Until: until}
		}
	}
	if loops && p.ledger.enabled(gather) {
		if until, full := p.holdForReturns(s); until > s.now {
			return batching.Decision{Rule: gather, Until: until, Full: full}
		}
	}
	if p.running > 0 && !loops {
		return p.holdForOthers(s)
	}
	return d
}

// oneMore returns how many rows one more request has.
func (p *Policy) rowsPerRequest() int { return p.rowsIn(1) }

// size returns how many of those that could go do, and why.
func (p *Policy) size(s *situation, line batching.Line) (items int, why batching.Reason) {
	rows := s.rows
	why = p.reason(s, line)
	if !p.curve.known() || p.frozenUntil > p.ledger.batch || p.probing() > 0 {
		return s.items, why
	}
	if len(p.opt.Preferred) > 0 {
		return s.items, why
	}
	if half := p.sizes.peak / 2; half > 0 && p.rows >= p.sizes.peak {
		// A queue stands, and only large batches were seen: they may be too large. Whether
		// a smaller one was seen is asked of the rows that would run: no batch of exactly
		// half may be possible, and the rule would cut every batch for ever.
		if items, rows, _ := line.Fit(half); items > 0 && p.curve.unseen(rows) {
			return items, batching.Cut
		}
	}
	if p.cycle.rows > 0 {
		return s.items, why
	}
	if rows > 1 && p.ledger.enabled(cut) {
		shorter := batching.Cut
		if k := p.contention.useful; k > 1 && (s.slots > 1 || p.running > 0) {
			rows, shorter = min(rows, p.portion(s, k)), batching.Shared
		} else {
			rows = p.cutTo(s)
		}
		if rows < s.rows {
			why = shorter
		}
	}
	if rows == s.rows {
		return s.items, why
	}
	items, _, _ = line.Fit(max(1, rows))
	return items, why
}

// reason returns that of a batch that takes all that it can.
func (p *Policy) reason(s *situation, line batching.Line) batching.Reason {
	switch {
	case s.rows >= p.opt.MaxRows:
		return batching.Full
	case p.curve.known() && s.rows >= min(s.target, p.sizes.efficient) && (s.moreWaiting || s.rows >= p.sizes.efficient):
		if s.rows >= p.sizes.efficient {
			return batching.Efficient
		}
		if p.opt.Instances > 1 {
			return batching.Shared
		}
		return batching.Cut
	case line.Cut() || s.moreWaiting:
		return batching.Unfit
	case line.Closing():
		return batching.Closing
	}
	switch p.hold.rule {
	case gather:
		return batching.Gathered
	case burst:
		return batching.Burst
	case pace, share:
		return batching.Waited
	}
	return batching.Idle
}
