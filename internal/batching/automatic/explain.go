package automatic

import (
	"math/bits"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// An Explanation is a copy of all that a policy knows, and what it makes of it.
type Explanation struct {
	MaxRows   int           `json:"max_rows"`
	Instances int           `json:"instances"`              // the most that may run at once
	Objective time.Duration `json:"objective_ns,omitempty"` // 0 means none

	Curve     []Size        `json:"curve,omitempty"` // ascending; empty if nothing is known
	Fixed     time.Duration `json:"fixed_ns"`
	PerRow    time.Duration `json:"per_row_ns"`
	Bent      bool          `json:"bent"`      // the line does not tell it all
	Efficient int           `json:"efficient"` // rows that batches are filled up to
	Peak      int           `json:"peak"`      // rows at which the model does most in its time

	Slowdown []float64 `json:"slowdown"` // Slowdown[n-1] is how many times longer a batch takes while n run
	Measured []bool    `json:"measured"` // whether that was measured, or is what is taken for granted until then
	Useful   int       `json:"useful"`   // batches that are worth running at once
	Backlog  int       `json:"backlog"`  // the same while more waits than one batch takes

	Arrived int           `json:"arrived"`           // requests that the next three rest on: the last ones
	Rate    float64       `json:"rate"`              // requests a second
	Rows    float64       `json:"rows"`              // of a request, on average
	Crowded float64       `json:"crowded"`           // the part that came within a tenth of the mean distance after another
	Returns float64       `json:"returns"`           // the part of answered requests whose client soon sends the next
	Back    time.Duration `json:"back_ns,omitempty"` // within which half of those do
	Last    time.Duration `json:"last_ns,omitempty"` // within which 9 of 10 of them do
	Loop    Loop          `json:"loop"`

	Rules   []Rule                   `json:"rules"`
	Total   time.Duration            `json:"total_ns"` // that the requests of the recent batches took, in all
	Closed  [batching.Reasons]uint64 `json:"-"`        // batches, by why they closed
	Batches uint64                   `json:"batches"`
	Drifts  uint64                   `json:"drifts"`                 // times that the model's speed changed
	Drifted float64                  `json:"drifted,omitempty"`      // how many times longer batches took after the last one
	Resting uint64                   `json:"rest_batches,omitempty"` // batches until rules are used again after it
	Waiting int                      `json:"waiting"`
	Running int                      `json:"running"`
}

// A Size is how long batches of some rows take. If it rests on nothing of its own,
// it follows from the other sizes.
type Size struct {
	Rows       int           `json:"rows"`
	Takes      time.Duration `json:"takes_ns"`
	Slow       time.Duration `json:"slow_ns,omitempty"` // what 19 of 20 keep to; 0 if that is not known
	Live       float64       `json:"live"`              // recent batches that it rests on
	Calibrated bool          `json:"calibrated"`
}

// A Loop is how clients are served that wait for their answers. It is zero if the
// traffic is of another kind.
type Loop struct {
	Clients float64 `json:"clients"` // requests that are on their way at once
	Rows    int     `json:"rows"`    // that their batches are to have
	Batches int     `json:"batches"` // at once
}

// A Rule is one reason to do otherwise than greedy, and what came of it.
type Rule struct {
	Name  string        `json:"name"`
	On    bool          `json:"on"`
	Off   uint64        `json:"off_batches"` // batches until it is tried again
	Held  uint64        `json:"held"`        // batches that it held back or cut
	Cost  time.Duration `json:"cost_ns"`     // of the recent ones: time that requests took longer than they would have
	Gain  time.Duration `json:"gain_ns"`     // time that they took less
	Stops uint64        `json:"stops"`       // times that it was switched off

	// Cost and Gain from the start.
	AllCost time.Duration `json:"cost_total_ns"`
	AllGain time.Duration `json:"gain_total_ns"`
}

// Explain returns what the policy knows now.
func (p *Policy) Explain() Explanation {
	n := min(p.opt.Instances, most)
	e := Explanation{
		MaxRows: p.opt.MaxRows, Instances: p.opt.Instances, Objective: p.opt.Objective,
		Curve: p.explainCurve(), Fixed: time.Duration(p.curve.fixed), PerRow: time.Duration(p.curve.perRow), Bent: p.curve.bent,
		Efficient: p.sizes.efficient, Peak: p.sizes.peak,
		Useful: p.contention.useful, Backlog: p.contention.backlog, Slowdown: slices.Clone(p.contention.slow[1 : n+1]),
		Arrived: min(p.rate.n, lasting), Rate: p.rate.over(p.changed, lasting) * float64(time.Second), Rows: p.rate.rows,
		Returns: p.returns.share, Loop: Loop{p.cycle.clients, p.cycle.rows, p.cycle.places},
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
		rule := Rule{
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
func (p *Policy) explainCurve() (all []Size) {
	if !p.curve.known() {
		return nil
	}
	matters := []int{p.sizes.efficient, p.sizes.peak, p.cycle.rows, p.curve.max()}
	for rows := 1; rows <= p.curve.max(); rows++ {
		c := &p.curve.cells[rows]
		if c.weight+c.pinned > 0 || bits.OnesCount(uint(rows)) == 1 || slices.Contains(matters, rows) {
			all = append(all, Size{rows, time.Duration(c.takes), time.Duration(p.curve.slowAt(rows)), c.weight, c.pinned > 0})
		}
	}
	return all
}
