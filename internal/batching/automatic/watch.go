package automatic

import "github.com/shoal-serving/shoal/internal/batching"

// Arrived implements [batching.Watcher].
func (p *Policy) Arrived(_ batching.Time, it *batching.Item) {
	p.waiting++
	p.rows += it.Rows
}

// Left implements [batching.Watcher].
func (p *Policy) Left(_ batching.Time, it *batching.Item) {
	p.waiting--
	p.rows -= it.Rows
}

// Began implements [batching.Watcher].
func (p *Policy) Began(now batching.Time, instance int, items []*batching.Item) {
	r := p.runOf(instance)
	*r = run{busy: true, began: now, requests: len(items), alone: p.running == 0}
	for _, it := range items {
		r.rows += it.Rows
	}
	p.waiting -= r.requests
	p.rows -= r.rows
	if p.running++; p.running > 1 {
		for i := range p.runs {
			p.runs[i].alone = false
		}
	}
}

// Ended implements [batching.Watcher].
func (p *Policy) Ended(now batching.Time, instance int, _ []*batching.Item, stopped bool) {
	r := p.runOf(instance)
	r.busy = false
	p.running--
	if r.alone && !stopped {
		p.curve.measured(r.rows, float64(now-r.began))
		if p.curve.fresh == 0 {
			p.sizes = sizesOf(&p.curve, p.opt.Objective)
		}
	}
}

// A run is the batch that an instance runs.
type run struct {
	busy           bool
	alone          bool // nothing has run beside it
	began          batching.Time
	rows, requests int
}

// runOf returns the batch of an instance, which may have come after the start.
func (p *Policy) runOf(instance int) *run {
	for len(p.runs) < instance {
		p.runs = append(p.runs, run{})
	}
	return &p.runs[instance-1]
}
