package batching_test

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// TestRecordedCases replays recordings of a Triton server, and compares which requests
// shared a batch, the order of batches, which requests were refused and why, and the
// order of answers. If the recorded runs of a case differ, ours must match one of them.
//
// Intended differences are listed in differences, and documented for users in
// docs/reference/triton-compatibility.md.
func TestRecordedCases(t *testing.T) {
	text, err := os.ReadFile("testdata/recorded/tritonserver-2.51.0.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []recordedCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, c := range cases {
		difference, deliberate := differences[c.Name]
		if deliberate {
			found++
		}
		t.Run(c.Name, func(t *testing.T) {
			switch {
			case c.LoadError != "":
				c.checkRefused(t)
			case deliberate:
				if got := c.replay(t).tale; strings.TrimSpace(got) != strings.TrimSpace(difference.ours) {
					t.Errorf("%s: on purpose we do otherwise, but now it is\n%swant\n%s", difference.why, got, difference.ours)
				}
			default:
				c.compare(t, c.replay(t))
			}
		})
	}
	if found != len(differences) {
		t.Errorf("%d of the %d differences are about no recorded case", len(differences)-found, len(differences))
	}
}

// differences are the cases in which Shoal behaves differently on purpose: why, and how.
var differences = map[string]struct{ why, ours string }{
	"22-order-preserved-with-rejection": {turnedAwayInTime, `
0s     1 takes A (8 rows, full)
110ms  B is rejected: timed out
120ms  C is rejected: timed out
300ms  delivered: A`},
	"36-timeout-reject": {turnedAwayInTime + "; b is in time, and runs", `
0s     1 takes Z (8 rows, full)
120ms  a is rejected: timed out
300ms  delivered: Z
300ms  1 takes b (8 rows, full)
600ms  delivered: b`},
	"37-timeout-reject-long-busy": {turnedAwayInTime, `
0s     1 takes Z (8 rows, full)
120ms  a is rejected: timed out
150ms  b is rejected: timed out
800ms  c is rejected: timed out
1.5s   delivered: Z`},
	"40-timeout-override-shorter": {turnedAwayInTime, `
0s     1 takes Z (8 rows, full)
70ms   a is rejected: timed out
300ms  delivered: Z
300ms  1 takes b (8 rows, full)
600ms  delivered: b`},
	"41-timeout-override-longer": {turnedAwayInTime, `
0s     1 takes Z (8 rows, full)
120ms  a is rejected: timed out
300ms  delivered: Z`},
	"44-timeout-without-policy": {asksForATime, `
0s     1 takes Z (8 rows, full)
70ms   a is rejected: expired
300ms  delivered: Z`},
	"45-timeout-no-dynamic-batcher": {asksForATime, `
0s     1 takes Z (8 rows, alone)
70ms   a is rejected: expired
300ms  delivered: Z`},
	"55-cancel-queued-prefetch": {"a client that left takes no room in a batch", `
0s     1 takes Z (8 rows, full)
120ms  b is rejected: cancelled
300ms  delivered: Z
300ms  1 takes a c (4 rows, idle)
600ms  delivered: a c`},
	"57-cancel-executing": {"a batch that nobody waits for is stopped", `
0s     1 takes a (2 rows, idle)
100ms  1 is stopped
100ms  a is rejected: cancelled`},
	"77-delay-busy-merge": {settledLate, `
0s     1 takes Z (8 rows, full)
300ms  delivered: Z
300ms  1 takes r0 r1 r2 r3 r4 r5 (6 rows, waited)
600ms  delivered: r0 r1 r2 r3 r4 r5`},
	"78-delay-busy-merge-2-instances": {settledLate, `
0s     1 takes Y (8 rows, full)
3ms    2 takes Z (8 rows, full)
300ms  delivered: Y
300ms  1 takes r0 r1 r2 r3 r4 r5 (6 rows, waited)
303ms  delivered: Z
600ms  delivered: r0 r1 r2 r3 r4 r5`},
}

const (
	turnedAwayInTime = "who waits too long is told at that moment, and not when the queue is next looked at"
	asksForATime     = "where no queue policy is written, the time that a client asks for is its deadline"
	settledLate      = "who is in a batch is settled when an instance takes it"
)

// sizesOnly are the cases whose requests arrived in an arbitrary order.
var sizesOnly = []string{"74-l0-12x1-x100-d0", "75-l0-12x1-x100-d20ms"}

// timed are the cases that test when a batch begins. In other cases, delays of the
// recorded server make times incomparable.
var timed = []string{
	"47-shapes-variable-delay", "69-l0-preferred-2-6-3-then-4", "73-l0-preferred-2-6-two-shapes", "76-delay-counts-from-oldest",
	"79-preferred-full-goes-before-delay", "80-delay-overflow-goes-before-delay",
}

// refusedFields are the settings for which the others are refused.
var refusedFields = map[string]string{
	"23-order-preserved-with-priority-config":     "dynamic_batching.preserve_ordering",
	"24-order-preserved-with-delay-policy-config": "dynamic_batching.preserve_ordering",
	"31-priority-default-missing-config":          "dynamic_batching.default_priority_level",
	"32-priority-policy-key-out-of-range-config":  "dynamic_batching.priority_queue_policy[5]",
	"52-preferred-above-max-config":               "dynamic_batching.preferred_batch_size",
	"53-preferred-zero-config":                    "dynamic_batching.preferred_batch_size",
}

// A recordedCase is a scenario and what a Triton server did with it; the page in the same
// directory describes the fields.
type recordedCase struct {
	Name      string
	Config    []string `json:"config_pbtxt"`
	LoadError string   `json:"load_error"`
	Scenario  []recordedRequest
	GapMS     float64 `json:"gap_ms"`
	Hold      int
	Stable    bool
	Runs      []recordedRun
}

type recordedRequest struct {
	ID        string
	At        float64 // in milliseconds, like all other times without a unit
	Batch     int
	Shape     []uint64
	Priority  uint64
	TimeoutUS int64   `json:"timeout_us"`
	CancelAt  float64 `json:"cancel_at"`
}

type recordedRun struct {
	Batches  [][]string
	StartsMS []float64 `json:"starts_ms"`
	Statuses []string  // in the order of the scenario; empty if all requests succeeded
	Order    []string  `json:"completion_order"`
}

// A replayed case is the result of a scenario in Shoal.
type replayed struct {
	batches  [][]string
	starts   []time.Duration
	verdicts []string // in the order of the scenario; "" if it was delivered
	order    []string // order in which clients were answered
	tale     string   // full output, as in a script
}

func milliseconds(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

func (c recordedCase) checkRefused(t *testing.T) {
	_, err := modelconfig.Parse("config.pbtxt", []byte(strings.Join(c.Config, "\n")))
	if field := refusedFields[c.Name]; err == nil || !strings.Contains(err.Error(), ": "+field) {
		t.Errorf("Triton refuses it (%s); here the error is: %v\nwant one about %s", c.LoadError, err, field)
	}
}

// compare requires that all runs of a stable case match ours in the requests of each
// batch and the outcome of each request, and that one run of any case matches in
// everything.
func (c recordedCase) compare(t *testing.T, ours replayed) {
	var differs []string
	agreed := false
	for _, run := range c.Runs {
		difference := c.membership(run, ours)
		if c.Stable && difference != "" {
			t.Errorf("it went otherwise than recorded:\n%s%s", ours.tale, difference)
		}
		if difference == "" {
			difference = c.course(run, ours)
		}
		agreed = agreed || difference == ""
		differs = append(differs, difference)
	}
	if !agreed {
		t.Errorf("it went otherwise than in each recorded run:\n%s%s", ours.tale, strings.Join(differs, "\n"))
	}
}

// membership describes how a recorded run differs from ours in its batches and in the
// outcome of each request.
func (c recordedCase) membership(run recordedRun, ours replayed) string {
	same := slices.Equal[[]string]
	if slices.Contains(sizesOnly, c.Name) {
		same = func(a, b []string) bool { return len(a) == len(b) }
	}
	if !slices.EqualFunc(run.Batches, ours.batches, same) {
		return "recorded batches: " + groups(run.Batches)
	}
	for i, verdict := range ours.verdicts {
		if run.Statuses == nil && verdict != "" || run.Statuses != nil && verdictOf(run.Statuses[i]) != verdict {
			return "recorded statuses: " + strings.Join(run.Statuses, ", ")
		}
	}
	return ""
}

// course describes how a recorded run differs from ours in the order of answers and the
// times of batches.
func (c recordedCase) course(run recordedRun, ours replayed) string {
	if !c.sameOrder(run, ours) {
		return "recorded order of answers: " + strings.Join(run.Order, " ")
	}
	for i, start := range run.StartsMS {
		// The first batch is on time; the others only in cases that leave time between them.
		if i > 0 && !slices.Contains(timed, c.Name) {
			break
		}
		if late := ours.starts[i] - milliseconds(start); late.Abs() > 50*time.Millisecond {
			return "recorded beginning of batch " + strconv.Itoa(i+1) + ": " + milliseconds(start).String()
		}
	}
	return ""
}

// sameOrder compares the order of answers. The order within a batch is arbitrary, unless
// order is preserved.
func (c recordedCase) sameOrder(run recordedRun, ours replayed) bool {
	if strings.Contains(strings.Join(c.Config, " "), "preserve_ordering: true") {
		return slices.Equal(run.Order, ours.order)
	}
	return slices.Equal(byBatch(run.Order, run.Batches), byBatch(ours.order, ours.batches))
}

// byBatch replaces each id by the number of its batch, if it was in one.
func byBatch(ids []string, batches [][]string) []string {
	out := slices.Clone(ids)
	for i, id := range ids {
		if b := slices.IndexFunc(batches, func(batch []string) bool { return slices.Contains(batch, id) }); b >= 0 {
			out[i] = strconv.Itoa(b)
		}
	}
	return out
}

func groups(batches [][]string) string {
	var all []string
	for _, b := range batches {
		all = append(all, strings.Join(b, " "))
	}
	return strings.Join(all, " | ")
}

// verdictOf converts an error of Triton to a verdict.
func verdictOf(status string) string {
	for _, known := range []struct {
		words   string
		verdict batching.Verdict
	}{
		{"Exceeds maximum queue size", batching.QueueFull},
		{"Request timeout expired", batching.TimedOut},
		{"batch-size must be <=", batching.TooLarge},
		{"byte size mismatch", batching.TooLarge}, // of no rows at all
		{"by the client", batching.Cancelled},
	} {
		if strings.Contains(status, known.words) {
			return known.verdict.String()
		}
	}
	if status == "OK" || status == "200" {
		return ""
	}
	return status
}

// replay plays the scenario in virtual time.
func (c recordedCase) replay(t *testing.T) replayed {
	t.Helper()
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(strings.Join(c.Config, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	variable := cfg.Inputs[0].Dims[0] == -1 && !cfg.Inputs[0].Ragged

	ours := replayed{verdicts: make([]string, len(c.Scenario))}
	index := map[*batching.Item]int{}
	world := simulate.NewWorld(nil, 1)
	model := world.Add("recorder", cfg.Batching(batching.Bound{}), takes(cfg))
	join := func() {
		for i := range max(1, cfg.Instances) {
			model.Up(i + 1)
		}
	}
	if c.Hold == 0 {
		join()
	}
	teller := story{}
	world.Trace = func(o simulate.Occurrence) {
		teller.trace(o)
		switch a := o.Action; {
		case o.Ended:
		case a.Kind == batching.Run:
			ours.batches = append(ours.batches, ids(a.Items))
			ours.starts = append(ours.starts, o.At)
		case a.Kind == batching.Reject:
			ours.verdicts[index[a.Item]] = a.Verdict.String()
			fallthrough
		case a.Kind == batching.Deliver:
			ours.order = append(ours.order, a.Item.Owner.(string))
		}
	}
	together := map[float64]int{} // number of requests sent at that time
	for i, r := range c.Scenario {
		it := r.item(cfg, variable)
		index[it] = i
		// Network transport takes some time.
		at := milliseconds(r.At + float64(together[r.At])*max(c.GapMS, 0.01))
		together[r.At]++
		world.At(at, func() {
			model.Arrive(it)
			if i+1 == c.Hold {
				join()
			}
		})
		if r.CancelAt > 0 {
			world.At(milliseconds(r.CancelAt), func() { model.Cancel(it) })
		}
	}
	world.Run(batching.Never)
	teller.end()
	ours.tale = teller.tell.String()
	return ours
}

func ids(items []*batching.Item) []string {
	var all []string
	for _, it := range items {
		all = append(all, it.Owner.(string))
	}
	return all
}

func (r recordedRequest) item(cfg *modelconfig.Config, variable bool) *batching.Item {
	it := &batching.Item{Rows: r.Batch, Priority: r.Priority, Timeout: time.Duration(r.TimeoutUS) * time.Microsecond, Owner: r.ID}
	if cfg.MaxBatchSize == 0 {
		it.Rows = 1
	}
	if variable {
		it.Shape = 4 // of requests without a shape
		if r.Shape != nil {
			it.Shape = r.Shape[0]
		}
	}
	return it
}

// takes returns how long the recorded model sleeps.
func takes(cfg *modelconfig.Config) func([]*batching.Item) time.Duration {
	slow := map[string]time.Duration{}
	for entry := range strings.SplitSeq(cfg.Parameters["slow_ms"], ",") {
		id, time, _ := strings.Cut(entry, "=")
		slow[id] = duration(time + "ms")
	}
	return func(batch []*batching.Item) time.Duration {
		sum := duration(cfg.Parameters["batch_ms"] + "ms")
		for _, it := range batch {
			sum += slow[it.Owner.(string)]
		}
		return sum
	}
}
