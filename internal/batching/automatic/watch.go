package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	settling = 16   // batches for which rules rest when the model's speed has changed
	tryFor   = 64   // batches for which it is tried how many at once are worth it
	again    = 2048 // batches after which it is tried again whether one more at once is worth it, and then after twice as many each time
	seldom   = 32   // times as many are the most
)

// A run is the batch that an instance runs.
type run struct {
	busy           bool
	began          batching.Time
	rows, requests int
	retest         bool
	shared         bool              // it has fewer threads than an exclusive batch, and counts as one of two at least
	beside         [most + 1]float64 // nanoseconds that it ran while n did, from 1
}

// Arrived implements [batching.Watcher].
func (p *Policy) Arrived(now batching.Time, it *batching.Item) {
	p.rate.arrived(now, it.Rows)
	p.gaps.arrived(now, p.unit)
	if p.unit > 0 {
		p.returns.arrived(now, p.unit)
	}
	p.replayArrived(now, it.Rows)
	p.waiting++
	p.rows += it.Rows
}

// Left implements [batching.Watcher].
func (p *Policy) Left(_ batching.Time, it *batching.Item) {
	p.waiting--
	p.rows -= it.Rows
	p.replayLeft(it.Rows)
	if p.waiting == 0 {
		p.hold = hold{}
	}
}

// Held implements [batching.Watcher].
func (p *Policy) Held(now batching.Time, d batching.Decision) {
	if d.Rule == none {
		return // as many batches run as are worth it
	}
	if p.hold.rule == none {
		p.startReplay(d.Rule, now, p.sizes.efficient)
		p.hold.since = now
	}
	p.hold.rule, p.hold.until, p.hold.full = d.Rule, d.Until, d.Full
}

// Began implements [batching.Watcher].
func (p *Policy) Began(now batching.Time, b *batching.Action) {
	rows := 0
	for _, it := range b.Items {
		rows += it.Rows
	}
	p.closed[b.Why]++
	if b.Why == batching.Cut || b.Why == batching.Shared {
		p.startReplay(cut, now, p.opt.MaxRows)
	}
	if p.hold.rule == burst {
		p.gaps.vain.ended(now-p.hold.since, p.gaps.last > p.hold.since)
	}
	p.replayBegan(now, len(b.Items), rows)
	p.pass(now)
	r := p.runOf(b.Instance)
	*r = run{busy: true, began: now, rows: rows, requests: len(b.Items), retest: b.Why == batching.Retest, shared: p.opt.Exclusive && !b.Exclusive}
	if r.retest {
		p.retest.began(p.ledger.batch)
	}
	p.behind.began(float64(p.rows), float64(rows))
	p.waiting -= len(b.Items)
	p.rows -= rows
	p.running++
	p.began = now
	p.hold = hold{}
}

// Ended implements [batching.Watcher].
func (p *Policy) Ended(now batching.Time, instance int, items []*batching.Item, stopped bool) {
	p.pass(now)
	r := p.runOf(instance)
	r.busy = false
	p.running--
	p.returns.batchEnded(now, len(items), p.unit)
	p.behind.ended(float64(p.rows))
	all := 0.0
	for _, it := range items {
		all += float64(now - it.Arrived())
	}
	p.ledger.took(all)
	if p.tries() > 0 {
		p.tried++
	}
	if b := p.ledger.batch; b >= again && b&(b-1) == 0 || b%(seldom*again) == 0 {
		p.tried = 0
		inUse := p.contention.useful
		if p.cycle.rows > 0 {
			inUse = p.cycle.places
		}
		p.contention.tire(inUse, p.opt.Instances)
	}
	if !stopped {
		p.learn(r, float64(now-r.began))
	}
	if p.returns.loops {
		p.observe(now)
	} else {
		p.cycle = cycle{}
	}
	p.replayTo(now)
}

// learn takes in how long a batch took.
func (p *Policy) learn(r *run, took float64) {
	expected := p.curve.at(r.rows)
	if r.beside[1] < 0.95*took {
		if expected > 0 {
			p.contention.learn(expected, &r.beside, p.opt.Instances)
		}
		// A size that never runs alone is known by what it would have taken.
		if alone := p.contention.alone(&r.beside); alone > 0 && p.curve.needs(r.rows) {
			p.curve.measured(r.rows, alone)
			p.resize()
		}
		return
	}
	if p.opt.Exclusive && took < expected {
		p.contention.exclusive(took/expected, p.opt.Instances)
		return // of others it says nothing
	}
	if expected > 0 && took > 0 && p.curve.solo > 2*own && !p.curve.needs(r.rows) {
		if by := p.drift.measured(took / expected); by != 1 {
			p.curve.rescale(by)
			p.ledger.restart()
			p.behind = behind{} // queues were others
			p.contention.restart(p.opt.Instances)
			p.frozen = p.ledger.batch + settling
			p.retest.drifted(p.ledger.batch)
			p.resize()
		}
	}
	if r.retest && took < retestGain*expected {
		// A batch may be slow by chance, but not fast.
		p.curve.forget(r.rows)
		p.retest.restart(p.ledger.batch)
	}
	p.curve.measured(r.rows, took)
	if p.curve.fresh == 0 {
		p.resize()
	}
}

// pass notes how long how many batches have run.
func (p *Policy) pass(now batching.Time) {
	ran, n := float64(now-p.changed), min(p.running, most)
	p.changed = now
	for i := range p.runs {
		switch r := &p.runs[i]; {
		case r.busy && r.shared:
			r.beside[max(n, 2)] += ran
		case r.busy:
			r.beside[n] += ran
		}
	}
}

// runOf returns the batch of an instance, which may have come after the start.
func (p *Policy) runOf(instance int) *run {
	for len(p.runs) < instance {
		p.runs = append(p.runs, run{})
	}
	return &p.runs[instance-1]
}
