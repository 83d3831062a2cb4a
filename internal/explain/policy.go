package explain

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Policy is a copy of all that a policy that learns knows, and what it decides from
// it.
type Policy struct {
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
