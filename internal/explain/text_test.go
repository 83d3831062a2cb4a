package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/script"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// loop is a model with automatic settings, in a closed loop.
func loop() Model {
	return Model{
		Name: "seed_auto", Version: "1", Backend: "simulated",
		Batching: Batching{
			Setting:  Setting{Automatic, "models/seed_auto/config.pbtxt:8", "dynamic_batching has no max_queue_delay_microseconds in models/seed_auto/config.pbtxt:8"},
			Combines: true, MaxRows: 8, MaxRowsWhere: "models/seed_auto/config.pbtxt:4", Preferred: []int{4, 8},
			Safety: Safety{NotChecked, "the configuration asks for batching"},
		},
		Instances:   Number{Setting{Configured, "models/seed_auto/config.pbtxt:7", "instance_group has a count"}, 2},
		Calibration: Calibration{State: CalibrationDone, Steps: 8},
		Curve: []Size{
			{Rows: 1, Expected: 1980 * us, P95: 2010 * us, Calibrated: true},
			{Rows: 2, Expected: 2040 * us, P95: 2200 * us, Samples: 1, Calibrated: true},
			{Rows: 4, Expected: 2158 * us, P95: 2300 * us},
			{Rows: 6, Expected: 2277 * us, P95: 2400 * us, Samples: 12.4},
			{Rows: 8, Expected: 2395 * us, P95: 2600 * us, Samples: 64, Calibrated: true},
		},
		Policy: &Policy{
			MaxRows: 8, Instances: 2, FixedCost: 1921 * us, CostPerRow: 59300, TargetRows: 8, PeakRows: 8,
			Slowdown: []float64{1, 1.391}, Measured: []bool{true, true}, UsefulInstances: 1, BacklogInstances: 2,
			Arrived: 512, Rate: 1567.3, Rows: 2, BurstShare: 0.7, ReturnShare: 0.98, ReturnP50: 212 * us, ReturnP90: 530 * us,
			ClosedLoop:   ClosedLoop{Clients: 7.9, Rows: 8, Batches: 1},
			TotalLatency: 6160 * ms,
			Batches:      3134,
			Rules: []Rule{
				{Name: "gather", Enabled: true, HeldBatches: 88, Cost: 38900 * us, Gain: 444300 * us, TotalCost: 440 * ms, TotalGain: 4680 * ms},
				{Name: "burst", OffBatches: 230, HeldBatches: 1, Stops: 2, TotalCost: ms},
				{Name: "pace", Enabled: true},
			},
		},
		Totals: Totals{
			Requests: 12195, Batches: 3134, Rows: 24390, MeanQueueTime: 2350 * us, Waiting: 1, SinceLastBatch: 38900 * us,
			Closed: []CloseCount{{"full", 2931}, {"gathered", 203}},
		},
	}
}

// open is a file without a configuration, with open traffic in bursts, that has
// become slower.
func open() Model {
	m := loop()
	m.Name, m.Backend = "recogniser", "onnxruntime"
	m.Batching = Batching{Setting: Setting{Origin: Automatic, Why: "batching is not configured"}, Combines: true, MaxRows: 64, Safety: Safety{Verdict: Safe}}
	m.Instances = Number{Setting{Origin: Automatic, Why: "as many as 2 cores allow; the policy decides how many of them run at a time"}, 2}
	m.Threads, m.ExclusiveThreads = &Number{Setting{Origin: Automatic, Why: "the number that measured best"}, 1}, 2
	m.Calibration = Calibration{State: CalibrationDone, Trials: []Trial{{1, 2, 1, 4, 310, 4 * ms, false}, {1, 2, 2, 4, 390, 4 * ms, true}, {2, 0, 1, 4, 310, 4 * ms, false}}, Shape: "x[3,48,320]", ShapeOrigin: TrafficShape}
	p := *m.Policy
	p.MaxRows, p.TargetRows, p.PeakRows, p.Nonlinear, p.Drifts, p.DriftFactor, p.RestBatches = 64, 4, 6, true, 2, 1.98, 10
	p.Slowdown, p.Measured = []float64{0.6, 2}, []bool{true, false}
	p.ClosedLoop, p.ReturnShare, p.ReturnP50, p.BurstShare = ClosedLoop{}, 0.3, 2*ms, 0.34
	p.ReturnP90, p.Rules = 9*ms, p.Rules[:1]
	m.Policy = &p
	m.Objective = &Objective{Limit: 50 * ms, Where: "models/recogniser/config.pbtxt:3", Late: 1, Refused: 20}
	return m
}

// unused is a model without requests.
func unused() Model {
	m := open()
	m.Curve, m.Totals, m.Objective, m.Policy = nil, Totals{}, nil, &Policy{MaxRows: 64, TargetRows: 64, Instances: 1}
	m.Calibration, m.ExclusiveThreads = Calibration{State: CalibrationRunning, Steps: 1}, 0
	return m
}

// written is a model whose settings are all configured.
func written() Model {
	delay := 2 * ms
	m := loop()
	m.Name, m.Policy, m.Calibration = "seed_dynamic", nil, Calibration{State: CalibrationNotNeeded}
	m.Batching.Setting = Setting{Configured, "models/seed_dynamic/config.pbtxt:8", "dynamic_batching is Triton's rule"}
	m.Batching.Delay = &delay
	m.Slots = &Slots{All: 64, Used: 40, Waiting: 2}
	m.Curve = []Size{{Rows: 2, Expected: 3 * ms, Samples: 1}, {Rows: 8, Expected: 4 * ms, Samples: 1487}}
	return m
}

// unsafe is a model whose rows are not independent.
func unsafe() Model {
	m := written()
	m.Name, m.Backend = "centred", "onnxruntime"
	m.Batching = Batching{
		Setting: Setting{Origin: Automatic, Why: "requests run one by one, because their rows did not pass the check"},
		Safety:  Safety{Unsafe, "rows give other answers together than alone: row 1 of 2: output y: element 0 is 0.5, not 0"},
	}
	m.Threads = &Number{Setting{Configured, "models/centred/config.pbtxt:2", "intra_op_thread_count is set"}, 0}
	m.Calibration = Calibration{State: CalibrationDone, Error: "out of memory"}
	m.Totals.Closed = []CloseCount{{"alone", 3134}}
	return m
}

// fast is a model of a few microseconds. What was measured of its traffic is noise.
func fast() Model {
	m := open()
	m.Curve = []Size{{Rows: 1, Expected: 7 * us, P95: 9 * us, Calibrated: true}, {Rows: 8, Expected: 11 * us, P95: 40 * us, Samples: 64}}
	m.Policy.ReturnShare, m.Policy.Drifts = 0, 5
	m.Policy.Rules = []Rule{{Name: "share", Enabled: true, HeldBatches: 88, Cost: 50 * ms}}
	return m
}

// graph is an ensemble of three steps, of which the first two run at the same time.
func graph() Model {
	m := written()
	m.Name, m.Backend = "classify", "ensemble"
	m.Ensemble = &Ensemble{Requests: 12195, Time: 12400 * us, Between: 0.012, Steps: []Step{
		{Model: "tokens", Requests: 12195, Time: 900 * us, Queue: 20 * us, Compute: 850 * us},
		{Model: "decode", Requests: 12195, Time: 10 * ms, Queue: 3 * ms, Compute: 6800 * us, Critical: 12195, Share: 0.806},
		{Model: "resnet50", Version: "3", Requests: 12000, Time: 2255 * us, Queue: 55 * us, Compute: 2200 * us, Critical: 12000, Share: 0.182},
	}}
	return m
}

// unusedGraph is an ensemble without requests.
func unusedGraph() Model {
	m := graph()
	m.Ensemble, m.Totals = &Ensemble{Steps: []Step{{Model: "decode"}}}, Totals{}
	return m
}

var models = map[string]func() Model{"graph": graph, "unused graph": unusedGraph, "fast": fast, "loop": loop, "open": open, "unused": unused, "written": written, "unsafe": unsafe}

func TestThePageIsForPeople(t *testing.T) {
	script.Run(t, "testdata/page.txt", func(t *testing.T) func([]string) string {
		return func(lines []string) string {
			m := models[lines[0]]()
			var out strings.Builder
			if err := m.WriteText(&out, 120); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
	})
}

// pageOf returns the page of a model, at 120 columns.
func pageOf(t *testing.T, m Model) string {
	t.Helper()
	var out strings.Builder
	if err := m.WriteText(&out, 120); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

func TestABatchSizeHasItsSource(t *testing.T) {
	for want, b := range map[string]Batching{
		"The maximum batch size is 8 rows, configured in m/config.pbtxt:4.": {MaxRows: 8, MaxRowsWhere: "m/config.pbtxt:4"},
		"The maximum batch size is 8 rows, set by the model.":               {MaxRows: 8, MaxRowsByModel: true},
		"The maximum batch size is 8 rows, the default.":                    {MaxRows: 8},
	} {
		m := loop()
		m.Batching = b
		if page := pageOf(t, m); !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestThePageDoesNotJudgeWhatIsTooFast(t *testing.T) {
	page := pageOf(t, fast())
	for _, no := range []string{"open loop", "bursts:", "speed of the model", "disabled", "saved", "No clients were seen"} {
		if strings.Contains(page, no) {
			t.Errorf("the page claims %q of a model whose batches take 7µs:\n%s", no, page)
		}
	}
	if n := strings.Count(page, "too fast to"); n != 2 {
		t.Errorf("the page says %d times that the model is too fast, want 2:\n%s", n, page)
	}
	m := fast()
	m.Curve[0].Expected = minJudged
	if page := pageOf(t, m); strings.Contains(page, "too fast") {
		t.Errorf("a model of %v is too fast:\n%s", minJudged, page)
	}
}

func TestRequestsThatNeverRanAreTraffic(t *testing.T) {
	for _, tt := range []struct {
		totals Totals
		want   string
	}{
		{Totals{}, "No requests yet."},
		{Totals{Failed: 500}, "0 requests succeeded and 500 failed; no batch has ended yet."},
		{Totals{Waiting: 3}, "3 requests are in the queue now."},
		{Totals{Requests: 2}, "2 requests succeeded and 0 failed; no batch has ended yet."}, // from the cache
		{Totals{Failed: 1, SinceLastBatch: time.Second}, "0 requests succeeded and 1 failed; the last batch ended 1s ago."},
	} {
		m := unused()
		m.Totals = tt.totals
		if page := pageOf(t, m); !strings.Contains(page, tt.want) {
			t.Errorf("%+v: no %q in\n%s", tt.totals, tt.want, page)
		}
	}
}

func TestClientsThatAreNotSeenToReturnAreNotCalledAnOpenLoop(t *testing.T) {
	m := open()
	m.Policy.ReturnShare = 0
	page := pageOf(t, m)
	if strings.Contains(page, "open loop") || !strings.Contains(page, "No clients were seen to send their next request soon after an answer") {
		t.Errorf("got %s", page)
	}
}

func TestRulesDoNotContradictTheirSentences(t *testing.T) {
	m := loop()
	m.Policy.Rules = []Rule{
		{Name: "burst", OffBatches: 230, HeldBatches: 12, Stops: 3, TotalCost: 40 * ms, TotalGain: 2 * ms},
		{Name: "share", Enabled: true, HeldBatches: 5, Cost: 74 * ms},
	}
	page := pageOf(t, m)
	for _, want := range []string{
		"burst off 12 holds for the rest of a burst",  // no costs of 0s, which a rule has that was just disabled
		"share on 5 74ms 0s -1.2 % holds until",       // more than 1 %, because it was not judged yet
		"Every 32 batches, a rule that has cost more", // which the page says
		"burst was disabled 3 times so far, and stays disabled for 230 batches; since the model was loaded it has cost 40ms and gained 2ms.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestABatchThatExceedsTheObjectiveLeavesNoTimeToWait(t *testing.T) {
	m := open()
	for limit, want := range map[time.Duration]string{
		50 * ms:   "The p95 of a batch of 4 rows is 2.3ms, which leaves 47.7ms for waiting.",
		2300 * us: "The p95 of a batch of 4 rows is 2.3ms, which leaves 0s for waiting.",
		1_234_567: "The p95 of a batch of 4 rows is 2.3ms, which is 1.07ms too much, even without waiting.",
	} {
		m.Objective.Limit = limit
		if page := pageOf(t, m); !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestLinesFitThePage(t *testing.T) {
	for name, model := range models {
		for _, width := range []int{80, 100, 120} {
			m := model()
			for i := range m.Curve {
				m.Curve[i].Expected /= 10_000 // so that numbers are long
			}
			var out strings.Builder
			if err := m.WriteText(&out, width); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				if n := console.Columns(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s at %d columns has a line of %d:\n%s", name, width, n, line)
				}
			}
		}
	}
}

func TestTheShapeIsToldThatWasMeasured(t *testing.T) {
	for from, want := range map[ShapeOrigin]string{
		TrafficShape:   "\n  Calibration used generated rows in the most frequent shape of the traffic, x[16].\n",
		SampleShape:    "\n  Calibration used the rows of model_warmup, x[16].\n",
		SyntheticShape: "\n  Calibration used generated rows in an assumed shape, x[16], until most requests have another.\n",
	} {
		m := loop()
		m.Calibration.Shape, m.Calibration.ShapeOrigin = "x[16]", from
		var out strings.Builder
		if err := m.WriteText(&out, 120); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: no %q in\n%s", from, want, &out)
		}
	}
}

func TestALineIsEnoughForASimulation(t *testing.T) {
	e := loop().Policy
	const want = "batches filled up to 8 rows; 1 to 2 at a time; a closed loop of about 8 clients; " +
		"gather held 88 batches, cost 440ms and saved 4.68s; burst held 1 batch, cost 1ms and saved 0s, and was disabled 2 times"
	if got := Brief(e); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	e = open().Policy
	e.Instances, e.Rules = 1, nil
	if got, want := Brief(e), "batches filled up to 4 rows; no closed loop seen"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEveryReasonHasItsWords(t *testing.T) {
	for r := range batching.NumReasons {
		if name := batching.Reason(r).String(); reasons[name] == "" {
			t.Errorf("there are no words for batches that close because of %s", name)
		}
	}
}

func TestNumbersAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 999: "999ns", 1234567: "1.23ms", 59300: "59.3µs", 61 * time.Second: "1m1s", -1500 * us: "-1.5ms", -10000123: "-10ms"} {
		if got := brief(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.25: "0.2", 9.96: "10", 999.6: "1,000", 1234567: "1,234,567"} {
		if got := decimal(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}
