// Package explain describes how a loaded model runs and why: what is configured, what was
// measured, what the traffic is like, and which settings follow from that.
//
// It has the types and the text of the page. The batching policy and the loaded version
// fill them in; this package decides nothing and imports no policy.
package explain

import "time"

// A Model is a snapshot of one loaded version of a model. As JSON, times are in
// nanoseconds.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Backend string `json:"backend"`

	Batching         Batching    `json:"batching"`
	Instances        Number      `json:"instances"`                   // number of batches that may run in parallel
	Threads          *Number     `json:"threads,omitempty"`           // of one batch; nil if the engine does not let it be set
	ExclusiveThreads int         `json:"exclusive_threads,omitempty"` // threads of an exclusive batch, which starts while no other runs; 0 means the same as others
	Calibration      Calibration `json:"measured"`

	// Curve is the table of batch times. Without a policy that learns, it has the means of
	// all batches that ran.
	Curve  []Size  `json:"curve,omitempty"`
	Policy *Policy `json:"policy,omitempty"` // without its curve; nil if no setting is automatic
	Totals Totals  `json:"done"`

	Objective *Objective `json:"objective,omitempty"` // nil if the model has none
	Slots     *Slots     `json:"slots,omitempty"`     // nil if requests do not belong to sequences
	Ensemble  *Ensemble  `json:"ensemble,omitempty"`  // nil if the model is not an ensemble
}

// Slots are those for sequences, now.
type Slots struct {
	All     int `json:"all"`     // of the instances that can run requests
	Used    int `json:"used"`    // that a sequence has
	Waiting int `json:"waiting"` // sequences that wait for one
}

// An Ensemble is what the steps of an ensemble did in its successful requests.
type Ensemble struct {
	Requests uint64        `json:"requests"`
	Time     time.Duration `json:"time_ns"`       // of a request on average, from the start of its first step to the end of its last
	Between  float64       `json:"between_share"` // part of that time in which no step of the critical path ran
	Steps    []Step        `json:"steps"`         // each after those that it needs
}

// A Step is a step of an ensemble. Times are averages of the requests in which it ran.
type Step struct {
	Model    string        `json:"model"`
	Version  string        `json:"version,omitempty"` // "" means the one that the model's policy selects
	Requests uint64        `json:"requests"`          // in which it ran
	Time     time.Duration `json:"time_ns"`           // from its start to its response
	Queue    time.Duration `json:"queue_ns"`          // the part of it in the model's queue
	Compute  time.Duration `json:"compute_ns"`        // the part of it in which its batch ran

	// Critical is the number of requests in which the step is on the critical path: the chain of
	// steps, each of which waited for the one before, that ended last. Share is the part of the
	// time of all requests that it took there.
	Critical uint64  `json:"critical"`
	Share    float64 `json:"critical_share"`
}

// Origin is the origin of a setting.
type Origin string

// Origins of settings.
const (
	Configured Origin = "written"   // configured explicitly
	Automatic  Origin = "automatic" // decided by Shoal, because it is not configured
	Default    Origin = "default"   // a default that does not depend on measurements
)

// A Setting is the origin of a setting, and the reason.
type Setting struct {
	Origin Origin `json:"by"`
	Where  string `json:"where,omitempty"` // FILE:LINE, if it is in a configuration file
	Why    string `json:"why"`             // a sentence without a period
}

// A Number is a numeric setting.
type Number struct {
	Setting
	Count int `json:"count"` // 0 if the engine decides
}

// Batching describes how requests are combined.
type Batching struct {
	Setting
	Combines       bool           `json:"combines"`
	MaxRows        int            `json:"max_rows"`                    // maximum batch size; 0 if the model has no batch dimension
	MaxRowsWhere   string         `json:"max_rows_where,omitempty"`    // FILE:LINE, if it is configured
	MaxRowsByModel bool           `json:"max_rows_by_model,omitempty"` // the model's code sets it
	Preferred      []int          `json:"preferred,omitempty"`         // if configured
	Delay          *time.Duration `json:"delay_ns,omitempty"`          // if configured
	Safety         Safety         `json:"safety"`
	Padding        *Padding       `json:"padding,omitempty"` // nil if neither the configuration nor the model suggests it
}

// Padding is whether requests of different lengths may be padded to share a batch.
type Padding struct {
	Safety
	Detected bool `json:"detected"` // the model's inputs suggest it; otherwise it is configured
}

// Safety is whether requests may share a batch.
type Safety struct {
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"`
}

// A Verdict is the result of the check for independent rows.
type Verdict string

// Results of the check.
const (
	Safe       Verdict = "safe"
	Unsafe     Verdict = "unsafe"
	NotChecked Verdict = "not tried" // the configuration decides
)

// Calibration is the state of calibration and its results.
type Calibration struct {
	State  CalibrationState `json:"state"`
	Error  string           `json:"error,omitempty"` // why it ended early
	Steps  uint64           `json:"steps"`           // number of steps since the model was loaded, without stored results
	Trials []Trial          `json:"tried,omitempty"`

	// Shape is the input shape that was measured, such as "x[3,48,224]", if the model has a
	// variable shape; "" if it has not, or was not measured.
	Shape       string      `json:"shape,omitempty"`
	ShapeOrigin ShapeOrigin `json:"shape_from,omitempty"`
}

// ShapeOrigin is the origin of a shape.
type ShapeOrigin string

// Origins of shapes.
const (
	SyntheticShape ShapeOrigin = "made up"
	SampleShape    ShapeOrigin = "model_warmup"
	TrafficShape   ShapeOrigin = "traffic"
)

// A CalibrationState is the progress of calibration.
type CalibrationState string

// States of calibration.
const (
	CalibrationNotNeeded CalibrationState = "nothing to measure"
	CalibrationRunning   CalibrationState = "under way"
	CalibrationDone      CalibrationState = "done"
)

// A Trial is a measured combination of threads and instances.
type Trial struct {
	Threads          int           `json:"threads"`
	ExclusiveThreads int           `json:"exclusive_threads,omitempty"` // of an exclusive batch; 0 means the same as others
	Instances        int           `json:"instances"`
	Rows             int           `json:"rows"` // batch size with the best throughput
	PerSecond        float64       `json:"rows_per_second"`
	SingleLatency    time.Duration `json:"alone_ns"` // latency of a single row
	Chosen           bool          `json:"chosen"`
}

// Totals are the counters of the version since it was loaded.
type Totals struct {
	Requests       uint64        `json:"requests"` // requests that succeeded
	Failed         uint64        `json:"failed"`
	Batches        uint64        `json:"batches"`
	Rows           uint64        `json:"rows"`             // total rows of the batches
	MeanQueueTime  time.Duration `json:"wait_ns"`          // average time of a request in the queue
	Waiting        int           `json:"waiting"`          // requests in the queue now
	SinceLastBatch time.Duration `json:"since_ns"`         // time since the last batch ended; 0 if none has run
	Closed         []CloseCount  `json:"closed,omitempty"` // batches by reason for closing, in descending order
}

// CloseCount is the number of batches that closed for one [batching.Reason].
type CloseCount struct {
	Reason  string `json:"reason"`
	Batches uint64 `json:"batches"`
}

// An Objective is a latency objective, and how well it is met.
type Objective struct {
	Limit   time.Duration `json:"limit_ns"`
	Where   string        `json:"where,omitempty"`
	Late    uint64        `json:"late"`    // requests that were answered late
	Refused uint64        `json:"refused"` // requests that were refused because they would have been late
}
