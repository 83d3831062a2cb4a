package automatic

import (
	"cmp"

	"github.com/shoal-serving/shoal/internal/batching"
)

const (
	settleBatches = 16   // batches for which rules are paused after a change of speed
	probeBatches  = 64   // batches of one round of probing for more parallel batches
	retryFirst    = 64   // batches until the next round of probing; doubles with each round
	retryMax      = 8192 // upper limit of that
)

// A run is the current batch of an instance.
type run struct {
	busy           bool
	began          batching.Time
	rows, requests int
	elements       int64   // of a row
	scale          float64 // factor on the times of the curve, because of the elements
	pads           bool    // its requests may be padded
	separate       float64 // nanoseconds that its rows would take without padding; 0 if all have one shape
	costs          *costs
	retest         bool
	below          bool                     // a retest of a smaller size than is best
	fewerThreads   bool                     // it has fewer threads than an exclusive batch; its time counts as that of at least two parallel batches
	timeBeside     [maxParallel + 1]float64 // nanoseconds for which it ran while n batches ran, this one included
}

// Arrived implements [batching.Watcher].
func (p *Policy) Arrived(now batching.Time, it *batching.Item) {
	p.ensureClass(it.Elements)
	p.latest = p.costs
	p.rate.arrived(now, it.Rows)
	shape := p.shapes.arrived(it.Shape)
	if p.shapes.mixed() {
		// Held requests and replays assume that all requests can share a batch.
		p.hold, p.ledger.replay.rule = hold{}, none
	}
	p.gaps.arrived(now, p.unit)
	if p.unit > 0 {
		p.returns.arrived(now, p.unit, shape)
	}
	p.replayArrived(now, it.Rows)
	p.waiting++
	p.waitingRows += it.Rows
}

// Left implements [batching.Watcher].
func (p *Policy) Left(_ batching.Time, it *batching.Item) {
	p.costs = p.latest
	p.waiting--
	p.waitingRows -= it.Rows
	p.replayRemoved(it.Rows)
	if p.waiting == 0 {
		p.hold = hold{}
	}
}

// Held implements [batching.Watcher].
func (p *Policy) Held(now batching.Time, d batching.Decision) {
	p.audit.deviations++
	if d.Rule == none {
		return // the limit of parallel batches is reached
	}
	p.costs = p.latest // requests are held only while nearly all have one shape
	if p.hold.rule == none {
		p.startReplay(d.Rule, now, p.sizes.efficient)
		p.hold.since = now
	}
	p.hold.rule, p.hold.until, p.hold.full = d.Rule, d.Until, d.Full
}

// Began implements [batching.Watcher].
func (p *Policy) Began(now batching.Time, b *batching.Action) {
	elements := elementsOf(b.Items)
	p.selectClass(elements)
	rows := 0
	for _, it := range b.Items {
		rows += it.Rows
	}
	p.closed[b.Reason]++
	if b.Reason == batching.Cut || b.Reason == batching.Shared {
		p.startReplay(cut, now, p.opt.MaxRows)
	}
	if b.Reason == batching.Padded {
		if p.audit.deviations++; p.padding.used.batches == 1 {
			p.audit.doubt(p.ledger.batch)
		}
	}
	if p.hold.rule == burst {
		p.gaps.misses.holdEnded(now-p.hold.since, p.gaps.last > p.hold.since)
	}
	p.replayBegan(now, len(b.Items), rows)
	p.addRunTime(now)
	r := p.runOn(b.Instance)
	*r = run{busy: true, began: now, rows: rows, requests: len(b.Items), elements: elements, scale: p.length.scale(elements), pads: b.Items[0].PadGroup != 0, costs: p.costs, retest: b.Reason == batching.Retest, fewerThreads: p.opt.Exclusive && !b.Exclusive}
	switch {
	case r.pads && b.Items[0].Shape != b.Items[len(b.Items)-1].Shape:
		p.startPadded(r, b.Items)
	case r.retest:
		p.retest.next = p.ledger.batch + retestFirst // until this one has ended
		r.below = rows < p.fullAt(p.target())
	}
	p.busyPeriod.began(float64(p.waitingRows), float64(rows))
	p.small.began(rows, p.possibleRows())
	p.waiting -= len(b.Items)
	p.waitingRows -= rows
	if p.waiting > 0 && rows < p.opt.MaxRows {
		p.audit.deviations++
	}
	p.running++
	p.lastBegan = now
	p.hold = hold{}
}

// Ended implements [batching.Watcher].
func (p *Policy) Ended(now batching.Time, instance int, items []*batching.Item, stopped bool) {
	p.selectClass(elementsOf(items))
	p.addRunTime(now)
	r := p.runOn(instance)
	r.busy = false
	if n := p.probing(); n > 0 && p.waiting+p.running >= max(n, 2) {
		p.probed++ // fewer requests show nothing
	}
	p.running--
	p.returns.batchEnded(now, len(items), items[0].Shape, p.unit)
	p.busyPeriod.ended(float64(p.waitingRows))
	latencies := 0.0
	for _, it := range items {
		latencies += float64(now - it.Arrived())
	}
	p.ledger.batchEnded(latencies)
	if !stopped {
		p.learn(r, float64(now-r.began))
	}
	p.retryParallel()
	p.auditEnded(now, r)
	if p.returns.closedLoop && !p.shapes.mixed() && p.ledger.enabled(gather) {
		p.updateCycle(now)
	} else {
		p.cycle = cycle{}
	}
	p.advanceReplay(now)
}

// retryParallel begins a round of probing for more parallel batches when one is due: soon
// after the number in use has fallen, and then less and less often. If all batches since the
// calibration ran beside others, it also lets some run alone: calibrated times that are too long,
// and slowdowns that are too small for the same reason, would confirm each other for good.
func (p *Policy) retryParallel() {
	if p.opt.Instances == 1 {
		return
	}
	inUse := p.contention.useful
	if p.cycle.rows > 0 {
		inUse = p.cycle.parallel
	}
	if inUse < p.inUse {
		p.retry.restart(p.ledger.batch)
	}
	p.inUse = inUse
	if p.ledger.batch >= p.retry.next {
		p.probed = 0
		p.retry.wait = max(retryFirst, min(2*p.retry.wait, retryMax))
		p.retry.next = p.ledger.batch + p.retry.wait
		p.contention.allowRetry(inUse, p.opt.Instances)
		p.aloneDue = inUse > 1 && p.alone < minSamples
	}
}

// learn records the duration of a batch, in nanoseconds.
func (p *Policy) learn(r *run, took float64) {
	if r.pads {
		p.learnPadding(r, took)
	}
	if r.timeBeside[1] < 0.95*took { // others ran in parallel, or it had fewer threads
		p.learnParallel(r, took)
		return
	}
	if p.alone++; p.alone >= minSamples {
		p.aloneDue = false
	}
	expected := p.curve.expected(r.rows)
	if r.pads && expected > 0 {
		p.length.record(r.elements, took/expected)
	}
	took /= r.scale
	if p.opt.Exclusive && expected == 0 {
		took /= p.contention.factor[1] // about what it would take with the threads of others
	}
	if p.opt.Exclusive && took < expected {
		p.contention.recordExclusive(took/expected, p.opt.Instances)
		return // it says nothing about other batches
	}
	if p.drifted(r, took) {
		p.restartContention()
	}
	if r.retest && r.separate == 0 {
		p.judgeRetest(r, took)
	}
	p.curve.record(r.rows, took)
	if p.curve.sinceBuild == 0 {
		p.resize()
	}
}

// restartContention begins anew with the slowdowns of parallel batches after a change of speed. They
// are probed at once if nothing is known of them, and in a closed loop, so that its throughput is back
// soon. In an open loop the calibrated ones are used until some batches ran without others: right after
// the change most sizes are guesses. A slowdown that is measured against too long a time seems small,
// and once batches run in parallel for that reason, nothing corrects the time any more.
func (p *Policy) restartContention() {
	known := p.contention.restart(p.opt.Instances)
	p.probed = 0
	if known && !p.returns.closedLoop {
		p.probed, p.retry = probeBatches+1, retest{next: p.ledger.batch + retryFirst}
	}
}

// learnParallel records the duration of a batch beside which others ran.
func (p *Policy) learnParallel(r *run, took float64) {
	solo := p.contention.soloTime(&r.timeBeside) / r.scale
	if p.contention.settled(&r.timeBeside) && p.drifted(r, solo) {
		return // the device is slower, and not the batches beside it more of a burden
	}
	if expected := p.curve.expected(r.rows); expected > 0 {
		p.contention.record(r.scale*expected, &r.timeBeside, p.opt.Instances)
	}
	if r.retest && r.separate == 0 {
		p.judgeRetest(r, cmp.Or(solo, took/r.scale)) // the time is an upper limit
	}
	// A size that only runs in parallel with others is estimated from the slowdown. If that
	// is unknown, too, the time of a larger batch than any before is an upper limit, and
	// better than nothing: sizes far above the largest measured one are not used.
	if solo == 0 && r.rows > p.curve.largest {
		solo = took / r.scale
	}
	if solo > 0 && (p.curve.needsSamples(r.rows) || r.below) {
		p.curve.record(r.rows, solo)
		p.resize()
	}
}

// drifted reports whether a batch, which would have taken the given time without others
// beside it, shows that the speed has changed. Then it rescales the curve. Few batches
// without others are a reason to doubt the curve, but not for a batch that ran entirely
// beside others: its time was derived from slowdowns that were measured against that curve.
func (p *Policy) drifted(r *run, solo float64) bool {
	expected := p.curve.expected(r.rows)
	if expected <= 0 || solo <= 0 || p.curve.needsSamples(r.rows) || r.timeBeside[1] > 0 && p.curve.soloBatches <= 2*minSamples {
		return false
	}
	by := p.drift.record(solo / expected)
	if by == 1 {
		return false
	}
	p.curve.rescale(by)
	p.ledger.restart()
	p.busyPeriod = busyPeriod{} // queues were different at the old speed
	p.pausedUntil = p.ledger.batch + settleBatches
	p.retest.restart(p.ledger.batch)
	p.retry.restart(p.ledger.batch)
	p.audit.doubt(p.ledger.batch)
	p.resize()
	return true
}

// judgeRetest compares the time of a retest with the expected time. Batches are seldom fast by
// chance, so two in a row disprove what was measured. One below the best size is only recorded:
// what it corrects has excluded no larger size.
func (p *Policy) judgeRetest(r *run, took float64) {
	expected := p.curve.expected(r.rows)
	if took < retestGain*expected {
		contradicted := !r.below && p.curve.contradicts(r.rows, took)
		if contradicted && p.retest.fast {
			p.curve.disprove(r.rows, took)
			p.resize()
			p.audit.doubt(p.ledger.batch)
			contradicted = false
		}
		p.retest = retest{next: p.ledger.batch, fast: contradicted}
		if r.below {
			p.retest.next += retestFirst // it says nothing about larger sizes, which could be next
		}
		return
	}
	usual := p.curve.smooth(p.sizes.peak)
	p.retest.confirmed(p.ledger.batch, (expected-float64(r.rows)/float64(p.sizes.peak)*usual)/usual)
}

// addRunTime adds the time since the last change to all running batches, by the number of
// batches that ran.
func (p *Policy) addRunTime(now batching.Time) {
	ran, n := float64(now-p.lastChange), min(p.running, maxParallel)
	p.lastChange = now
	for i := range p.runs {
		switch r := &p.runs[i]; {
		case r.busy && r.fewerThreads:
			r.timeBeside[max(n, 2)] += ran
		case r.busy:
			r.timeBeside[n] += ran
		}
	}
}

// runOn returns the run of an instance. It grows runs for instances that were added
// later.
func (p *Policy) runOn(instance int) *run {
	for len(p.runs) < instance {
		p.runs = append(p.runs, run{})
	}
	return &p.runs[instance-1]
}
