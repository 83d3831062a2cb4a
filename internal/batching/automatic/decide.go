package automatic

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Decide implements [batching.Policy].
func (p *Policy) Decide(now batching.Time, line batching.Line) batching.Decision {
	p.selectClass(line.First().Elements)
	limit, running := p.parallel(p.waitingRows), p.running
	if running >= limit {
		overdue, next := p.overdue(now)
		if running -= overdue; running >= limit {
			return batching.Decision{Until: batching.Never, Recheck: next} // the core asks again when a batch ends
		}
	}
	if n := p.preferredItems(line); n > 0 {
		return batching.Decision{Take: n, Reason: batching.Preferred}
	}
	target := p.target()
	items, rows, all := line.Fit(target)
	s := situation{
		now: now, items: items, rows: rows, target: target, slots: limit - running, shape: p.shapes.share(line.First().Shape),
		moreWaiting: !all, closed: !all || line.Cut() || line.Closing(),
	}
	if rows < p.fullAt(target) && !p.complete(items) && !p.mustBeGreedy() && p.mayHold(line) {
		if p.hold.rule != none {
			s.waited = float64(now - p.hold.since)
		}
		if d := p.holdDecision(&s); d.Rule != none {
			if d.Rule == gather && p.retestDue() && p.curve.uncertain(rows) {
				return batching.Decision{Take: items, Reason: batching.Retest} // of the size that waits now
			}
			return d
		}
	}
	take, reason := p.chooseItems(&s, line)
	if s.slots == 1 { // otherwise another instance takes the rest
		if n := p.retestItems(&s, line, take); n > take {
			take, reason = n, batching.Retest
		}
	}
	return batching.Decision{Take: take, Reason: reason}
}

// mayHold reports whether the line may be held. If requests have different shapes, replays
// cannot judge what a hold costs, because they do not distinguish shapes. Then a line is
// held only while requests of another shape run in its place, which costs no throughput. A
// rare shape does not mix them, but batches of the others run in its place as well.
func (p *Policy) mayHold(line batching.Line) bool {
	return !line.Overtaken() && (!p.shapes.mixed() || line.Deferrable())
}

// preferredItems returns the number of requests that exactly fill the largest possible
// preferred size; 0 if none can be filled.
func (p *Policy) preferredItems(line batching.Line) int {
	for _, size := range slices.Backward(p.opt.Preferred) {
		if items, rows, _ := line.Fit(size); rows == size {
			return items
		}
	}
	return 0
}

// mustBeGreedy reports whether no rule may hold or cut a batch at the moment: nothing is
// measured yet, the model's speed has just changed, or a number of parallel batches is
// being probed.
func (p *Policy) mustBeGreedy() bool {
	return p.audit.greedily(p.ledger.batch) || !p.curve.known() || p.pausedUntil > p.ledger.batch || p.probing() > 0
}

// A situation is what the rules base one decision on.
type situation struct {
	now         batching.Time
	items, rows int        // requests that could run now, and their rows
	target      int        // target batch size in rows
	slots       int        // number of batches that could begin now
	shape       shapeShare // shape of the requests, and the share of further requests that have it and could join
	waited      float64    // nanoseconds for which these requests have been held
	moreWaiting bool       // further requests wait that do not fit into the target size
	closed      bool       // no further request can join the batch
}

// parallel returns how many batches should run in parallel while the given number of rows
// waits.
func (p *Policy) parallel(rows int) int { return p.instancesFor(p.estimatedParallel(rows)) }

// instancesFor returns how many instances run if n batches should run in parallel. More than
// maxParallel have no estimate of their own: if that many pay, all run.
func (p *Policy) instancesFor(n int) int {
	if n < maxParallel {
		return n
	}
	return p.opt.Instances
}

// estimatedParallel is parallel for up to maxParallel batches.
func (p *Policy) estimatedParallel(rows int) int {
	if p.opt.Instances == 1 {
		return 1
	}
	if p.audit.greedily(p.ledger.batch) {
		return min(p.opt.Instances, maxParallel)
	}
	flooded := rows >= p.opt.Instances*p.sizes.efficient // an efficient batch for each instance waits
	switch n := p.probing(); {
	case n > 1 && flooded:
		return max(n, p.contention.flood) // smaller numbers are probed while fewer requests wait
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

// probing returns the number of parallel batches that the policy runs in order to measure
// it; 0 if it does not probe. The policy is greedy while it probes.
func (p *Policy) probing() int {
	switch {
	case p.opt.Instances == 1:
		return 0
	case p.soloBatches() < minSamples || p.aloneDue && p.probed <= probeBatches:
		return 1 // measure single batches first, unless other models always run beside them
	case p.probed > probeBatches:
		return 0 // this round of probing is over
	case p.cycle.rows > 0 && p.cycle.clientCount() < p.contention.probe:
		return 0 // there are not that many clients
	}
	return p.contention.probe
}

// target returns the maximum size of the next batch in rows: the largest preferred size,
// the size of the cycle in a closed loop, or else the largest that does not lower the
// throughput.
func (p *Policy) target() int {
	if n := len(p.opt.Preferred); n > 0 {
		return p.opt.Preferred[n-1]
	}
	if !p.curve.known() {
		return p.firstRows
	}
	if p.audit.greedily(p.ledger.batch) {
		size := p.sizes.max
		if p.audit.part == auditGreedy && p.curve.nonlinear {
			size = min(size, 2*p.sizes.peak) // as in a retest: a batch of the largest may cost as much as ten of the best
		}
		return min(size, maxGrowth*p.curve.largest)
	}
	if p.cycle.rows > 0 && p.ledger.enabled(cut) && p.probing() == 0 {
		return min(p.cycle.limit, p.sizes.max, maxGrowth*p.curve.largest)
	}
	size := p.sizes.max
	if p.curve.nonlinear {
		size = p.sizes.peak // larger batches would lower the throughput
	}
	// Sizes far above the largest measured one are extrapolated, and not trusted.
	return min(size, maxGrowth*p.curve.largest)
}

// fullAt returns the number of rows at which a batch is not held any longer.
func (p *Policy) fullAt(target int) int {
	if p.cycle.rows > 0 {
		return min(target, p.cycle.least) // a smaller batch would leave some client out of each round
	}
	return min(target, p.sizes.efficient)
}

// complete reports whether as many requests wait as a closed loop has planned for a batch, even if
// they have fewer rows than such requests have on average: the other clients are in another batch.
func (p *Policy) complete(items int) bool {
	return p.cycle.rows > 0 && items >= p.cycle.requests && !p.rate.alike()
}

// speed returns the throughput of single batches of the given size, in rows per nanosecond.
func (p *Policy) speed(rows int) float64 { return float64(rows) / p.curve.smooth(rows) }

// saved returns how much less time one batch of rows+more takes than two separate ones.
func (p *Policy) saved(rows, more int) float64 {
	return p.curve.smooth(rows) + p.curve.smooth(more) - p.curve.smooth(rows+more)
}

// holdDecision asks one rule after the other whether to hold the requests. It returns the
// decision of the first that does. Its Rule is none if no rule holds them.
func (p *Policy) holdDecision(s *situation) (d batching.Decision) {
	if s.closed {
		return d
	}
	closedLoop := p.returns.closedLoop
	if !closedLoop && p.ledger.enabled(burst) {
		if until := p.holdForBurst(s); until > s.now {
			return batching.Decision{Rule: burst, Until: until}
		}
	}
	if closedLoop && p.ledger.enabled(gather) {
		if until, full := p.holdForReturns(s); until > s.now {
			return batching.Decision{Rule: gather, Until: until, Full: full}
		}
	}
	if p.running > 0 && !closedLoop {
		return p.holdForOthers(s)
	}
	return d
}

// rowsPerRequest returns the average number of rows of a request.
func (p *Policy) rowsPerRequest() int { return rounded(p.rate.rows) }

// chooseItems returns how many of the requests that could run now are put in the batch: all
// of them, or fewer if smaller batches answer sooner on average. It also returns why the
// batch is closed.
func (p *Policy) chooseItems(s *situation, line batching.Line) (items int, reason batching.Reason) {
	reason = p.reason(s, line)
	if p.mustBeGreedy() || len(p.opt.Preferred) > 0 {
		return s.items, reason
	}
	if half := p.sizes.peak / 2; half > 0 && p.waitingRows >= p.sizes.peak {
		// Requests queue up, and no size around half the peak has been measured, so the
		// peak may be too large: measure about half of it. unseen is given the rows that
		// would actually run, and not half: if no combination of requests has exactly half
		// the rows, half would stay unseen, and every batch would be cut.
		if halfItems, halfRows, _ := line.Fit(half); halfItems > 0 && p.curve.unseen(halfRows) {
			return halfItems, batching.Cut
		}
	}
	if p.cycle.rows > 0 {
		return s.items, reason
	}
	rows := s.rows // to run now
	if rows > 1 && p.ledger.enabled(cut) && !p.shapes.mixed() {
		cutReason := batching.Cut
		if k := p.contention.useful; k > 1 && (s.slots > 1 || p.running > 0) { // other instances take the rest
			rows, cutReason = min(rows, p.portion(s, k)), batching.Shared
		} else {
			rows = p.cutTo(s)
		}
		if rows < s.rows {
			reason = cutReason
		}
	}
	if rows == s.rows {
		return s.items, reason
	}
	items, _, _ = line.Fit(max(1, rows))
	return items, reason
}

// reason returns why a batch of all requests that could run is closed.
func (p *Policy) reason(s *situation, line batching.Line) batching.Reason {
	known := p.curve.known()
	switch {
	case s.rows >= p.opt.MaxRows:
		return batching.Full
	case known && s.rows >= p.sizes.efficient:
		return batching.Efficient
	case known && s.rows >= s.target && s.moreWaiting: // the target is below the efficient size
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
