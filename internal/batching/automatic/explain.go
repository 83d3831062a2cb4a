package automatic

import (
	"math/bits"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/explain"
)

// Explain describes the state of the policy. It allocates.
func (p *Policy) Explain() explain.Policy {
	p.costs = p.latest
	n := min(p.opt.Instances, maxParallel)
	e := explain.Policy{
		MaxRows: p.opt.MaxRows, Instances: p.opt.Instances, Objective: p.opt.Objective,
		Curve: p.explainCurve(), FixedCost: time.Duration(p.curve.fixed), CostPerRow: time.Duration(p.curve.perRow), Nonlinear: p.curve.nonlinear,
		TargetRows: p.sizes.efficient, PeakRows: p.sizes.peak,
		UsefulInstances: p.contention.useful, BacklogInstances: p.contention.backlog, Slowdown: slices.Clone(p.contention.factor[1 : n+1]),
		Arrived: min(p.rate.n, longWindow), Rate: p.rate.over(p.lastChange, longWindow) * float64(time.Second), Rows: p.rate.rows,
		ReturnShare: p.returns.share, ClosedLoop: explain.ClosedLoop{Clients: p.cycle.clients, Rows: p.cycle.rows, Batches: p.cycle.parallel},
		Padded: p.padding.used.explain(), NotPadded: p.padding.rejected.explain(),
		Closed: p.closed, SmallBatches: p.small.count, Batches: p.ledger.batch, Drifts: p.drift.count, DriftFactor: p.drift.factor,
		Waiting: p.waiting, Running: p.running,
	}
	if e.Rate > 0 {
		e.BurstShare = p.gaps.shareWithin(0.1*float64(time.Second)/e.Rate, p.unit)
	}
	if e.ReturnShare > 0 {
		e.ReturnP50, e.ReturnP90 = time.Duration(p.returns.quantile(0.5)*p.unit), time.Duration(p.returns.quantile(0.9)*p.unit)
	}
	for i := range n {
		e.Measured = append(e.Measured, i == 0 || p.contention.samples[i+1] >= minTrusted)
	}
	if p.pausedUntil > p.ledger.batch {
		e.RestBatches = p.pausedUntil - p.ledger.batch
	}
	for _, t := range p.ledger.total {
		e.TotalLatency += time.Duration(t)
	}
	for r := gather; r < ruleCount; r++ {
		a := &p.ledger.accounts[r]
		cost, gain := a.sums()
		rule := explain.Rule{
			Name: ruleNames[r], Enabled: p.ledger.enabled(r), HeldBatches: a.uses, Cost: time.Duration(cost), Gain: time.Duration(gain), Stops: a.stops,
			TotalCost: time.Duration(a.lifetime[0]), TotalGain: time.Duration(a.lifetime[1]),
		}
		if !rule.Enabled {
			rule.OffBatches = a.offUntil - p.ledger.batch
		}
		e.Rules = append(e.Rules, rule)
	}
	return e
}

func (t paddingTimes) explain() explain.PaddingTimes {
	return explain.PaddingTimes{Batches: t.batches, Together: time.Duration(t.together), Separate: time.Duration(t.separate)}
}

// explainCurve returns the measured sizes, and between them the powers of two and the
// sizes in use.
func (p *Policy) explainCurve() (all []explain.Size) {
	if !p.curve.known() {
		return nil
	}
	matters := []int{p.sizes.efficient, p.sizes.peak, p.cycle.rows, p.curve.max()}
	for rows := 1; rows <= p.curve.max(); rows++ {
		c := &p.curve.cells[rows]
		if c.weight+c.calibratedWeight > 0 || bits.OnesCount(uint(rows)) == 1 || slices.Contains(matters, rows) {
			all = append(all, explain.Size{Rows: rows, Expected: time.Duration(c.expected), P95: time.Duration(p.curve.p95(rows)), Samples: c.weight, Calibrated: c.calibratedWeight > 0})
		}
	}
	return all
}
