package simulate

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/explain"
)

// A Report is the result of a scenario.
type Report struct {
	Title  string `json:"title"`
	Text   string `json:"text,omitempty"`
	Unit   Unit   `json:"unit,omitzero"`
	Varied string `json:"varied,omitempty"` // "clients" or "rate", if settings vary it
	Runs   []*Run `json:"runs"`             // by setting, and then by the varied parameter
}

// A Run is the result of one setting. If it is long, it has only the first batches and
// requests; its sums cover all.
type Run struct {
	Setting  string          `json:"setting"`
	Point    float64         `json:"point,omitempty"`    // the number of clients or the rate, if varied
	Began    batching.Time   `json:"began_ns,omitempty"` // the first request of a recording; otherwise 0. Throughput counts from here
	Total    Summary         `json:"total"`
	Models   []ModelSummary  `json:"models,omitempty"`   // if there is more than one
	Policies []PolicySummary `json:"policies,omitempty"` // of models with an automatic policy
	Lanes    []Lane          `json:"lanes"`
	Batches  []Batch         `json:"batches"`  // in the order of their start
	Requests []Request       `json:"requests"` // in the order of arrival
}

// A Lane is an instance of a model, which runs one batch at a time.
type Lane struct {
	Model    string `json:"model,omitempty"`
	Instance int    `json:"instance"`           // from 1
	MaxRows  int    `json:"max_rows,omitempty"` // maximum batch size; 0 means no limit
}

// A Batch is a group of requests that ran together.
type Batch struct {
	Lane     int           `json:"lane"` // index into Run.Lanes
	Began    batching.Time `json:"began_ns"`
	Ended    batching.Time `json:"ended_ns"`
	Rows     int           `json:"rows"`
	Why      string        `json:"why"`      // the [batching.Reason] for closing
	Requests []int         `json:"requests"` // indices into Run.Requests
}

// A Request is one request of a run.
type Request struct {
	ID       string        `json:"id"` // in a closed loop, that of the client
	Model    string        `json:"model,omitempty"`
	Rows     int           `json:"rows"`
	Arrived  batching.Time `json:"arrived_ns"`
	Began    batching.Time `json:"began_ns,omitempty"` // when its batch began
	Ended    batching.Time `json:"ended_ns,omitempty"`
	Answered batching.Time `json:"answered_ns"`
	Batch    int           `json:"batch"`             // index into Run.Batches; -1 if it was in none of them
	Refusal  string        `json:"refusal,omitempty"` // a [batching.Verdict], if it was answered without a result
}

// A Summary is the sums of a run, or of one model of a run.
type Summary struct {
	Sent          int            `json:"sent"`
	Answered      int            `json:"answered"`          // with a result
	Refused       map[string]int `json:"refused,omitempty"` // answered without a result, by [batching.Verdict]
	Batches       int            `json:"batches"`
	Closed        map[string]int `json:"closed"`     // batches by [batching.Reason]
	MeanBatch     float64        `json:"mean_batch"` // average rows
	Busy          time.Duration  `json:"busy_ns"`    // sum over all instances
	Last          batching.Time  `json:"last_ns"`    // time of the last answer
	RowsPerSecond float64        `json:"rows_per_second"`
	Late          int            `json:"late,omitempty"`    // answered with a result, but later than the objective
	Goodput       float64        `json:"goodput,omitempty"` // rows per second that met the objective, if there is one
	Latency       Distribution   `json:"latency"`           // from arrival to answer, of requests with a result
	Queue         Distribution   `json:"queue"`             // from arrival to the start of the batch
	Compute       Distribution   `json:"compute"`           // duration of the request's batch
	Refusal       Distribution   `json:"refusal,omitzero"`  // from arrival to answer, of requests without a result
}

// A ModelSummary is the sums of one model.
type ModelSummary struct {
	Model string `json:"model"`
	Summary
}

// A PolicySummary is the state of a model's policy at the end of a run.
type PolicySummary struct {
	Model string `json:"model,omitempty"`
	explain.Policy
}

// A Distribution summarizes durations.
type Distribution struct {
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P95  time.Duration `json:"p95_ns"`
	P99  time.Duration `json:"p99_ns"`
	Max  time.Duration `json:"max_ns"`
}

// WriteJSON writes the report as JSON. Times are in nanoseconds.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// A tally accumulates the sums of a run.
type tally struct {
	requests  int
	refused   map[batching.Verdict]int
	answered  int // requests with a result
	batches   int
	closed    map[batching.Reason]int
	rows      int // rows in batches
	delivered int // rows of requests with a result
	inTime    int // delivered rows that met the objective
	late      int // requests that missed the objective
	busy      time.Duration
	last      batching.Time

	objective time.Duration // 0 means none

	latency, queue, compute []time.Duration // of requests with a result, unless a callback of Measure gets them
	refusal                 []time.Duration // of requests without a result
}

func newTally() *tally {
	return &tally{refused: map[batching.Verdict]int{}, closed: map[batching.Reason]int{}}
}

func (t *tally) add(o *tally) {
	t.requests += o.requests
	for verdict, n := range o.refused {
		t.refused[verdict] += n
	}
	t.answered += o.answered
	t.batches += o.batches
	for why, n := range o.closed {
		t.closed[why] += n
	}
	t.rows += o.rows
	t.delivered += o.delivered
	t.inTime += o.inTime
	t.late += o.late
	t.objective = max(t.objective, o.objective)
	t.busy += o.busy
	t.last = max(t.last, o.last)
	t.latency = append(t.latency, o.latency...)
	t.queue = append(t.queue, o.queue...)
	t.compute = append(t.compute, o.compute...)
	t.refusal = append(t.refusal, o.refusal...)
}

func (t *tally) refusals() (n int) {
	for _, count := range t.refused {
		n += count
	}
	return n
}

// summary returns the sums of a run that began at the given time. It sorts the recorded
// durations.
func (t *tally) summary(began batching.Time) Summary {
	s := Summary{
		Sent: t.requests, Answered: t.answered, Batches: t.batches, Busy: t.busy, Last: t.last, Closed: map[string]int{}, Late: t.late,
		Latency: distribution(t.latency), Queue: distribution(t.queue), Compute: distribution(t.compute), Refusal: distribution(t.refusal),
	}
	for why, n := range t.closed {
		s.Closed[why.String()] = n
	}
	if len(t.refused) > 0 {
		s.Refused = map[string]int{}
	}
	for verdict, n := range t.refused {
		s.Refused[verdict.String()] = n
	}
	if t.batches > 0 {
		s.MeanBatch = float64(t.rows) / float64(t.batches)
	}
	if took := t.last - began; took > 0 {
		s.RowsPerSecond = float64(t.delivered) / took.Seconds()
		if t.objective > 0 {
			s.Goodput = float64(t.inTime) / took.Seconds()
		}
	}
	return s
}

// distribution sorts all, and returns its mean and its nearest-rank percentiles.
func distribution(all []time.Duration) Distribution {
	if len(all) == 0 {
		return Distribution{}
	}
	slices.Sort(all)
	var sum float64
	for _, d := range all {
		sum += float64(d)
	}
	rank := func(p float64) time.Duration { return all[int(math.Ceil(p*float64(len(all))))-1] }
	return Distribution{
		Mean: time.Duration(math.Round(sum / float64(len(all)))),
		P50:  rank(0.5), P95: rank(0.95), P99: rank(0.99), Max: all[len(all)-1],
	}
}
