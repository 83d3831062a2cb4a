//go:build e2e && proofs

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/bare"
)

// A byHand is one way to configure a model by hand.
type byHand struct {
	Rows      int // of the largest batch; 1 means no batching
	Delay     time.Duration
	Instances int
	Threads   int
}

func (h byHand) String() string {
	if h.Rows == 1 {
		return fmt.Sprintf("no batching, %d×%d", h.Instances, h.Threads)
	}
	return fmt.Sprintf("%d rows, %g ms, %d×%d", h.Rows, h.Delay.Seconds()*1000, h.Instances, h.Threads)
}

func (h byHand) config() string {
	config := fmt.Sprintf(`
		max_batch_size: %d
		instance_group [ { count: %d } ]
		parameters { key: "intra_op_thread_count" value { string_value: "%d" } }
	`, h.Rows, h.Instances, h.Threads)
	if h.Rows > 1 {
		config += fmt.Sprintf("dynamic_batching { max_queue_delay_microseconds: %d }", h.Delay.Microseconds())
	}
	return config
}

// waysByHand is the grid: coarse, since all of it is tried under each load. More
// instances than cores are among them, because batches gather while others run.
func waysByHand() (all []byHand) {
	for _, on := range choose([][2]int{{1, 1}, {2, 1}, {3, 1}, {1, 2}}, [][2]int{{2, 1}}) {
		for _, rows := range choose([]int{1, 4, 16, 32}, []int{1, 16}) {
			for _, delay := range choose([]time.Duration{0, 2 * time.Millisecond}, []time.Duration{0}) {
				if rows > 1 || delay == 0 {
					all = append(all, byHand{rows, delay, on[0], on[1]})
				}
			}
		}
	}
	return all
}

var loads = []int{1, 4, 16, 64} // clients

// untouched is the name of the way in which nothing is configured.
const untouched = "untouched"

// TestProofUntouchedIsAsGoodAsByHand serves models as bare files, with nothing
// configured, and holds what 1, 4, 16 and 64 clients get against the one
// configuration of a grid that is best over all four by their geometric mean. The
// grid is tried once, shortly; the best four, and the best of those without
// batching, are measured again beside the untouched model, in turn. What was measured
// is kept, so that a run that was ended goes on where it was.
func TestProofUntouchedIsAsGoodAsByHand(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	figures := openFigures(t, "auto-real")
	for _, model := range []string{"text_recognition", "ppocrv4_rec", "magika", "minilm", "wide_mlp"} {
		t.Run(model, func(t *testing.T) {
			m := bare.Open(r, modelsDir, model)
			defer m.Close()
			in, err := m.Inputs(1, 1)
			if err != nil {
				t.Fatal(err)
			}
			trial := &trial{model: model, file: realModel(t, model), request: requestOf(model, in), figures: figures}
			ways := trial.screen(t)
			trial.repeat(t, ways)
			trial.judge(t, ways)
		})
	}
}

// A trial is one model that is measured in several ways.
type trial struct {
	model, file string
	request     *kservepb.ModelInferRequest
	figures     *figures
}

// run has so many clients ask the model of that name, and returns how many answers
// they get in a second. It takes longer than it is told if the model is so slow that
// not everybody would be answered.
func (tr *trial) run(t *testing.T, s *server, name string, clients int, warm, one time.Duration) float64 {
	t.Helper()
	req := &kservepb.ModelInferRequest{ModelName: name, Inputs: tr.request.Inputs, RawInputContents: tr.request.RawInputContents}
	var answers atomic.Int64
	c := crowd{
		clients: clients, sharing: 6, warm: warm, request: func(int) *kservepb.ModelInferRequest { return req },
		check: func(_ int, _ *kservepb.ModelInferResponse, err error) error {
			answers.Add(1)
			return err
		},
		during: func() {
			before := answers.Load()
			for began := time.Now(); time.Since(began) < one || answers.Load() < before+int64(clients); {
				time.Sleep(min(one, 20*time.Millisecond))
			}
		},
	}
	got := c.run(t, s)
	if t.Failed() {
		t.FailNow() // what was answered with errors is no figure to keep
	}
	return got.steady()
}

// screen tries all of the grid once, and returns the best four, best first, and
// behind them the best without batching, if it is not among them.
func (tr *trial) screen(t *testing.T) []byHand {
	t.Helper()
	one := choose(500*time.Millisecond, 200*time.Millisecond)
	score := map[byHand]float64{}
	for _, way := range waysByHand() {
		var s *server
		for _, clients := range loads {
			key := fmt.Sprintf("%s, screened: %v, %d clients", tr.model, way, clients)
			if len(tr.figures.of[key]) == 0 {
				if s == nil {
					s = start(t, onnxRepository(t, map[string]onnxModel{"m": {tr.file, way.config()}}), "--batching=triton")
				}
				tr.figures.add(t, key, tr.run(t, s, "m", clients, 0, one))
			}
			score[way] += math.Log(tr.figures.of[key][0]) / float64(len(loads))
		}
		if s != nil {
			s.kill()
		}
	}
	ways := slices.SortedFunc(maps.Keys(score), func(a, b byHand) int { return cmp.Compare(score[b], score[a]) })
	single := ways[slices.IndexFunc(ways, func(h byHand) bool { return h.Rows == 1 })]
	ways = ways[:min(4, len(ways))]
	if !slices.Contains(ways, single) {
		ways = append(ways, single)
	}
	for _, way := range ways {
		t.Logf("screened %v: %.1f", way, math.Exp(score[way]))
	}
	return ways
}

func (tr *trial) key(way string, clients int) string {
	return fmt.Sprintf("%s, %s, %d clients", tr.model, way, clients)
}

// repeat measures some ways and the untouched model, in turn.
func (tr *trial) repeat(t *testing.T, ways []byHand) {
	t.Helper()
	rounds := choose(7, 1)
	names := []string{untouched}
	configured := map[string]onnxModel{}
	for i, way := range ways {
		names = append(names, way.String())
		configured[fmt.Sprint("way", i+1)] = onnxModel{tr.file, way.config()}
	}
	missing := func(name string, clients, round int) bool { return len(tr.figures.of[tr.key(name, clients)]) <= round }
	if !slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc(loads, func(clients int) bool { return missing(name, clients, rounds-1) })
	}) {
		return
	}
	hand := start(t, onnxRepository(t, configured), "--batching=triton")
	bare := start(t, onnxRepository(t, map[string]onnxModel{"way0": {file: tr.file}}))
	bare.awaitMeasured(t, "way0")
	tr.makeKnown(t, bare, "way0")
	warm, one := choose(300*time.Millisecond, 100*time.Millisecond), choose(time.Second, 300*time.Millisecond)
	for round := range rounds {
		for _, clients := range loads {
			for i := range names {
				way := (i + round) % len(names)
				if !missing(names[way], clients, round) {
					continue
				}
				s, model := hand, fmt.Sprint("way", way)
				if names[way] == untouched {
					s = bare
				}
				before, waited := s.batches(model), s.queued(model)
				tr.figures.add(t, tr.key(names[way], clients), tr.run(t, s, model, clients, warm, one))
				if names[way] != untouched {
					continue
				}
				t.Logf("round %d, %d clients: untouched runs %s; %s", round+1, clients, batchSizes(before, s.batches(model)), chosen(s.explanation(model)))
				if clients == 1 {
					tr.figures.add(t, tr.key("wait", clients), s.queued(model).since(waited).Seconds()*1e6)
				}
			}
		}
	}
	hand.kill()
	bare.kill()
}

// makeKnown lets an untouched model of that name see the shape of its requests, if it
// was measured with another one, and waits until it was measured with theirs.
func (tr *trial) makeKnown(t *testing.T, s *server, name string) {
	t.Helper()
	var theirs []string
	for _, in := range tr.request.Inputs {
		theirs = append(theirs, in.Name+tensor.ShapeText(in.Shape[1:]))
	}
	known := func() bool {
		m := s.explanation(name)
		for _, tried := range m.Calibration.Trials {
			if tried.Chosen && tried.Threads != m.Threads.Count {
				return false // it is about to run like this
			}
		}
		return !slices.ContainsFunc(strings.Fields(m.Calibration.Shape), func(shape string) bool { return !slices.Contains(theirs, shape) })
	}
	if known() {
		return
	}
	tr.run(t, s, name, 1, 0, 3*time.Second)
	for began := time.Now(); !known(); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("not measured with %v\n%s", theirs, s.logged())
		}
	}
	t.Logf("measured again with %s", s.explanation(name).Calibration.Shape)
}

// judge holds the untouched model against the best way by hand.
func (tr *trial) judge(t *testing.T, ways []byHand) {
	t.Helper()
	middle := func(way string, clients int) float64 {
		mid, _, _ := bench.Median(tr.figures.of[tr.key(way, clients)])
		return mid
	}
	score := func(way byHand) (sum float64) {
		for _, clients := range loads {
			sum += math.Log(middle(way.String(), clients))
		}
		return sum
	}
	best := slices.MaxFunc(ways, func(a, b byHand) int { return cmp.Compare(score(a), score(b)) }).String()
	var single string
	for _, way := range ways {
		if way.Rows == 1 {
			single = way.String()
		}
	}
	table := fmt.Sprintf("\n| %s | %s |\n|---|---|---|---|---|\n", tr.model, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(loads)), " | "), "[]"))
	for _, name := range append([]string{untouched}, names(ways)...) {
		table += "| " + name
		for _, clients := range loads {
			table += fmt.Sprintf(" | %.1f", middle(name, clients))
		}
		table += " |\n"
	}
	t.Log(table)
	share := func(of string, clients int, least float64) {
		t.Helper()
		ratios := []float64{}
		others := tr.figures.of[tr.key(of, clients)]
		for round, v := range tr.figures.of[tr.key(untouched, clients)] {
			ratios = append(ratios, v/others[round])
		}
		mid, low, high := bench.Median(ratios)
		report := t.Logf
		if high < choose(1, 0.5)*least {
			report = t.Errorf
		}
		report("%d clients: untouched is %.3f [%.3f, %.3f] of %s, want %.2f or more", clients, mid, low, high, of, least)
	}
	for _, clients := range loads {
		share(best, clients, 0.95)
		if tr.model == "ppocrv4_rec" {
			share(single, clients, 1)
		}
	}
	if tr.model == "wide_mlp" {
		share(single, 64, 5)
	}
	// A request that meets nobody waits only as long as it takes to wake the instance.
	wait, _, _ := bench.Median(tr.figures.of[tr.key("wait", 1)])
	alone := 1e6 / middle(untouched, 1)
	t.Logf("1 client: a request takes %.0f µs, of which it waits %.0f", alone, wait)
	if limit := choose(1.0, 10) * max(100, 0.02*alone); wait > limit {
		t.Errorf("1 client: requests wait for %.0f µs, want %.0f at the most", wait, limit)
	}
}

func names(ways []byHand) (all []string) {
	for _, way := range ways {
		all = append(all, way.String())
	}
	return all
}

// batchSizes says how large the batches were between two times, in per cent of them.
func batchSizes(before, after map[int]ran) string {
	total := 0
	counts := map[int]int{}
	for rows, b := range after {
		if n := b.count - before[rows].count; n > 0 {
			counts[rows] = n
			total += n
		}
	}
	var all []string
	for _, rows := range slices.Sorted(maps.Keys(counts)) {
		if share := 100 * counts[rows] / total; share > 0 {
			all = append(all, fmt.Sprintf("%d: %d %%", rows, share))
		}
	}
	return "batches of " + strings.Join(all, ", ")
}

// chosen says how a model runs by what was found out.
func chosen(m explain.Model) string {
	how := fmt.Sprintf("%d instances of %d threads", m.Instances.Count, m.Threads.Count)
	if m.Policy == nil {
		return how + ", no batching"
	}
	return fmt.Sprintf("%s, %d at once, filled up to %d rows", how, m.Policy.UsefulInstances, m.Policy.TargetRows)
}

// waits are how many requests were in a model's queue, and for how long together.
type waits struct{ Count, NS int64 }

// since returns how long each has waited since.
func (w waits) since(before waits) time.Duration {
	return time.Duration((w.NS - before.NS) / max(1, w.Count-before.Count))
}

func (s *server) queued(model string) waits {
	s.t.Helper()
	_, body := s.get("/v2/models/" + model + "/stats")
	var stats struct {
		Models []struct {
			Inference struct{ Queue waits } `json:"inference_stats"`
		} `json:"model_stats"`
	}
	if err := json.Unmarshal([]byte(body), &stats); err != nil || len(stats.Models) != 1 {
		s.t.Fatalf("statistics: %v %s", err, body)
	}
	return stats.Models[0].Inference.Queue
}
