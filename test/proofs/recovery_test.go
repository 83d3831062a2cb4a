//go:build e2e && proofs

package proofs

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/bare"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// What happens to a server before it must be as fast as one to which nothing has happened: for some
// seconds while clients ask, or while it is calibrated.
const (
	sixLoops             = "six busy loops"
	stopPulses           = "SIGSTOP pulses"
	disturbedCalibration = "a disturbed calibration"
)

var disturbances = []string{sixLoops, stopPulses, disturbedCalibration}

const (
	recoveryRounds = 20
	recoverWithin  = 200  // batches after a disturbance
	recoverTo      = 0.97 // of the throughput without it
)

// TestProofTheServerRecovers disturbs a server in a number of random rounds: a model, a number of
// clients, and a disturbance of 15 s. Beside it is a second server with the same model, which is not
// disturbed. Once the first one has run 200 batches more, both are measured in turn. What one of them
// had before the disturbance, by what the other had, counts as 1: two servers that were calibrated at
// different moments need not run alike. It counts as 0.97 if it was less.
func TestProofTheServerRecovers(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	samples := servertest.Samples(t, "recovery")
	recovered, rounds := 0, servertest.StrictOr(recoveryRounds, len(disturbances))
	for n := range rounds {
		rng := rand.New(rand.NewPCG(20261119, uint64(n)))
		how := disturbances[n%len(disturbances)]
		model := servertest.StrictOr([]string{"seed_device", "text_recognition", "wide_mlp"}, []string{"seed_device"})
		d := disturbed{model: model[rng.IntN(len(model))], how: how, clients: 1 << rng.IntN(7), rng: rng}
		name := fmt.Sprintf("round %d: %s with %d clients, %s", n+1, d.model, d.clients, d.how)
		if len(samples.Of(name)) < measure.MinSamples {
			d.measure(t, r, samples, name)
		}
		mid, low, high := bench.Median(samples.Of(name))
		t.Logf("%s: %.3f [%.3f, %.3f]", name, mid, low, high)
		if mid >= recoverTo {
			recovered++
		}
	}
	t.Logf("%d of %d rounds: back within 3 %% after %d batches", recovered, rounds, recoverWithin)
	if least := servertest.StrictOr(recoveryRounds, 1); recovered < least {
		t.Errorf("%d of %d rounds recovered, want %d", recovered, rounds, least)
	}
}

// disturbed is a round.
type disturbed struct {
	model, how string
	clients    int
	rng        *rand.Rand
	request    *client.Request
}

// measure carries the round out, and keeps the throughput after the disturbance in parts of that
// before, by those of a server without one.
func (d *disturbed) measure(t *testing.T, r *onnxruntime.Runtime, samples *measure.Samples, name string) {
	t.Helper()
	repository := func() string {
		if d.model == "seed_device" {
			return servertest.Repository(t, map[string]string{d.model: servertest.SeedConfig(1, "dynamic_batching { }", servertest.SeedSpeed)})
		}
		return servertest.ONNXRepository(t, map[string]servertest.ONNXModel{d.model: {File: servertest.RealModel(t, d.model)}})
	}
	d.request = servertest.SeedRequest(d.model, 2)
	if d.model != "seed_device" {
		m := bare.Open(r, servertest.ModelsDir, d.model)
		defer m.Close()
		in, err := m.Inputs(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		d.request = &client.Request{Model: d.model, Inputs: in}
	}

	start := func() *servertest.Server {
		s := servertest.Start(t, repository())
		s.AwaitMeasured(t, d.model)
		return s
	}
	quiet := start()
	defer quiet.Kill()
	stop := func() {}
	if d.how == disturbedCalibration {
		stop = busyLoops(t)
	}
	other := start()
	defer other.Kill()
	stop()

	was := 1.0 // of a disturbed calibration, which nothing precedes
	if d.how != disturbedCalibration {
		was, _, _ = bench.Median(d.pairs(t, quiet, other))
	}
	lasts := servertest.StrictOr(15*time.Second, 2*time.Second)
	d.crowd(t, other, func() {
		switch d.how {
		case sixLoops:
			stop := busyLoops(t)
			time.Sleep(lasts)
			stop()
		case stopPulses:
			d.pulses(t, other, lasts)
		}
		d.awaitBatches(other)
	})
	after := d.pairs(t, quiet, other)
	t.Logf("%s: before %.3f; after %.3f", name, was, after)
	for _, ratio := range after {
		servertest.Add(t, samples, name, ratio/max(was, recoverTo))
	}
}

// crowd has the clients of the round ask s while during runs.
func (d *disturbed) crowd(t *testing.T, s *servertest.Server, during func()) servertest.Tally {
	t.Helper()
	c := servertest.Crowd{Clients: d.clients, Sharing: 6, Request: func(int) *client.Request { return d.request }, During: during}
	return c.Run(t, s)
}

// pairs measures both servers in turn, and returns the throughput of the second by that of the first.
func (d *disturbed) pairs(t *testing.T, quiet, other *servertest.Server) (ratios []float64) {
	t.Helper()
	one := servertest.StrictOr(time.Second, 300*time.Millisecond)
	for round := range servertest.Rounds() {
		var got [2]float64
		for side := range measure.Turn(round, 2) {
			got[side] = d.crowd(t, []*servertest.Server{quiet, other}[side], servertest.For(one)).Steady()
		}
		ratios = append(ratios, got[1]/got[0])
	}
	return ratios
}

// awaitBatches waits until the model has run as many more batches as it may need to recover.
func (d *disturbed) awaitBatches(s *servertest.Server) {
	ran := func() (n int) {
		for _, b := range s.Batches(d.model) {
			n += b.Count
		}
		return n
	}
	for from := ran(); ran() < from+recoverWithin; {
		time.Sleep(10 * time.Millisecond)
	}
}

// pulses stops the server again and again, for up to half a second.
func (d *disturbed) pulses(t *testing.T, s *servertest.Server, lasts time.Duration) {
	t.Helper()
	for began := time.Now(); time.Since(began) < lasts; {
		for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			if err := s.Cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Duration(50+d.rng.IntN(450)) * time.Millisecond)
		}
	}
}

// busyLoops starts six processes that compute, and returns what ends them.
func busyLoops(t *testing.T) (stop func()) {
	t.Helper()
	var all []*exec.Cmd
	for range 6 {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	return sync.OnceFunc(func() {
		for _, cmd := range all {
			servertest.Kill(cmd)
		}
	})
}

// TestProofRetestsCostLittle runs two servers in turn, one of which never measures again what it has
// excluded, for ten minutes of the seed device and 16 clients each: if nothing disturbs them, the
// retests must cost neither throughput nor p99.
func TestProofRetestsCostLittle(t *testing.T) {
	repository := servertest.Repository(t, map[string]string{"seed_device": servertest.SeedConfig(1, "dynamic_batching { }", servertest.SeedSpeed)})
	start := func() *servertest.Server {
		s := servertest.Start(t, repository)
		s.AwaitMeasured(t, "seed_device")
		return s
	}
	with := start()
	withoutRetests(t)
	without := start()
	d := disturbed{model: "seed_device", clients: 16, request: servertest.SeedRequest("seed_device", 2)}
	samples := servertest.Samples(t, "retests")
	one := servertest.StrictOr(30*time.Second, time.Second)
	const throughput, p99 = "throughput, times that without retests", "p99, times that without retests"
	for round := len(samples.Of(p99)); round < servertest.StrictOr(20, 1); round++ {
		var got [2]servertest.Tally
		for side := range measure.Turn(round, 2) {
			got[side] = d.crowd(t, []*servertest.Server{without, with}[side], servertest.For(one))
		}
		servertest.Add(t, samples, throughput, got[1].Steady()/got[0].Steady())
		servertest.Add(t, samples, p99, got[1].P99().Seconds()/got[0].P99().Seconds())
	}
	servertest.Judge(t, "retests: "+throughput, measure.AtLeast(0.995), samples.Of(throughput))
	servertest.Judge(t, "retests: "+p99, measure.AtMost(1.005), samples.Of(p99))
}

// withoutRetests builds a server in which no retest is ever due, and makes it the one that t starts.
func withoutRetests(t *testing.T) {
	t.Helper()
	const source, first = "internal/batching/automatic/retest.go", "retestFirst = 16 "
	root, err := filepath.Abs(servertest.Root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, source))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), first) != 1 {
		t.Fatalf("%s has no %q", source, first)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "retest.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, source): changed}})
	if err != nil {
		t.Fatal(err)
	}
	never := strings.Replace(string(text), first, "retestFirst = 1 << 40 ", 1)
	for file, text := range map[string]string{changed: never, overlay: string(replace)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	servertest.UseBinary(t, "shoal-without-retests", "-overlay", overlay)
}
