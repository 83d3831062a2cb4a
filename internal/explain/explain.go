// Package explain says why a model is run as it is: what was written, what was
// measured, what the traffic is like, and what is made of it.
//
// It has the words, the types and the page of text. The scheduler's policy and the
// repository know the facts and fill them in; this package decides nothing and
// imports no policy.
package explain

import "time"

// A Model is one loaded version of a model at one moment. As JSON, times are in
// nanoseconds.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Backend string `json:"backend"`

	Batching         Batching `json:"batching"`
	Instances        Number   `json:"instances"`                   // that may run at once
	Threads          *Number  `json:"threads,omitempty"`           // of one batch; nil if the engine has no such thing
	ExclusiveThreads int      `json:"exclusive_threads,omitempty"` // threads of an exclusive batch, which begins while no other runs; 0 if as of any
	Measured         Measured `json:"measured"`

	// Curve is how long batches take. Without a policy that learns, it is the mean of
	// those that ran.
	Curve  []Size  `json:"curve,omitempty"`
	Policy *Policy `json:"policy,omitempty"` // without its curve; nil if nothing is automatic
	Done   Done    `json:"done"`

	Objective *Objective `json:"objective,omitempty"` // nil if the model has none
}

// By says who has settled something.
type By string

// Those who may have.
const (
	Written   By = "written"   // the user, in the configuration, and it is kept
	Automatic By = "automatic" // Shoal, since nobody else has
	Default   By = "default"   // nobody, and nothing is to be found out
)

// A Setting is who has settled something, and why so.
type Setting struct {
	By    By     `json:"by"`
	Where string `json:"where,omitempty"` // FILE:LINE, if it is written in a file
	Why   string `json:"why"`             // a sentence without its full stop
}

// A Number is a setting that is one.
type Number struct {
	Setting
	Count int `json:"count"` // 0 if only the engine knows
}

// Batching is how requests are combined.
type Batching struct {
	Setting
	Combines     bool           `json:"combines"`
	MaxRows      int            `json:"max_rows"`                 // of a batch; 0 if the model has no batch dimension
	MaxRowsWhere string         `json:"max_rows_where,omitempty"` // FILE:LINE, if it is written
	Preferred    []int          `json:"preferred,omitempty"`      // where that is written
	Delay        *time.Duration `json:"delay_ns,omitempty"`       // where that is written
	Safety       Safety         `json:"safety"`
}

// Safety is whether rows of several requests may share a batch.
type Safety struct {
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"`
}

// A Verdict is what came of running rows alone and together.
type Verdict string

// What it may be.
const (
	Safe   Verdict = "safe"
	Unsafe Verdict = "unsafe"
	Asked  Verdict = "not tried" // whoever wrote the configuration knows
)

// Measured is what calibration has come to.
type Measured struct {
	State State   `json:"state"`
	Error string  `json:"error,omitempty"` // why it has ended early
	Steps uint64  `json:"steps"`           // that were measured since the model was loaded; what was kept of earlier ones does not count
	Tried []Trial `json:"tried,omitempty"`

	// Shape is that of the rows that were measured, "x[3,48,224]", where the model takes
	// any; "" if it does not, or has not been measured.
	Shape     string `json:"shape,omitempty"`
	ShapeFrom From   `json:"shape_from,omitempty"`
}

// From is where a shape comes from.
type From string

// Where it may.
const (
	MadeUp  From = "made up"
	Sample  From = "model_warmup"
	Traffic From = "traffic"
)

// A State is how far calibration is.
type State string

// How far it may be.
const (
	Idle  State = "nothing to measure"
	Going State = "under way"
	Ended State = "done"
)

// A Trial is a number of threads and instances, and what they do together.
type Trial struct {
	Threads          int           `json:"threads"`
	ExclusiveThreads int           `json:"exclusive_threads,omitempty"` // of an exclusive batch; 0 if as of any
	Instances        int           `json:"instances"`
	Rows             int           `json:"rows"` // of the batches at which they do the most
	PerSecond        float64       `json:"rows_per_second"`
	Alone            time.Duration `json:"alone_ns"` // one row, by itself
	Chosen           bool          `json:"chosen"`
}

// Done is what the version has done since it was loaded.
type Done struct {
	Requests uint64        `json:"requests"` // that were answered with outputs
	Failed   uint64        `json:"failed"`
	Batches  uint64        `json:"batches"`
	Rows     uint64        `json:"rows"`             // of the batches
	Wait     time.Duration `json:"wait_ns"`          // of a request in the queue, on average
	Waiting  int           `json:"waiting"`          // requests in the queue now
	Since    time.Duration `json:"since_ns"`         // the last run has ended; 0 if nothing ran
	Closed   []Closed      `json:"closed,omitempty"` // the batches, by why they were not made larger; most first
}

// Closed is how many batches closed for one reason, a [batching.Reason].
type Closed struct {
	Reason  string `json:"reason"`
	Batches uint64 `json:"batches"`
}

// An Objective is how long requests may take, and how that goes.
type Objective struct {
	Limit   time.Duration `json:"limit_ns"`
	Where   string        `json:"where,omitempty"`
	Late    uint64        `json:"late"`    // requests that were answered later
	Refused uint64        `json:"refused"` // that were told at once that they would be
}
