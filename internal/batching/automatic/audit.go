package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	auditSkip    = 8    // batches of a part that are not measured, because the one before has still an effect
	auditBatches = 24   // batches of a part that are measured
	auditFewest  = 4    // batches of a part that show something, and of greedy that are not measured: each costs as much as greedy is worse
	auditFirst   = 32   // batches between a doubt and the audit that follows it
	auditGrowth  = 4    // factor of that number with each audit that confirms the policy
	auditMax     = 8192 // limit of that number
	auditGain    = 1.05 // factor in throughput by which greedy must be better
	auditWorse   = 0.9  // factor at which greedy has lost after a third of its batches
	auditBad     = 0.8  // factor at which greedy has lost after the fewest
	auditClear   = 1.3  // factor that needs no confirmation
	auditOff     = 256  // batches for which the policy is greedy after it lost an audit; doubles each time
	maxAuditOff  = 8192 // limit of the doubling
)

// An audit compares what the policy does with greedy, by doing both: some batches as
// before, some greedily, and some as before again. All other estimates may be wrong in the
// same way, so that they confirm each other; this one only counts rows and time.
//
// If greedy is better both times, the policy is greedy for a while, and what it has
// measured becomes a guess.
type audit struct {
	part        auditPart
	first       uint64 // first batch of the part
	next        uint64 // batch at which the next audit is due
	wait        uint64 // batches between the last audit and the next
	off         uint64 // batches for which the policy was greedy after it last lost
	greedyUntil uint64 // the policy is greedy until this batch
	deviations  int    // decisions since the last audit that greedy would not have made

	began   batching.Time // when the part began
	since   batching.Time // from when on it is measured
	took    batching.Time // how long the part before was measured
	rows    float64
	counted int     // batches that are counted in rows
	costs   *costs  // those of the batch with which it began
	peak    int     // their best size then
	before  float64 // rows per nanosecond of the policy
	greedy  float64 // of greedy
	lost    uint64  // audits that greedy has won
	audited uint64
}

type auditPart uint8

const (
	noAudit auditPart = iota
	auditBefore
	auditGreedy
	auditAfter
)

// greedily reports whether the policy is greedy because of an audit.
func (a *audit) greedily(batch uint64) bool { return a.part == auditGreedy || a.greedyUntil > batch }

// doubt schedules an audit soon, because something that was measured has turned out to be
// wrong.
func (a *audit) doubt(batch uint64) {
	a.wait = 0
	a.next = min(a.next, batch+auditFirst)
}

// begin starts a part of an audit.
func (a *audit) begin(part auditPart, batch uint64) {
	a.part, a.first, a.rows, a.counted = part, batch, 0, 0
}

// batchEnded counts a batch. It returns true if greedy has won.
func (a *audit) batchEnded(now batching.Time, batch uint64, r *run) (lost bool) {
	if a.greedyUntil > batch {
		a.stayGreedy(now, batch, r.rows)
		return false
	}
	if a.part == noAudit {
		if batch >= a.next {
			if a.deviations == 0 {
				a.next = batch + auditFirst // nothing to audit
				return false
			}
			a.begin(auditBefore, batch)
			a.first -= auditSkip // the policy has done the same before
			a.since = now
		}
		return false
	}
	n := batch - a.first
	long := a.part == auditGreedy && now-a.began > a.took // its batches are so large that all of them would cost too much
	skip := uint64(auditSkip)                             // but all that began together, which end at nearly the same time
	if a.part == auditGreedy {
		skip = auditFewest
	}
	if n <= skip && !long || r.began <= a.began {
		a.since = now
		return false
	}
	a.rows += float64(r.rows)
	a.counted++
	rate := a.rows / float64(max(1, now-a.since))
	if n < auditSkip+auditBatches {
		if a.part == auditGreedy && (a.counted >= auditFewest && rate < auditBad*a.before ||
			(long && a.counted == auditFewest || n == auditSkip+auditBatches/3) && rate < auditWorse*a.before) {
			return a.end(batch, false) // clearly worse
		}
		return false
	}
	switch a.part {
	case auditBefore:
		a.before, a.took, a.began = rate, now-a.since, now
		a.begin(auditGreedy, batch)
	case auditGreedy:
		a.greedy = rate
		if rate > auditClear*a.before {
			return a.end(batch, true)
		}
		if rate < auditGain*a.before {
			return a.end(batch, false)
		}
		a.begin(auditAfter, batch)
	case auditAfter:
		return a.end(batch, a.greedy > auditGain*rate)
	}
	return false
}

// stayGreedy counts a batch while the policy is greedy, and ends that if the policy was better. The
// audit may have begun in a bad moment of the policy, and more requests wait for larger batches.
func (a *audit) stayGreedy(now batching.Time, batch uint64, rows int) {
	if a.counted == 0 { // it only starts the clock
		a.since, a.rows = now, 0
	} else {
		a.rows += float64(rows)
	}
	if a.counted++; a.counted <= auditBatches && (a.counted <= auditFewest || now-a.since < a.took) {
		return
	}
	if a.rows < a.before*float64(now-a.since) {
		a.greedyUntil, a.next = batch, batch+auditFirst
	}
	a.counted = 0
}

func (a *audit) end(batch uint64, lost bool) bool {
	a.part, a.deviations = noAudit, 0
	a.audited++
	if lost {
		a.lost++
		a.off = max(auditOff, min(2*a.off, maxAuditOff))
		a.greedyUntil = batch + a.off
		a.wait, a.counted = 0, 0
		a.next = a.greedyUntil + auditFirst
		return true
	}
	a.off /= 2
	a.postpone(batch, auditGrowth)
	return false
}

// postpone schedules the next audit, by the given factor later than the last one.
func (a *audit) postpone(batch, growth uint64) {
	a.wait = max(auditFirst, min(growth*a.wait, auditMax))
	a.next = batch + a.wait
}

// auditEnded reports a batch to the audit, and that the traffic has changed.
func (p *Policy) auditEnded(now batching.Time, r *run) {
	if len(p.opt.Preferred) > 0 {
		return
	}
	a := &p.audit
	switch {
	case !p.returns.closedLoop && p.waitingRows < p.sizes.efficient:
		// The throughput is that of the clients. If greedy batches have emptied the queue, the next
		// audit has to wait, or each burst of requests would begin another, and none would end.
		if a.part > auditBefore {
			a.postpone(p.ledger.batch, 2)
		}
		a.part, a.counted = noAudit, 0
		return
	case p.probing() > 0 && a.greedyUntil <= p.ledger.batch:
		a.part, a.counted = noAudit, 0 // the throughput is that of a round of probing
		return
	}
	if a.part != noAudit && a.costs == p.costs && (2*p.sizes.peak < a.peak || p.sizes.peak > 2*a.peak) {
		a.part, a.next = noAudit, p.ledger.batch+auditFirst // the policy has changed its mind meanwhile
	}
	if a.part == noAudit {
		a.costs, a.peak = p.costs, p.sizes.peak
	}
	if a.batchEnded(now, p.ledger.batch, r) {
		for _, c := range p.classes {
			c.curve.doubt()
			c.retest.restart(p.ledger.batch)
		}
		p.contention.restart(p.opt.Instances)
		p.probed = 0
		p.resize()
	}
}
