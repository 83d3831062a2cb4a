//go:build e2e && proofs

package proofs

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/bare"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
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
	for _, on := range servertest.StrictOr([][2]int{{1, 1}, {2, 1}, {3, 1}, {1, 2}}, [][2]int{{2, 1}}) {
		for _, rows := range servertest.StrictOr([]int{1, 4, 16, 32}, []int{1, 16}) {
			for _, delay := range servertest.StrictOr([]time.Duration{0, 2 * time.Millisecond}, []time.Duration{0}) {
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
	samples := servertest.Samples(t, "auto-real")
	for _, model := range []string{"text_recognition", "ppocrv4_rec", "magika", "minilm", "wide_mlp"} {
		t.Run(model, func(t *testing.T) {
			m := bare.Open(r, servertest.ModelsDir, model)
			defer m.Close()
			in, err := m.Inputs(1, 1)
			if err != nil {
				t.Fatal(err)
			}
			trial := &trial{model: model, file: servertest.RealModel(t, model), request: &client.Request{Model: model, Inputs: in}, samples: samples}
			ways := trial.screen(t)
			trial.repeat(t, ways)
			trial.judge(t, ways)
		})
	}
}

// A trial is one model that is measured in several ways.
type trial struct {
	model, file string
	request     *client.Request
	samples     *measure.Samples
}

// run has so many clients ask the model of that name, and returns how many answers
// they get in a second. It takes longer than it is told if the model is so slow that
// not everybody would be answered.
func (tr *trial) run(t *testing.T, s *servertest.Server, name string, clients int, warm, one time.Duration) float64 {
	t.Helper()
	req := &client.Request{Model: name, Inputs: tr.request.Inputs}
	var answers atomic.Int64
	c := servertest.Crowd{
		Clients: clients, Sharing: 6, Warm: warm, Request: func(int) *client.Request { return req },
		Check: func(_ int, _ *client.Response, err error) error {
			answers.Add(1)
			return err
		},
		During: func() {
			before := answers.Load()
			for began := time.Now(); time.Since(began) < one || answers.Load() < before+int64(clients); {
				time.Sleep(min(one, 20*time.Millisecond))
			}
		},
	}
	got := c.Run(t, s)
	if t.Failed() {
		t.FailNow() // what was answered with errors is no figure to keep
	}
	return got.Steady()
}

// screen tries all of the grid once, and returns the best four, best first, and
// behind them the best without batching, if it is not among them.
func (tr *trial) screen(t *testing.T) []byHand {
	t.Helper()
	one := servertest.StrictOr(500*time.Millisecond, 200*time.Millisecond)
	score := map[byHand]float64{}
	for _, way := range waysByHand() {
		var s *servertest.Server
		for _, clients := range loads {
			key := fmt.Sprintf("%s, screened: %v, %d clients", tr.model, way, clients)
			if len(tr.samples.Of(key)) == 0 {
				if s == nil {
					s = servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {File: tr.file, Config: way.config()}}), "--batching=triton")
				}
				servertest.Add(t, tr.samples, key, tr.run(t, s, "m", clients, 0, one))
			}
			score[way] += math.Log(tr.samples.Of(key)[0]) / float64(len(loads))
		}
		if s != nil {
			s.Kill()
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
	rounds := servertest.Rounds()
	names := []string{untouched}
	configured := map[string]servertest.ONNXModel{}
	for i, way := range ways {
		names = append(names, way.String())
		configured[fmt.Sprint("way", i+1)] = servertest.ONNXModel{File: tr.file, Config: way.config()}
	}
	missing := func(name string, clients, round int) bool { return len(tr.samples.Of(tr.key(name, clients))) <= round }
	if !slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc(loads, func(clients int) bool { return missing(name, clients, rounds-1) })
	}) {
		return
	}
	hand := servertest.Start(t, servertest.ONNXRepository(t, configured), "--batching=triton")
	bare := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"way0": {File: tr.file}}))
	bare.AwaitMeasured(t, "way0")
	tr.makeKnown(t, bare, "way0")
	warm, one := servertest.StrictOr(300*time.Millisecond, 100*time.Millisecond), servertest.StrictOr(time.Second, 300*time.Millisecond)
	for round := range rounds {
		for _, clients := range loads {
			for way := range measure.Turn(round, len(names)) {
				if !missing(names[way], clients, round) {
					continue
				}
				s, model := hand, fmt.Sprint("way", way)
				if names[way] == untouched {
					s = bare
				}
				before, waited := s.Batches(model), queued(s, model)
				servertest.Add(t, tr.samples, tr.key(names[way], clients), tr.run(t, s, model, clients, warm, one))
				if names[way] != untouched {
					continue
				}
				t.Logf("round %d, %d clients: untouched runs %s; %s", round+1, clients, batchSizes(before, s.Batches(model)), chosen(s.Explanation(model)))
				if clients == 1 {
					now := queued(s, model)
					each := client.Total{Count: now.Count - waited.Count, Time: now.Time - waited.Time}.Mean()
					servertest.Add(t, tr.samples, tr.key("wait", clients), each.Seconds()*1e6)
				}
			}
		}
	}
	hand.Kill()
	bare.Kill()
}

// makeKnown lets an untouched model of that name see the shape of its requests, if it
// was measured with another one, and waits until it was measured with theirs.
func (tr *trial) makeKnown(t *testing.T, s *servertest.Server, name string) {
	t.Helper()
	var theirs []string
	for _, in := range tr.request.Inputs {
		theirs = append(theirs, in.Name+tensor.ShapeText(in.Shape[1:]))
	}
	known := func() bool {
		m := s.Explanation(name)
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
			t.Fatalf("not measured with %v\n%s", theirs, s.Log())
		}
	}
	t.Logf("measured again with %s", s.Explanation(name).Calibration.Shape)
}

// judge holds the untouched model against the best way by hand.
func (tr *trial) judge(t *testing.T, ways []byHand) {
	t.Helper()
	middle := func(way string, clients int) float64 {
		mid, _, _ := bench.Median(tr.samples.Of(tr.key(way, clients)))
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
	share := func(name, of string, clients int, least float64) {
		t.Helper()
		gate := fmt.Sprintf("auto-real: %s with %d clients, share of %s", tr.model, clients, name)
		servertest.Judge(t, gate, measure.AtLeast(least), tr.samples.Ratios(tr.key(untouched, clients), tr.key(of, clients)))
	}
	for _, clients := range loads {
		share("the best by hand", best, clients, 0.95)
		if tr.model == "ppocrv4_rec" {
			share("no batching", single, clients, 1)
		}
	}
	if tr.model == "wide_mlp" {
		share("no batching", single, 64, 5)
	}
	// A request that meets nobody waits only as long as it takes to wake the instance.
	alone := 1e6 / middle(untouched, 1)
	servertest.Judge(t, fmt.Sprintf("auto-real: %s, µs that a client waits alone", tr.model), measure.AtMost(max(100, 0.02*alone)), tr.samples.Of(tr.key("wait", 1)))
}

func names(ways []byHand) (all []string) {
	for _, way := range ways {
		all = append(all, way.String())
	}
	return all
}

// batchSizes says how large the batches were between two times, in per cent of them.
func batchSizes(before, after map[int]servertest.Batches) string {
	total := 0
	counts := map[int]int{}
	for rows, b := range after {
		if n := b.Count - before[rows].Count; n > 0 {
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

// queued returns how many requests were in a model's queue, and for how long together.
func queued(s *servertest.Server, model string) client.Total {
	s.T.Helper()
	stats, err := s.Web().Statistics(s.T.Context(), model, "")
	if err != nil || len(stats) != 1 {
		s.T.Fatalf("statistics: %v %v", stats, err)
	}
	return stats[0].Queue
}
