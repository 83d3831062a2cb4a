package automatic

import (
	"math/bits"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/explain"
)

// Explain returns what the policy knows now.
func (p *Policy) Explain() explain.Policy {
	n := min(p.opt.Instances, most)
	e := explain.Policy{
		MaxRows: p.opt.MaxRows, Instances: p.opt.Instances, Objective: p.opt.Objective,
		Curve: p.explainCurve(), Fixed: time.Duration(p.curve.fixed), PerRow: time.Duration(p.curve.perRow), Bent: p.curve.bent,
		Efficient: p.sizes.efficient, Peak: p.sizes.peak,
		Useful: p.contention.useful, Backlog: p.contention.backlog, Slowdown: slices.Clone(p.contention.slow[1 : n+1]),
		Arrived: min(p.rate.n, lasting), Rate: p.rate.over(p.changed, lasting) * float64(time.Second), Rows: p.rate.rows,
		Returns: p.returns.share, Loop: explain.Loop{Clients: p.cycle.clients, Rows: p.cycle.rows, Batches: p.cycle.places},
		Closed: p.closed, Batches: p.ledger.batch, Drifts: p.drift.seen, Drifted: p.drift.last,
		Waiting: p.waiting, Running: p.running,
	}
	if e.Rate > 0 {
		e.Crowded = p.gaps.within(0.1*float64(time.Second)/e.Rate, p.unit)
	}
	if e.Returns > 0 {
		e.Back, e.Last = time.Duration(p.returns.within(0.5)*p.unit), time.Duration(p.returns.within(0.9)*p.unit)
	}
	for i := range n {
		e.Measured = append(e.Measured, i == 0 || p.contention.measured[i+1] >= trusted)
	}
	if p.frozen > p.ledger.batch {
		e.Resting = p.frozen - p.ledger.batch
	}
	for _, t := range p.ledger.total {
		e.Total += time.Duration(t)
	}
	for r := gather; r < numbers; r++ {
		a := &p.ledger.of[r]
		cost, gain := a.sums()
		rule := explain.Rule{
			Name: ruleNames[r], On: p.ledger.on(r), Held: a.held, Cost: time.Duration(cost), Gain: time.Duration(gain), Stops: a.stops,
			AllCost: time.Duration(a.all[0]), AllGain: time.Duration(a.all[1]),
		}
		if !rule.On {
			rule.Off = a.off - p.ledger.batch
		}
		e.Rules = append(e.Rules, rule)
	}
	return e
}

// explainCurve returns the sizes that were measured, and between them powers of two
// and those that matter.
func (p *Policy) explainCurve() (all []explain.Size) {
	if !p.curve.known() {
		return nil
	}
	matters := []int{p.sizes.efficient, p.sizes.peak, p.cycle.rows, p.curve.max()}
	for rows := 1; rows <= p.curve.max(); rows++ {
		c := &p.curve.cells[rows]
		if c.weight+c.pinned > 0 || bits.OnesCount(uint(rows)) == 1 || slices.Contains(matters, rows) {
			all = append(all, explain.Size{Rows: rows, Takes: time.Duration(c.takes), Slow: time.Duration(p.curve.slowAt(rows)), Live: c.weight, Calibrated: c.pinned > 0})
		}
	}
	return all
}
