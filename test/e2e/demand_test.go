//go:build e2e && linux

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

var (
	thrashFit = flag.Int("thrash-fit", 20, "how many models the memory is for, of ten times as many that requests ask for")
	thrashFor = flag.Duration("thrash", 5*time.Second, "how long they do")
)

// slowToLoad is a simulated model that takes half a second to load: it is warmed up so long.
func slowToLoad() string {
	return servertest.Config(500*time.Millisecond, "1", "") + `
model_warmup [ { name: "slow" batch_size: 1 inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]`
}

// TestOnAStreamALoadedModelDoesNotWaitForAColdOne sends a request for a cold model and then
// some for a loaded one on the same stream. Their answers come before that of the first.
func TestOnAStreamALoadedModelDoesNotWaitForAColdOne(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"cold": slowToLoad(), "warm": servertest.Config(time.Millisecond, "1", "")}),
		"--model-control-mode=demand", "--calibration-dir=")
	c := s.Client()
	if err := servertest.Ask(t.Context(), c, "warm", 1); err != nil {
		t.Fatal(err)
	}
	stream, err := c.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, model := range []string{"cold", "warm", "warm", "warm"} {
		if err := stream.Send(servertest.SmallRequest(model, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, resp.Model)
	}
	if !slices.Equal(order, []string{"warm", "warm", "warm", "cold"}) {
		t.Errorf("answers came in the order %v", order)
	}
}

// TestAColdModelThatCannotBeInTimeIsRefusedWithRetryAfter asks for a model whose load time
// is known with a deadline that is shorter. The refusal takes less than 5 ms: the fastest of
// ten, because any of them may wait for a core.
func TestAColdModelThatCannotBeInTimeIsRefusedWithRetryAfter(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"cold": slowToLoad()}), "--model-control-mode=demand", "--calibration-dir=")
	c := s.Client()
	if err := servertest.Ask(t.Context(), c, "cold", 1); err != nil {
		t.Fatal(err)
	}
	s.Unload("cold")
	best := time.Hour
	for range 10 {
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err := servertest.Ask(short, c, "cold", 1)
		took := time.Since(began)
		if err == nil {
			cancel()
			break // the machine was so slow that it is loaded by now
		}
		late := short.Err() != nil // it waited for a core
		cancel()
		if late {
			continue
		}
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != client.Unavailable || e.RetryAfter <= 0 {
			t.Errorf("the request got %v after %v", err, took)
		}
		best = min(best, took)
	}
	t.Logf("refused after %v", best)
	if best > 5*time.Millisecond {
		t.Errorf("refused after %v at best, want less than 5 ms", best)
	}
}

// TestThrashingModelsLeaveRoomForTheBest asks by Zipf's law for ten times as many models as fit
// into memory. Nearly as many requests succeed as if clients asked for the models that fit only.
func TestThrashingModelsLeaveRoomForTheBest(t *testing.T) {
	const columns, size = 1448, 8 << 20
	dir := t.TempDir()
	onnxtest.Dense{Rows: columns, Columns: columns}.Write(t, dir)
	repository := map[string]servertest.ONNXModel{}
	name := func(i int) string { return fmt.Sprintf("m%04d", i) }
	for i := range 10 * *thrashFit {
		repository[name(i)] = servertest.ONNXModel{File: filepath.Join(dir, "model.onnx")}
	}
	models, data := servertest.ONNXRepository(t, repository), make([]byte, 4*columns)
	goodput := func(asked func(i int) bool) (good int, outcomes map[string]int) {
		s := servertest.Start(t, models, "--model-control-mode=demand", fmt.Sprintf("--model-memory=%d", *thrashFit*size*21/20), "--calibration-dir=")
		defer s.Terminate()
		c, next := s.Client(), zipf(10**thrashFit)
		var all sync.WaitGroup
		var mu sync.Mutex // guards outcomes
		outcomes = map[string]int{}
		// Both runs have the same requests at the same times, however busy the machine is.
		// The first half counts for nothing: the server learns which models are asked for most.
		requests := int(100 * thrashFor.Seconds())
		for k, began := 0, time.Now(); k < requests; k++ {
			i := next()
			if !asked(i) {
				continue
			}
			time.Sleep(time.Until(began.Add(time.Duration(k) * time.Second / 100)))
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, err := c.Infer(ctx, &client.Request{Model: name(i), Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, columns}, Data: data}}})
				mu.Lock()
				defer mu.Unlock()
				if outcome := outcomeOf(err); k >= requests/2 {
					outcomes[outcome]++
				}
			})
		}
		all.Wait()
		t.Logf("%v; %s", outcomes, demandFigures(t, s))
		return outcomes["200"], outcomes
	}
	best, _ := goodput(func(i int) bool { return i < *thrashFit })
	all, outcomes := goodput(func(int) bool { return true })
	t.Logf("%d models on memory for %d: %.2f of the goodput of the best %d", 10**thrashFit, *thrashFit, float64(all)/float64(best), *thrashFit)
	// A few seconds are too short to learn rates in.
	want := 0.3
	if *servertest.Strict {
		want = 0.9
	}
	if best == 0 || float64(all) < want*float64(best) {
		t.Errorf("%d requests succeeded, and %d if only the best %d are asked for", all, best, *thrashFit)
	}
	if outcomes["503"] == 0 {
		t.Error("no request was refused, so that this test shows nothing")
	}
}

// outcomeOf returns 200, 503 for a refusal with a time to retry, or the text of the error.
func outcomeOf(err error) string {
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
		return "200"
	case ok && e.Code == client.Unavailable && e.RetryAfter > 0:
		return "503"
	}
	return err.Error()
}

// zipf returns a function that draws numbers below n, of which i has the weight 1/(i+1).
func zipf(n int) func() int {
	random, sums := rand.New(rand.NewPCG(1, 2)), []float64{0}
	for i := range n {
		sums = append(sums, sums[i]+1/float64(i+1))
	}
	return func() int {
		at, _ := slices.BinarySearch(sums, random.Float64()*sums[n])
		return max(0, at-1)
	}
}

// demandFigures returns the metrics of mode demand in one line.
func demandFigures(t *testing.T, s *servertest.Server) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(s.MetricsPage()) {
		if strings.HasPrefix(line, "shoal_demand_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, " ")
}
