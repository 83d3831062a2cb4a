package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	settleBatches  = 16   // batches for which rules are paused after a change of speed
	probeBatches   = 64   // batches of one round of probing for more parallel batches
	retryEvery     = 2048 // batches until the next round of probing; doubles with each round
	maxRetryFactor = 32   // limit of the doubling, as a multiple of retryEvery
)

// A run is the current batch of an instance.
type run struct {
	busy           bool
	began          batching.Time
	rows, requests int
	costs          *costs
	retest         bool
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
	p.selectClass(elementsOf(b.Items))
	rows := 0
	for _, it := range b.Items {
		rows += it.Rows
	}
	p.closed[b.Reason]++
	if b.Reason == batching.Cut || b.Reason == batching.Shared {
		p.startReplay(cut, now, p.opt.MaxRows)
	}
	if p.hold.rule == burst {
		p.gaps.misses.holdEnded(now-p.hold.since, p.gaps.last > p.hold.since)
	}
	p.replayBegan(now, len(b.Items), rows)
	p.addRunTime(now)
	r := p.runOn(b.Instance)
	*r = run{busy: true, began: now, rows: rows, requests: len(b.Items), costs: p.costs, retest: b.Reason == batching.Retest, fewerThreads: p.opt.Exclusive && !b.Exclusive}
	if r.retest {
		p.retest.started(p.ledger.batch)
	}
	p.busyPeriod.began(float64(p.waitingRows), float64(rows))
	p.waiting -= len(b.Items)
	p.waitingRows -= rows
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
	p.running--
	p.returns.batchEnded(now, len(items), items[0].Shape, p.unit)
	p.busyPeriod.ended(float64(p.waitingRows))
	latencies := 0.0
	for _, it := range items {
		latencies += float64(now - it.Arrived())
	}
	p.ledger.batchEnded(latencies)
	if p.probing() > 0 {
		p.probed++
	}
	// Rounds of probing begin at powers of two, so that their distance doubles up to its limit.
	if b := p.ledger.batch; b >= retryEvery && b&(b-1) == 0 || b%(maxRetryFactor*retryEvery) == 0 {
		p.probed = 0
		inUse := p.contention.useful
		if p.cycle.rows > 0 {
			inUse = p.cycle.parallel
		}
		p.contention.allowRetry(inUse, p.opt.Instances)
	}
	if !stopped {
		p.learn(r, float64(now-r.began))
	}
	if p.returns.closedLoop && !p.shapes.mixed() {
		p.updateCycle(now)
	} else {
		p.cycle = cycle{}
	}
	p.advanceReplay(now)
}

// learn records the duration of a batch, in nanoseconds.
func (p *Policy) learn(r *run, took float64) {
	expected := p.curve.expected(r.rows)
	if r.timeBeside[1] < 0.95*took { // others ran in parallel, or it had fewer threads
		if expected > 0 {
			p.contention.record(expected, &r.timeBeside, p.opt.Instances)
		}
		// A size that only runs in parallel with others is estimated from the slowdown.
		if solo := p.contention.soloTime(&r.timeBeside); solo > 0 && p.curve.needsSamples(r.rows) {
			p.curve.record(r.rows, solo)
			p.resize()
		}
		return
	}
	if p.opt.Exclusive && took < expected {
		p.contention.recordExclusive(took/expected, p.opt.Instances)
		return // it says nothing about other batches
	}
	if expected > 0 && took > 0 && p.curve.soloBatches > 2*minSamples && !p.curve.needsSamples(r.rows) {
		if by := p.drift.record(took / expected); by != 1 {
			p.curve.rescale(by)
			p.ledger.restart()
			p.busyPeriod = busyPeriod{} // queues were different at the old speed
			p.contention.restart(p.opt.Instances)
			p.pausedUntil = p.ledger.batch + settleBatches
			p.retest.drifted(p.ledger.batch)
			p.resize()
		}
	}
	if r.retest && took < retestGain*expected {
		// A batch may be slow by chance, but not fast.
		p.curve.forget(r.rows)
		p.retest.restart(p.ledger.batch)
	}
	p.curve.record(r.rows, took)
	if p.curve.sinceBuild == 0 {
		p.resize()
	}
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
