package simulate_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func runFile(t *testing.T, file string) *simulate.Report {
	t.Helper()
	s, err := scenario.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// members writes the batches of a run by their requests: "A C, B D, E".
func members(run *simulate.Run) string {
	var all []string
	for _, b := range run.Batches {
		var names []string
		for _, i := range b.Requests {
			names = append(names, run.Requests[i].ID)
		}
		all = append(all, strings.Join(names, " "))
	}
	return strings.Join(all, ", ")
}

func TestAToEIsAsItIsDrawn(t *testing.T) {
	const x = 300 * ms
	want := []struct {
		setting, members string
		busy, last       time.Duration
	}{
		{"one at a time", "A, C, B, D, E", 5 * x, 5 * x},
		{"dynamic batching", "A C, B D, E", 3 * x, 3 * x},
		{"dynamic batching, delay X/2", "A C B, D E", 2 * x, x/3 + 2*x},
		{"two instances, one at a time", "A, C, B, D, E", 5 * x, 3 * x},
		{"two instances, dynamic batching", "A C, B, D E", 3 * x, 2 * x},
		{"two instances, dynamic batching, delay X/2", "A C B, D E", 2 * x, 2*x/3 + x},
	}
	report := runFile(t, "../../examples/scenarios/a-to-e.yaml")
	if len(report.Runs) != len(want) {
		t.Fatalf("%d settings ran, want %d", len(report.Runs), len(want))
	}
	for i, w := range want {
		got := report.Runs[i]
		if got.Setting != w.setting || members(got) != w.members || got.Total.Busy != w.busy || got.Total.Last != w.last {
			t.Errorf("%s: batches %s, busy %v, last answer %v; want %s: %s, %v, %v",
				got.Setting, members(got), got.Total.Busy, got.Total.Last, w.setting, w.members, w.busy, w.last)
		}
	}
}

// The batches are those that a Triton server formed when it was given these
// requests.
func TestAToEIsAsItWasRecorded(t *testing.T) {
	want := map[string]string{
		"one at a time":                "A, C, B, D, E",
		"one at a time, two instances": "A, C, B, D, E",
		"dynamic batching":             "A, C B, D E",
		"delay X/2":                    "A C B, D E",
		"delay X/3":                    "A C B, D E", // or A C, B D, E: both were seen
		"two instances":                "A, C, B D, E",
		"delay X/2, two instances":     "A C B, D E",
		"preferred 4 and 8":            "A, C B, D E",
		"preferred 4 and 8, delay X/2": "A, C B, D E",
		"preferred 4 and 8, delay 1s":  "A, C B, D E",
	}
	report := runFile(t, "../../examples/scenarios/a-to-e-recorded.yaml")
	for _, got := range report.Runs {
		if members(got) != want[got.Setting] {
			t.Errorf("%s: batches %s, want %s", got.Setting, members(got), want[got.Setting])
		}
		delete(want, got.Setting)
	}
	if len(want) > 0 {
		t.Errorf("these settings did not run: %v", want)
	}
}

func TestLatencyIsQueueAndCompute(t *testing.T) {
	report := runFile(t, "../../examples/scenarios/a-to-e.yaml")
	alone := report.Runs[0]
	var waited []time.Duration
	for _, q := range alone.Requests {
		waited = append(waited, q.Began-q.Arrived)
		if q.Ended-q.Began != 300*ms || q.Answered != q.Ended {
			t.Errorf("%s ran from %v to %v and was answered at %v, want 300ms, and at once", q.ID, q.Began, q.Ended, q.Answered)
		}
	}
	if want := []time.Duration{0, 300 * ms, 500 * ms, 700 * ms, 1000 * ms}; !slices.Equal(waited, want) {
		t.Errorf("waited %v, want %v", waited, want)
	}
	if got, want := alone.Total.Latency, (simulate.Distribution{Mean: 800 * ms, P50: 800 * ms, P95: 1300 * ms, P99: 1300 * ms, Max: 1300 * ms}); got != want {
		t.Errorf("latency %+v, want %+v", got, want)
	}
	if got, want := alone.Total.Queue.Mean, 500*ms; got != want {
		t.Errorf("mean time in the queue %v, want %v", got, want)
	}
	if got, want := alone.Total.Compute.Max, 300*ms; got != want {
		t.Errorf("longest compute %v, want %v", got, want)
	}
}

func TestTurnsShareTheTimeOfADeviceEvenly(t *testing.T) {
	report := runFile(t, "../../examples/scenarios/shared-device.yaml")
	turns := report.Runs[1]
	quick, slow := turns.Models[0], turns.Models[1]
	if ratio := quick.Busy.Seconds() / slow.Busy.Seconds(); !(math.Abs(ratio-1) <= 0.02) {
		t.Errorf("the quick model had %.2f times as much of the device as the slow one, want 1", ratio)
	}
	if most := turns.Total.Last; turns.Total.Busy > most {
		t.Errorf("the single slot was busy for %v in %v", turns.Total.Busy, most)
	}
}

func TestAClosedLoopOfTheSeedDevice(t *testing.T) {
	curve := device.Curve{Fixed: 1921 * us, PerRow: 59300}
	dynamic := batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}
	for _, c := range []struct {
		name string
		loop simulate.ClosedLoop
		want float64 // rows per second
	}{
		{"one client", simulate.ClosedLoop{Config: dynamic, Clients: 1, Think: []simulate.Span{{300 * us, 300 * us}}}, 2 / 2339.6e-6},
		{"nothing is combined", simulate.ClosedLoop{Clients: 16, Think: []simulate.Span{{200 * us, 400 * us}}}, 2 / 2039.6e-6},
		{"two groups take turns", simulate.ClosedLoop{Config: dynamic, Clients: 4, Think: []simulate.Span{{200 * us, 400 * us}}}, 4 / 2158.2e-6},
		{"one instance is full", simulate.ClosedLoop{Config: dynamic, Clients: 16, Think: []simulate.Span{{200 * us, 400 * us}}}, 8 / 2395.4e-6},
		{"two are full", simulate.ClosedLoop{Config: dynamic, Clients: 16, Instances: 2, Think: []simulate.Span{{200 * us, 400 * us}}}, 16 / 3332e-6},
	} {
		c.loop.Curve, c.loop.Slowdown, c.loop.Rows, c.loop.Duration = curve, []float64{1, 1.391}, 2, 5*time.Second
		got, err := c.loop.Run()
		if err != nil {
			t.Fatal(err)
		}
		if off := got.RowsPerSecond/c.want - 1; math.Abs(off) > 0.003 {
			t.Errorf("%s: %.1f rows per second, want %.1f", c.name, got.RowsPerSecond, c.want)
		}
	}
}

func TestARunCanBeRepeated(t *testing.T) {
	const text = `
model: {max_batch_size: 8, fixed: 1ms, per_row: 0.1ms}
load:
  - {rate: 2000, requests: 3000, seed: 5}
  - {clients: 4, think: {from: 0, to: 5ms}, duration: 2s}
`
	var first string
	for range 2 {
		s, err := scenario.Parse("scenario.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		report, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := report.WriteJSON(&out); err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = out.String()
		}
		if out.String() != first {
			t.Error("two runs of one scenario differ")
		}
		if sent := report.Runs[0].Total.Sent; sent <= 3000 {
			t.Errorf("%d requests were sent, want 3000 and those of the clients", sent)
		}
	}
}

// A request that was answered long ago is cancelled without effect, although the
// load has sent many since.
func TestALateCancelConcernsNobodyElse(t *testing.T) {
	s, err := scenario.Parse("scenario.yaml", []byte(`
model: {max_batch_size: 4, takes: 10ms}
arrivals: [{at: 0, id: a, cancel_at: 55ms}]
load: {rate: 1000, pattern: constant, requests: 100}
`))
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	if total := report.Runs[0].Total; total.Answered != 101 || len(total.Refused) > 0 {
		t.Errorf("%d of 101 requests were answered, rejected: %v", total.Answered, total.Refused)
	}
}

func TestJSONHasTheFiguresInNanoseconds(t *testing.T) {
	var out strings.Builder
	if err := runFile(t, "../../examples/scenarios/a-to-e.yaml").WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Runs []struct {
			Setting string
			Total   struct {
				Busy   int64 `json:"busy_ns"`
				Closed map[string]int
			}
			Batches []struct{ Why string }
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	first := got.Runs[1]
	if first.Setting != "dynamic batching" || first.Total.Busy != 900_000_000 || first.Total.Closed["idle"] != 2 || first.Batches[1].Why != "full" {
		t.Errorf("got %+v", first)
	}
}

func TestSelectKeepsTheNamedSettings(t *testing.T) {
	s, err := scenario.Load("../../examples/scenarios/a-to-e.yaml")
	if err != nil {
		t.Fatal(err)
	}
	some, err := s.Select("dynamic batching", "one at a time")
	if err != nil {
		t.Fatal(err)
	}
	if len(some.Settings) != 2 || some.Settings[0].Name != "dynamic batching" || len(s.Settings) != 6 {
		t.Errorf("selected %d of %d settings", len(some.Settings), len(s.Settings))
	}
	if _, err := s.Select("dynamic"); err == nil || !strings.Contains(err.Error(), `no setting "dynamic"; it has "one at a time", "dynamic batching"`) {
		t.Errorf("got error %v", err)
	}
}

func TestEachRunOfASettingLearnsAnew(t *testing.T) {
	load := func(clients string) *simulate.Run {
		s, err := scenario.Parse("scenario.yaml", []byte("model: {max_batch_size: 8, fixed: 2ms, per_row: 1ms, batching: automatic, calibrated: false}\n"+
			"load: {clients: "+clients+", think: {from: 0.1ms, to: 0.3ms}, requests: 1000}"))
		if err != nil {
			t.Fatal(err)
		}
		report, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		return report.Runs[len(report.Runs)-1]
	}
	if alone, after := load("4"), load("[64, 4]"); alone.Total.Latency != after.Total.Latency {
		t.Errorf("4 clients see %v by themselves, and %v in a run that follows another", alone.Total.Latency, after.Total.Latency)
	}
}
