package automatic

import (
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// An Explanation is a copy of all that a policy knows, and what it makes of it.
type Explanation struct {
	MaxRows   int           `json:"max_rows"`
	Instances int           `json:"instances"`              // the most that may run at once
	Objective time.Duration `json:"objective_ns,omitempty"` // 0 means none

	Curve     []Size        `json:"curve"` // sizes that were measured, ascending
	Fixed     time.Duration `json:"fixed_ns"`
	PerRow    time.Duration `json:"per_row_ns"`
	Bent      bool          `json:"bent"`      // the line does not tell it all
	Efficient int           `json:"efficient"` // rows that batches are filled up to
	Peak      int           `json:"peak"`      // rows at which the model does most in its time

	Slowdown []float64 `json:"slowdown"` // Slowdown[n-1] is how many times longer a batch takes while n run
	Useful   int       `json:"useful"`   // batches that are worth running at once
	Backlog  int       `json:"backlog"`  // the same while more waits than one batch takes

	Rate    float64 `json:"rate"`    // requests a second
	Returns float64 `json:"returns"` // the part of answered requests whose client soon sends the next
	Loop    Loop    `json:"loop"`

	Rules   []Rule                   `json:"rules"`
	Closed  [batching.Reasons]uint64 `json:"closed"` // batches, by why they closed
	Batches uint64                   `json:"batches"`
	Drifts  uint64                   `json:"drifts"` // times that the model's speed changed
	Waiting int                      `json:"waiting"`
	Running int                      `json:"running"`
}

// A Loop is how clients are served that wait for their answers. It is zero if the
// traffic is of another kind.
type Loop struct {
	Clients float64 `json:"clients"` // requests that are on their way at once
	Rows    int     `json:"rows"`    // that their batches are to have
	Batches int     `json:"batches"` // at once
}

// A Size is how long batches of some rows take.
type Size struct {
	Rows       int           `json:"rows"`
	Takes      time.Duration `json:"takes_ns"`
	Slow       time.Duration `json:"slow_ns"` // what 19 of 20 keep to
	Live       float64       `json:"live"`    // recent batches that it rests on
	Calibrated bool          `json:"calibrated"`
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
}

// Explain returns what the policy knows now.
func (p *Policy) Explain() Explanation {
	e := Explanation{
		MaxRows: p.opt.MaxRows, Instances: p.opt.Instances, Objective: p.opt.Objective,
		Fixed: time.Duration(p.curve.fixed), PerRow: time.Duration(p.curve.perRow), Bent: p.curve.bent,
		Efficient: p.sizes.efficient, Peak: p.sizes.peak,
		Useful: p.contention.useful, Backlog: p.contention.backlog, Slowdown: slices.Clone(p.contention.slow[1 : min(p.opt.Instances, most)+1]),
		Rate: p.rate.over(p.changed, lasting) * float64(time.Second), Returns: p.returns.share, Loop: Loop{p.cycle.clients, p.cycle.rows, p.cycle.places},
		Closed: p.closed, Batches: p.ledger.batch, Drifts: p.drift.seen,
		Waiting: p.waiting, Running: p.running,
	}
	for r := gather; r < numbers; r++ {
		a := &p.ledger.of[r]
		cost, gain := a.sums()
		rule := Rule{Name: ruleNames[r], On: p.ledger.on(r), Held: a.held, Cost: time.Duration(cost), Gain: time.Duration(gain), Stops: a.stops}
		if !rule.On {
			rule.Off = a.off - p.ledger.batch
		}
		e.Rules = append(e.Rules, rule)
	}
	for rows := 1; rows <= p.curve.max(); rows++ {
		c := &p.curve.cells[rows]
		if c.weight+c.pinned > 0 {
			e.Curve = append(e.Curve, Size{rows, time.Duration(c.takes), time.Duration(c.slow), c.weight, c.pinned > 0})
		}
	}
	return e
}
