//go:build e2e && proofs

package proofs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/bare"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofLimits holds the server against what bounds it on the same machine: the
// engine without a server, and a server without an engine (see echo_test.go). It
// prints a table with what is promised. What was measured is kept, so that a run that
// was ended goes on where it was; a part alone is run with -run TestProofLimits/way.
func TestProofLimits(t *testing.T) {
	l := &limits{samples: servertest.Samples(t, "limits"), rounds: servertest.Rounds()}
	t.Cleanup(func() { t.Log(l.table()) })
	t.Run("way", l.way)
	t.Run("alone", l.alone)
	t.Run("models", l.models)
	t.Run("join", l.join)
	t.Run("start", l.start)
}

// limits are what was measured so far, and the rows of the table.
type limits struct {
	samples *measure.Samples
	rounds  int
	rows    []string
}

// has reports whether a figure was measured in all rounds.
func (l *limits) has(name string) bool { return len(l.samples.Of(name)) >= l.rounds }

// each runs the rounds in which a figure is missing. It adds the figure
// after all others of a round.
func (l *limits) each(last string, round func(n int)) {
	for !l.has(last) {
		round(len(l.samples.Of(last)))
	}
}

func (l *limits) add(t *testing.T, name string, value float64) {
	t.Helper()
	servertest.Add(t, l.samples, name, value)
}

// judge adds a figure to the table with its verdict.
func (l *limits) judge(t *testing.T, name string, bound measure.Bound) {
	t.Helper()
	l.rows = append(l.rows, servertest.Judge(t, "limits: "+name, bound, l.samples.Of(name)))
}

func (l *limits) most(t *testing.T, name string, most float64) {
	t.Helper()
	l.judge(t, name, measure.AtMost(most))
}

// least is for a promise that some models have; 0 means none.
func (l *limits) least(t *testing.T, name string, least float64) {
	t.Helper()
	if least == 0 {
		l.tell(name)
		return
	}
	l.judge(t, name, measure.AtLeast(least))
}

// tell adds a figure to the table of which nothing is promised.
func (l *limits) tell(name string) {
	mid, low, high := bench.Median(l.samples.Of(name))
	l.rows = append(l.rows, fmt.Sprintf("| limits: %s | %.4g [%.4g, %.4g] | | |", name, mid, low, high))
}

func (l *limits) table() string {
	return "\n| what | measured | promised | |\n|---|---|---|---|\n" + strings.Join(l.rows, "\n")
}

// way compares what a request costs the server with what it costs the echo. Each round
// pulls at both, one after the other.
func (l *limits) way(t *testing.T) {
	const done = "the way: rounds that are complete"
	if !l.has(done) {
		s := servertest.Start(t, servertest.Repository(t, instants))
		echo, lean, handing := startEcho(t)
		line, photo := rowOf(1, 32, 100), rowOf(3, 224, 224)
		ask := func(s *servertest.Server, model string, in []tensor.Tensor) map[string]bench.Caller {
			return map[string]bench.Caller{"gRPC": askOver(t, "gRPC", s.GRPC, model, in), "HTTP": askOver(t, "HTTP", s.HTTP, model, in)}
		}
		small, large, joined := ask(s, "small", line), ask(s, "large", photo), ask(s, "joined", photo)
		echoSmall, echoLarge := ask(echo, "small", line), ask(echo, "large", photo)
		leans := map[string]bench.Caller{"lean HTTP/2": askOver(t, "gRPC", lean, "small", line), "lean HTTP/2 with a hand-over": askOver(t, "gRPC", handing, "small", line)}
		d := servertest.StrictOr(pulling, 300*time.Millisecond)
		l.each(done, func(round int) {
			for _, p := range []string{"gRPC", "HTTP"} {
				b, m := measure.Pair(round,
					func() pull { return pullAt(t, echo, echoSmall[p], crowded, d) },
					func() pull { return pullAt(t, s, small[p], crowded, d) })
				t.Logf("round %d, %s, 12.8 KB: echo %.0f a second for %.1f µs, and %.1f of the clients; server %.0f for %.1f, and %.1f",
					round+1, p, b.perSecond, b.cpu, b.clients, m.perSecond, m.cpu, m.clients)
				l.add(t, p+", 12.8 KB: CPU of the echo, µs", b.cpu)
				l.add(t, p+", 12.8 KB: CPU of the server above it, µs", m.cpu-b.cpu)
				l.add(t, p+", 12.8 KB: throughput, times the echo's", m.perSecond/b.perSecond)

				var garbage float64
				b, m = measure.Pair(round,
					func() pull { return pullAt(t, echo, echoLarge[p], crowded, d) },
					func() pull {
						before := goCPUOf(s)
						defer func() { garbage = goCPUOf(s).since(before) }()
						return pullAt(t, s, large[p], crowded, d)
					})
				j := pullAt(t, s, joined[p], crowded, d)
				t.Logf("round %d, %s, 600 KB: echo %.0f a second for %.0f µs; server %.0f for %.0f, with rows joined %.0f for %.0f",
					round+1, p, b.perSecond, b.cpu, m.perSecond, m.cpu, j.perSecond, j.cpu)
				l.add(t, p+", 600 KB: CPU of the echo, µs", b.cpu)
				l.add(t, p+", 600 KB: CPU of the server, times it", m.cpu/b.cpu)
				l.add(t, p+", 600 KB: with rows joined, times it", j.cpu/b.cpu)
				l.add(t, p+", 600 KB: garbage collection, share of CPU", garbage)
			}
			for name, c := range leans {
				l.add(t, "gRPC, 12.8 KB: CPU of "+name+", µs", pullAt(t, echo, c, crowded, d).cpu)
			}
			l.add(t, done, 1)
		})
	}
	for _, p := range []string{"gRPC", "HTTP"} {
		l.tell(p + ", 12.8 KB: CPU of the echo, µs")
		l.most(t, p+", 12.8 KB: CPU of the server above it, µs", 12)
		l.tell(p + ", 12.8 KB: throughput, times the echo's")
		l.tell(p + ", 600 KB: CPU of the echo, µs")
		l.most(t, p+", 600 KB: CPU of the server, times it", 1.3)
		l.tell(p + ", 600 KB: with rows joined, times it")
		l.most(t, p+", 600 KB: garbage collection, share of CPU", 0.03)
	}
	l.tell("gRPC, 12.8 KB: CPU of lean HTTP/2, µs")
	l.tell("gRPC, 12.8 KB: CPU of lean HTTP/2 with a hand-over, µs")
}

// alone lets one client ask, who finds nobody else there.
func (l *limits) alone(t *testing.T) {
	name := func(protocol string) string { return protocol + ", one client alone: p50 above the echo's, µs" }
	if !l.has(name("HTTP")) {
		s := servertest.Start(t, servertest.Repository(t, instants))
		echo, _, _ := startEcho(t)
		in, d := rowOf(1, 32, 100), servertest.StrictOr(pulling, 300*time.Millisecond)
		l.each(name("HTTP"), func(round int) {
			for _, p := range []string{"gRPC", "HTTP"} {
				b, m := measure.Pair(round,
					func() pull { return pullAt(t, echo, askOver(t, p, echo.At(p), "small", in), 1, d) },
					func() pull { return pullAt(t, s, askOver(t, p, s.At(p), "small", in), 1, d) })
				t.Logf("round %d, %s: echo %v, server %v", round+1, p, b.p50, m.p50)
				l.add(t, p+", one client alone: p50 of the echo, µs", b.p50.Seconds()*1e6)
				l.add(t, name(p), (m.p50-b.p50).Seconds()*1e6)
			}
		})
	}
	for _, p := range []string{"gRPC", "HTTP"} {
		l.tell(p + ", one client alone: p50 of the echo, µs")
		l.most(t, name(p), 60)
	}
}

// A contender is a model of real size, and how it may be configured.
type contender struct {
	model   string
	rows    []int // sizes of batches to try on the bare engine
	configs []string
	share   float64 // of the bare engine's throughput that is promised; 0 means none
	inside  float64 // of the server's CPU that is promised to be the engine's; likewise
}

func inBatches(rows, instances int, delay time.Duration) string {
	return fmt.Sprintf("max_batch_size: %d dynamic_batching { max_queue_delay_microseconds: %d } instance_group { count: %d }",
		rows, delay.Microseconds(), instances)
}

func oneByOne(instances int) string {
	return fmt.Sprintf("max_batch_size: 1 instance_group { count: %d }", instances)
}

// models compares what 64 clients get, a row each, with the bare engine in the setting
// that is best for it. The server has the best of some configurations, which are tried
// once and shortly. Server, clients and bare engine share the cores: what the clients
// use, the server cannot.
func (l *limits) models(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, p := range []contender{
		{"text_recognition", []int{1, 2, 4, 8}, []string{oneByOne(2), inBatches(4, 2, 0), oneByOne(3)}, 0.95, 0},
		{"ppocrv4_rec", []int{1, 2}, []string{oneByOne(2), oneByOne(3)}, 0.95, 0},
		{"minilm", []int{1, 8, 16, 32}, []string{inBatches(16, 2, 0), inBatches(32, 2, 0), inBatches(16, 3, 0)}, 0.95, 0},
		{"magika", []int{1, 2, 4}, []string{oneByOne(2), inBatches(2, 2, 0), oneByOne(3)}, 0.95, 0},
		{"wide_mlp", []int{1, 4, 8, 16, 32}, []string{inBatches(16, 2, 0), inBatches(32, 2, 0), inBatches(32, 3, 3*time.Millisecond), inBatches(16, 3, 0)}, 0.70, 0.84},
		{"mlp", []int{1, 8, 32, 64}, []string{inBatches(64, 1, 0), inBatches(64, 2, 0)}, 0, 0},
	} {
		t.Run(p.model, func(t *testing.T) {
			if !l.has(p.name("HTTP")) {
				l.serve(t, r, p)
			}
			for _, protocol := range []string{"gRPC", "HTTP"} {
				l.least(t, p.name(protocol), p.share)
				l.least(t, p.nameInside(protocol), p.inside)
				l.tell(p.nameCPU(protocol, "the server"))
				l.tell(p.nameCPU(protocol, "the clients"))
			}
		})
	}
}

func (p contender) name(protocol string) string {
	return fmt.Sprintf("%s, %s: throughput, share of the bare engine's", p.model, protocol)
}

func (p contender) nameInside(protocol string) string {
	return fmt.Sprintf("%s, %s: share of the server's CPU that is inside the engine", p.model, protocol)
}

func (p contender) nameCPU(protocol, whose string) string {
	return fmt.Sprintf("%s, %s: CPU of %s for a request, µs", p.model, protocol, whose)
}

// serve measures a model.
func (l *limits) serve(t *testing.T, r *onnxruntime.Runtime, p contender) {
	file := servertest.RealModel(t, p.model)
	m := bare.Open(r, servertest.ModelsDir, p.model)
	defer m.Close()
	in, err := m.Inputs(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	results := search(t, m, p.rows)
	best := bare.Best(results)
	t.Logf("the bare engine is best with %v: %.0f rows a second", best.Setting, best.RowsPerSecond)

	models := map[string]servertest.ONNXModel{}
	for i, config := range p.configs {
		models[fmt.Sprint("way", i)] = servertest.ONNXModel{File: file, Config: config}
	}
	s := servertest.Start(t, servertest.ONNXRepository(t, models), "--batching=triton")
	most, way := 0.0, ""
	for i, config := range p.configs {
		name := fmt.Sprint("way", i)
		v := pullAt(t, s, askOver(t, "gRPC", s.GRPC, name, in), crowded, servertest.StrictOr(time.Second, 200*time.Millisecond))
		t.Logf("%s: %.0f rows a second", config, v.perSecond)
		if v.perSecond > most {
			most, way = v.perSecond, name
		}
	}
	d := servertest.StrictOr(pulling, 300*time.Millisecond)
	callers := map[string]bench.Caller{}
	for _, protocol := range []string{"gRPC", "HTTP"} {
		callers[protocol] = askOver(t, protocol, s.At(protocol), way, in)
	}
	l.each(p.name("HTTP"), func(round int) {
		for _, protocol := range []string{"gRPC", "HTTP"} {
			before := s.Batches(way)
			var cpu time.Duration
			alone, v := measure.Pair(round,
				func() pull { return pull{perSecond: measureBare(t, m, best.Setting, d).RowsPerSecond} },
				func() pull {
					cpu = -s.Usage().CPU
					defer func() { cpu += s.Usage().CPU }()
					return pullAt(t, s, callers[protocol], crowded, d)
				})
			// The engine's part: the batches that the server counted, each for the time
			// that one of its size took the bare engine.
			var computed time.Duration
			for rows, b := range s.Batches(way) {
				computed += time.Duration(b.Count-before[rows].Count) * cpuOf(results, rows)
			}
			t.Logf("round %d, %s: bare %.0f rows a second, served %.0f, for %.1f µs and %.1f of the clients", round+1, protocol, alone.perSecond, v.perSecond, v.cpu, v.clients)
			l.add(t, p.nameInside(protocol), computed.Seconds()/cpu.Seconds())
			l.add(t, p.nameCPU(protocol, "the server"), v.cpu)
			l.add(t, p.nameCPU(protocol, "the clients"), v.clients)
			l.add(t, p.name(protocol), v.perSecond/alone.perSecond)
		}
	})
}

// search measures the bare engine in all settings.
func search(t *testing.T, m *bare.Model, rows []int) (results []bare.Result) {
	t.Helper()
	for _, s := range bare.Settings(rows, runtime.NumCPU()) {
		results = append(results, measureBare(t, m, s, servertest.StrictOr(time.Second, 200*time.Millisecond)))
	}
	return results
}

func measureBare(t *testing.T, m *bare.Model, s bare.Setting, d time.Duration) bare.Result {
	t.Helper()
	r, err := m.Measure(s, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// cpuOf returns what a batch costs that one thread computes while the other cores
// do the same, between the two sizes that were measured.
func cpuOf(results []bare.Result, rows int) time.Duration {
	var low, high bare.Result
	for _, r := range results {
		if r.Threads != 1 || r.Callers != runtime.NumCPU() {
			continue
		}
		if r.Rows <= rows {
			low = r
		}
		if r.Rows >= rows && high.Rows == 0 {
			high = r
		}
	}
	if low.Rows == high.Rows {
		return low.CPU
	}
	return low.CPU + (high.CPU-low.CPU)*time.Duration(rows-low.Rows)/time.Duration(high.Rows-low.Rows)
}

// join has 64 clients share one batch of pictures, and asks what joining them took
// beside what ResNet-50 did.
func (l *limits) join(t *testing.T) {
	const name, rows = "64 pictures joined: share of the time that ResNet-50 computes them", crowded
	if !l.has(name) {
		config := inBatches(rows, 1, 5*time.Second) + ` parameters { key: "intra_op_thread_count" value { string_value: "2" } }`
		s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"resnet": {File: servertest.RealModel(t, "resnet50"), Config: config}}), "--batching=triton")
		in := rowOf(3, 224, 224)
		in[0].Name = "data"
		c := askOver(t, "gRPC", s.GRPC, "resnet", in)
		l.each(name, func(round int) {
			before := s.Batches("resnet")[rows]
			errs := make([]error, rows)
			var all sync.WaitGroup
			for n := range rows {
				all.Go(func() { errs[n] = c.Infer(context.Background(), 0) })
			}
			all.Wait()
			after := s.Batches("resnet")[rows]
			if err := errors.Join(errs...); err != nil || after.Count != before.Count+1 {
				t.Fatalf("%d batches of %d rows, want one more than %d: %v", after.Count, rows, before.Count, err)
			}
			joined, took := after.Joined-before.Joined, after.Took-before.Took
			t.Logf("round %d: joined in %v, computed in %v", round+1, joined, took)
			l.add(t, "64 pictures joined: ms", joined.Seconds()*1e3)
			l.add(t, name, joined.Seconds()/took.Seconds())
		})
	}
	l.most(t, name, 0.02)
	l.tell("64 pictures joined: ms")
}

// start asks how long it takes from starting the program to its first answer, of a
// model that nobody configured, and how much memory it has then.
func (l *limits) start(t *testing.T) {
	const (
		took       = "text_recognition: from start to the first answer, ms"
		memory     = "text_recognition: resident memory, MB"
		calibrated = "text_recognition: resident memory after calibration, MB"
	)
	if !l.has(memory) {
		repository := servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {File: servertest.RealModel(t, "text_recognition")}})
		in := rowOf(1, 32, 100)
		in[0].Name = "input.1"
		l.each(memory, func(round int) {
			began := time.Now()
			s := servertest.Launch(t, repository, "--http-port=0", "--grpc-port=0", "--metrics-port=0")
			for a := range s.Addresses {
				if a[0] == "http" {
					s.HTTP = "http://" + a[1]
					break
				}
			}
			c := askOver(t, "HTTP", s.HTTP, "m", in)
			for c.Infer(t.Context(), 0) != nil {
				if s.EndsWithin(time.Millisecond) || time.Since(began) > servertest.StartPatience {
					t.Fatalf("no answer\n%s", s.Log())
				}
			}
			first, resident := time.Since(began), s.Usage().Memory
			t.Logf("round %d: %v, %d MB", round+1, first, resident>>20)
			if round == 0 { // it takes some time
				s.AwaitMeasured(t, "m")
				l.add(t, calibrated, float64(s.Usage().Memory)/(1<<20))
			}
			s.Kill()
			l.add(t, took, first.Seconds()*1e3)
			l.add(t, memory, float64(resident)/(1<<20))
		})
	}
	l.most(t, took, 500)
	l.most(t, memory, 80)
	l.tell(calibrated)
}
