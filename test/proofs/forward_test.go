//go:build e2e && proofs

package proofs

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
	"github.com/shoal-serving/shoal/test/bare"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// forwarders are Python processes that ask a model of a server.
type forwarders struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

// A forwarded is what came of a round of them.
type forwarded struct {
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50"` // seconds
	P99       float64 `json:"p99"`
	Fewest    int     `json:"fewest"` // answers that a process had
}

func startForwarders(t *testing.T, socket, model string, processes int) *forwarders {
	t.Helper()
	cmd := exec.Command(pythontest.Interpreter(t), "forward.py", socket, model, strconv.Itoa(processes))
	cmd.Stderr = os.Stderr
	in, out := servertest.Converse(t, cmd)
	f := &forwarders{t, in, out}
	if !f.out.Scan() || f.out.Text() != "ready" {
		t.Fatalf("the processes do not start: %q", f.out.Text())
	}
	return f
}

func (f *forwarders) round(warm, one time.Duration) (r forwarded) {
	f.t.Helper()
	if _, err := fmt.Fprintln(f.in, warm.Seconds(), one.Seconds()); err != nil {
		f.t.Fatal(err)
	}
	if !f.out.Scan() {
		f.t.Fatal("the processes have ended")
	}
	if err := json.Unmarshal(f.out.Bytes(), &r); err != nil {
		f.t.Fatalf("%v in %s", err, f.out.Text())
	}
	return r
}

// TestProofForwardThroughput has many Python processes ask for one item each, of a model
// that nobody configured, and holds them against the best that the bare engine does with
// batches of any size.
func TestProofForwardThroughput(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	processes, one := servertest.StrictOr(128, 8), servertest.StrictOr(3*time.Second, 500*time.Millisecond)
	table := fmt.Sprintf("\n| model | bare, rows/s | %d processes, rows/s |\n|---|---|---|\n", processes)
	samples := servertest.Samples(t, "forward")
	verdicts := "\n"
	for _, p := range []struct {
		model string
		share float64 // of the bare engine's throughput
	}{{"text_recognition", 0.95}, {"wide_mlp", 0.70}} {
		t.Run(p.model, func(t *testing.T) {
			file := servertest.RealModel(t, p.model)
			m := bare.Open(r, servertest.ModelsDir, p.model)
			defer m.Close()
			best := bare.Best(search(t, m, []int{1, 2, 4, 8, 16, 32}))
			socket := filepath.Join(t.TempDir(), "socket")
			s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{p.model: {File: file}}), "--local-socket="+socket)
			s.AwaitMeasured(t, p.model)
			f := startForwarders(t, socket, p.model, processes)
			f.round(0, servertest.StrictOr(5*time.Second, one)) // for the policy to get to know them
			gate := "forward: " + p.model + ", share of the bare engine"
			for round := len(samples.Of(gate)); round < servertest.Rounds(); round++ {
				before := s.Batches(p.model)
				alone, served := measure.Pair(round,
					func() forwarded { return forwarded{PerSecond: measureBare(t, m, best.Setting, one).RowsPerSecond} },
					func() forwarded { return f.round(500*time.Millisecond, one) })
				t.Logf("bare %.0f rows/s, served %.0f, p50 %.1f ms, p99 %.1f ms; %s; the slowest process had %d answers", alone.PerSecond, served.PerSecond,
					1e3*served.P50, 1e3*served.P99, batchSizes(before, s.Batches(p.model)), served.Fewest)
				servertest.Add(t, samples, p.model+", bare, rows/s", alone.PerSecond)
				servertest.Add(t, samples, p.model+", served, rows/s", served.PerSecond)
				servertest.Add(t, samples, gate, served.PerSecond/alone.PerSecond)
			}
			bareMid, _, _ := bench.Median(samples.Of(p.model + ", bare, rows/s"))
			servedMid, _, _ := bench.Median(samples.Of(p.model + ", served, rows/s"))
			table += fmt.Sprintf("| %s | %.0f (%v) | %.0f |\n", p.model, bareMid, best.Setting, servedMid)
			verdicts += servertest.Judge(t, gate, measure.AtLeast(p.share), samples.Of(gate)) + "\n"
		})
	}
	t.Log(table + verdicts)
}

// TestProofForwardLatency has a Python process ask for one array of 600 KB, again and
// again, and tells how much longer that takes than the model.
func TestProofForwardLatency(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const model, elements = "picture", 3 * 224 * 224
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, model, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	onnxtest.First{Columns: elements}.Write(t, filepath.Join(dir, model, "1"))
	m := bare.Open(r, dir, model)
	defer m.Close()
	socket := filepath.Join(t.TempDir(), "socket")
	s := servertest.Start(t, dir, "--local-socket="+socket)
	s.AwaitMeasured(t, model)
	f := startForwarders(t, socket, model, 1)
	one := servertest.StrictOr(2*time.Second, 300*time.Millisecond)
	f.round(0, one)
	const gate = "forward: one array of 600 KB, µs beyond the model"
	samples := servertest.Samples(t, "forward")
	for round := len(samples.Of(gate)); round < servertest.Rounds(); round++ {
		alone, got := measure.Pair(round,
			func() forwarded {
				return forwarded{P50: measureBare(t, m, bare.Setting{Rows: 1, Threads: 1, Callers: 1}, one).Takes.Seconds()}
			},
			func() forwarded { return f.round(200*time.Millisecond, one) })
		t.Logf("the model takes %.1f µs, forward %.1f µs, p99 %.1f µs", 1e6*alone.P50, 1e6*got.P50, 1e6*got.P99)
		servertest.Add(t, samples, gate, 1e6*(got.P50-alone.P50))
	}
	servertest.Judge(t, gate, measure.AtMost(100), samples.Of(gate))
}
