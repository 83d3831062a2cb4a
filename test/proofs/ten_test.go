//go:build e2e && proofs

package proofs

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/bare"
	"github.com/shoal-serving/shoal/test/servertest"
)

// tenModels are the models that share a server, and how many clients each has: few
// who want little, and many who want much.
var tenModels = []struct {
	name, model string
	clients     int
}{
	{"words", "minilm", 2},
	{"sentences", "minilm", 8},
	{"signs", "text_recognition", 1},
	{"letters", "text_recognition_2", 4},
	{"files", "magika", 2},
	{"uploads", "magika", 6},
	{"wide", "wide_mlp", 1},
	{"wider", "wide_mlp", 4},
	{"widest", "wide_mlp", 16},
	{"lines", "ppocrv4_rec", 1},
}

// TestProofTenModelsShareTheCores serves ten models to clients who all ask at once:
// as bare files, and with the same counts and sizes for all by hand. What all clients
// get together is held against the best of those. No model may get much less of its
// share than the others: the part of what its clients get while nobody else asks.
func TestProofTenModelsShareTheCores(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	requests := map[string]*client.Request{}
	files := map[string]string{}
	for _, m := range tenModels {
		b := bare.Open(r, servertest.ModelsDir, m.model)
		files[m.name] = servertest.RealModel(t, m.model)
		in, err := b.Inputs(1, 1)
		b.Close()
		if err != nil {
			t.Fatal(err)
		}
		requests[m.name] = &client.Request{Model: m.name, Inputs: in}
	}
	serve := func(config string, flags ...string) *servertest.Server {
		models := map[string]servertest.ONNXModel{}
		for name, file := range files {
			models[name] = servertest.ONNXModel{File: file, Config: config}
		}
		return servertest.Start(t, servertest.ONNXRepository(t, models), flags...)
	}
	// asks has the clients of some models ask, and returns answers in a second by model.
	asks := func(s *servertest.Server, during time.Duration, names ...string) map[string]float64 {
		var who []string // by client
		for _, m := range tenModels {
			if slices.Contains(names, m.name) {
				who = append(who, slices.Repeat([]string{m.name}, m.clients)...)
			}
		}
		c := servertest.Crowd{
			Clients: len(who), Sharing: 4, Warm: servertest.StrictOr(time.Second, 200*time.Millisecond), During: servertest.For(during),
			Request: func(n int) *client.Request { return requests[who[n]] },
		}
		got := c.Run(t, s)
		rates := map[string]float64{}
		for n, name := range who {
			rates[name] += float64(got.Client[n]) / got.Took.Seconds()
		}
		return rates
	}
	var all []string
	for _, m := range tenModels {
		all = append(all, m.name)
	}
	total := func(s *servertest.Server, during time.Duration) float64 {
		sum := 0.0
		for _, rate := range asks(s, during, all...) {
			sum += rate
		}
		return sum
	}

	var ways []byHand
	for _, on := range [][2]int{{1, 1}, {2, 1}, {1, 2}} {
		for _, rows := range []int{1, 4, 16} {
			ways = append(ways, byHand{rows, 0, on[0], on[1]})
		}
	}
	if !*servertest.Strict {
		ways = ways[1:2]
	}
	one := servertest.StrictOr(4*time.Second, 2*time.Second)
	screened := map[byHand]float64{}
	for _, way := range ways {
		s := serve(way.config(), "--batching=triton")
		screened[way] = total(s, one/2)
		t.Logf("%v: %.0f answers a second", way, screened[way])
		s.Kill()
	}
	best := slices.MaxFunc(slices.Collect(maps.Keys(screened)), func(a, b byHand) int { return cmp.Compare(screened[a], screened[b]) })

	hand, untouched := serve(best.config(), "--batching=triton"), serve("")
	for _, name := range all {
		untouched.AwaitMeasured(t, name)
	}
	t.Logf("the best by hand is %v", best)
	servertest.Hold(t, "answers of all models, share of the best by hand", servertest.StrictOr(1, 0.5)*0.95, 100, func() float64 {
		of := total(hand, one)
		return total(untouched, one) / of
	})

	shares := map[string]float64{}
	together := asks(untouched, 2*one, all...)
	var each []float64
	for _, name := range all {
		alone := asks(untouched, one/4, name)[name]
		shares[name] = together[name] / max(alone, 1e-9)
		each = append(each, shares[name])
		t.Logf("%s: %.1f answers a second, %.2f of the %.1f that it gives while nobody else asks", name, together[name], shares[name], alone)
	}
	mid, _, _ := bench.Median(each)
	for _, name := range all {
		if shares[name] < servertest.StrictOr(0.25, 0.05)*mid {
			t.Errorf("%s is starved: it gets %.3f of what it gets alone, and half of the others %.3f or more", name, shares[name], mid)
		}
	}
}
