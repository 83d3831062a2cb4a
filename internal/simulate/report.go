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

// A Report is what came of a scenario.
type Report struct {
	Title  string `json:"title"`
	Text   string `json:"text,omitempty"`
	Unit   Unit   `json:"unit,omitzero"`
	Varied string `json:"varied,omitempty"` // "clients" or "rate" if settings were tried with several
	Runs   []*Run `json:"runs"`             // by setting, and then by what was varied
}

// A Run is what came of one setting. Of a long one it has the first batches and
// requests only; its sums are of all.
type Run struct {
	Setting  string          `json:"setting"`
	Point    float64         `json:"point,omitempty"` // the clients or the rate, if that is varied
	Total    Summary         `json:"total"`
	Models   []ModelSummary  `json:"models,omitempty"`   // if there are several
	Policies []PolicySummary `json:"policies,omitempty"` // of models that find out for themselves
	Lanes    []Lane          `json:"lanes"`
	Batches  []Batch         `json:"batches"`  // in the order in which they began
	Requests []Request       `json:"requests"` // in the order in which they arrived
}

// A Lane is where one batch can run at a time: an instance of a model.
type Lane struct {
	Model    string `json:"model,omitempty"`
	Instance int    `json:"instance"`           // from 1
	MaxRows  int    `json:"max_rows,omitempty"` // the largest batch; 0 means any
}

// A Batch is requests that ran together.
type Batch struct {
	Lane     int           `json:"lane"` // index into the lanes
	Began    batching.Time `json:"began_ns"`
	Ended    batching.Time `json:"ended_ns"`
	Rows     int           `json:"rows"`
	Why      string        `json:"why"`      // it closed: a [batching.Reason]
	Requests []int         `json:"requests"` // indices into the requests
}

// A Request is one that arrived.
type Request struct {
	ID       string        `json:"id"` // that of the client, in a closed loop
	Model    string        `json:"model,omitempty"`
	Rows     int           `json:"rows"`
	Arrived  batching.Time `json:"arrived_ns"`
	Began    batching.Time `json:"began_ns,omitempty"` // when its batch did
	Ended    batching.Time `json:"ended_ns,omitempty"`
	Answered batching.Time `json:"answered_ns"`
	Batch    int           `json:"batch"`             // index into the batches; -1 if it was in none that is kept
	Refusal  string        `json:"refusal,omitempty"` // a [batching.Verdict], if it was turned away
}

// A Summary is the sums of a run, or of one model in it.
type Summary struct {
	Sent          int            `json:"sent"`
	Answered      int            `json:"answered"`          // with an outcome
	Refused       map[string]int `json:"refused,omitempty"` // turned away, by [batching.Verdict]
	Batches       int            `json:"batches"`
	Closed        map[string]int `json:"closed"`     // batches by [batching.Reason]
	MeanBatch     float64        `json:"mean_batch"` // rows
	Busy          time.Duration  `json:"busy_ns"`    // of all instances together
	Last          batching.Time  `json:"last_ns"`    // the last answer
	RowsPerSecond float64        `json:"rows_per_second"`
	Late          int            `json:"late,omitempty"`    // answered with an outcome, but later than the objective
	Goodput       float64        `json:"goodput,omitempty"` // rows a second that were answered in time; if there is an objective
	Latency       Distribution   `json:"latency"`           // from arrival to answer, of the requests with an outcome
	Queue         Distribution   `json:"queue"`             // from arrival to the begin of the batch
	Compute       Distribution   `json:"compute"`           // of the batch that it was in
	Refusal       Distribution   `json:"refusal,omitzero"`  // from arrival to answer, of those that were turned away
}

// A ModelSummary is the sums of one model.
type ModelSummary struct {
	Model string `json:"model"`
	Summary
}

// A PolicySummary is what the policy of one model knew in the end.
type PolicySummary struct {
	Model string `json:"model,omitempty"`
	explain.Policy
}

// A Distribution is what became of many lengths of time.
type Distribution struct {
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P95  time.Duration `json:"p95_ns"`
	P99  time.Duration `json:"p99_ns"`
	Max  time.Duration `json:"max_ns"`
}

// WriteJSON writes the report for other programs. Times are in nanoseconds.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// A tally counts while a run goes on.
type tally struct {
	requests  int
	turned    map[batching.Verdict]int
	answered  int // with an outcome
	batches   int
	closed    map[batching.Reason]int
	rows      int // in batches
	delivered int // rows
	inTime    int // rows of those
	late      int // requests
	busy      time.Duration
	last      batching.Time

	objective time.Duration // 0 means any time

	latency, queue, compute []time.Duration // of the requests with an outcome, unless somebody else takes note of them
	refusal                 []time.Duration // of the others
}

func newTally() *tally {
	return &tally{turned: map[batching.Verdict]int{}, closed: map[batching.Reason]int{}}
}

func (t *tally) add(o *tally) {
	t.requests += o.requests
	for verdict, n := range o.turned {
		t.turned[verdict] += n
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

func (t *tally) refused() (n int) {
	for _, count := range t.turned {
		n += count
	}
	return n
}

// summary sums up. It sorts what the tally has noted.
func (t *tally) summary() Summary {
	s := Summary{
		Sent: t.requests, Answered: t.answered, Batches: t.batches, Busy: t.busy, Last: t.last, Closed: map[string]int{}, Late: t.late,
		Latency: distribution(t.latency), Queue: distribution(t.queue), Compute: distribution(t.compute), Refusal: distribution(t.refusal),
	}
	for why, n := range t.closed {
		s.Closed[why.String()] = n
	}
	if len(t.turned) > 0 {
		s.Refused = map[string]int{}
	}
	for verdict, n := range t.turned {
		s.Refused[verdict.String()] = n
	}
	if t.batches > 0 {
		s.MeanBatch = float64(t.rows) / float64(t.batches)
	}
	if t.last > 0 {
		s.RowsPerSecond = float64(t.delivered) / t.last.Seconds()
		if t.objective > 0 {
			s.Goodput = float64(t.inTime) / t.last.Seconds()
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
