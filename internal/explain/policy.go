package explain

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Policy is a snapshot of what a learning policy has measured, and what it decides.
type Policy struct {
	MaxRows   int           `json:"max_rows"`
	Instances int           `json:"instances"`              // maximum number of parallel batches
	Objective time.Duration `json:"objective_ns,omitempty"` // 0 means none

	Curve      []Size        `json:"curve,omitempty"` // ascending by rows; empty if nothing is known
	FixedCost  time.Duration `json:"fixed_ns"`
	CostPerRow time.Duration `json:"per_row_ns"`
	Nonlinear  bool          `json:"bent"`      // batch times deviate from the line
	TargetRows int           `json:"efficient"` // target batch size in rows
	PeakRows   int           `json:"peak"`      // batch size with the best throughput, in rows

	Slowdown         []float64 `json:"slowdown"` // Slowdown[n-1] is how many times longer a batch takes while n batches run
	Measured         []bool    `json:"measured"` // Measured[n-1] is false while Slowdown[n-1] is an assumption
	UsefulInstances  int       `json:"useful"`   // number of batches that run in parallel
	BacklogInstances int       `json:"backlog"`  // the same during a backlog

	Arrived     int           `json:"arrived"`           // number of recent requests behind the next three fields
	Rate        float64       `json:"rate"`              // requests per second
	Rows        float64       `json:"rows"`              // average rows of a request
	BurstShare  float64       `json:"crowded"`           // share that arrived within a tenth of the mean interval after another
	ReturnShare float64       `json:"returns"`           // share of answered clients that soon send their next request
	ReturnP50   time.Duration `json:"back_ns,omitempty"` // p50 of the time until they do
	ReturnP90   time.Duration `json:"last_ns,omitempty"` // p90 of the time until they do
	ClosedLoop  ClosedLoop    `json:"loop"`

	// Padded and NotPadded are batches that requests of other lengths have joined, and batches
	// that the most similar of them could have joined.
	Padded    PaddingTimes `json:"padded"`
	NotPadded PaddingTimes `json:"not_padded"`

	Rules        []Rule                      `json:"rules"`
	TotalLatency time.Duration               `json:"total_ns"` // total latency of the requests of recent batches
	Closed       [batching.NumReasons]uint64 `json:"-"`        // batches by reason for closing
	Batches      uint64                      `json:"batches"`
	SmallBatches uint64                      `json:"small_batches,omitempty"` // of them, far smaller than what waited and than the efficient size, 64 and more in a row
	Drifts       uint64                      `json:"drifts"`                  // number of changes of the model's speed
	DriftFactor  float64                     `json:"drifted,omitempty"`       // how many times longer batches take since the last change
	RestBatches  uint64                      `json:"rest_batches,omitempty"`  // batches until rules are used again after the change
	Waiting      int                         `json:"waiting"`
	Running      int                         `json:"running"`
}

// A Size is the duration of batches of one size. Without samples of its own, it is
// estimated from other sizes.
type Size struct {
	Rows       int           `json:"rows"`
	Expected   time.Duration `json:"takes_ns"`
	P95        time.Duration `json:"slow_ns,omitempty"` // p95; 0 if unknown
	Samples    float64       `json:"live"`              // number of recent batches that were measured
	Calibrated bool          `json:"calibrated"`
}

// A ClosedLoop describes how a closed loop is served. It is zero if the traffic is not a closed
// loop.
type ClosedLoop struct {
	Clients float64 `json:"clients"` // number of concurrent requests
	Rows    int     `json:"rows"`    // target batch size
	Batches int     `json:"batches"` // number of parallel batches
}

// PaddingTimes are the expected times of a number of batches since the model was loaded: in
// one batch with padding, and in a batch for each shape.
type PaddingTimes struct {
	Batches  uint64        `json:"batches"`
	Together time.Duration `json:"together_ns"`
	Separate time.Duration `json:"separate_ns"`
}

// A Rule is one reason to deviate from greedy, and its effect.
type Rule struct {
	Name        string        `json:"name"`
	Enabled     bool          `json:"on"`
	OffBatches  uint64        `json:"off_batches"` // batches until it is enabled again
	HeldBatches uint64        `json:"held"`        // batches that it held or cut
	Cost        time.Duration `json:"cost_ns"`     // of recent batches: latency that the rule added
	Gain        time.Duration `json:"gain_ns"`     // of recent batches: latency that the rule saved
	Stops       uint64        `json:"stops"`       // number of times that it was disabled

	// Cost and Gain since the model was loaded.
	TotalCost time.Duration `json:"cost_total_ns"`
	TotalGain time.Duration `json:"gain_total_ns"`
}
