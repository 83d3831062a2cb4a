//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/bare"
)

// Proofs are tests whose names say so. Like all tests here they are short, and ask
// for what holds on any machine; if they are strict they take their time, run
// models of real size, and hold the figures that are promised.

// modelsDir is what `make models` fills.
const modelsDir = root + "/models"

// realModel returns the path of a model of real size, for a proof that is strict.
func realModel(t testing.TB, name string) string {
	t.Helper()
	file := bare.File(modelsDir, name)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: run `make models`", err)
	}
	return file
}

func int64s(values ...int64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// lookUp asks the model fail_if for elements of its table, one for each row.
func lookUp(model string, index ...int64) *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName: model,
		Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "index", Datatype: "INT64", Shape: []int64{int64(len(index)), 1}},
		},
		RawInputContents: [][]byte{int64s(index...)},
	}
}

// TestProofABadRowFailsAlone has 64 clients share batches of a model that fails if
// a row is bad. One of them sends nothing else. The others must get what they get
// alone, to the last bit, and not much later than without it.
func TestProofABadRowFailsAlone(t *testing.T) {
	onnxtest.Library(t)
	s := start(t, onnxRepository(t, map[string]onnxModel{"rows": {onnxtest.Model("fail_if"), `
		max_batch_size: 64
		dynamic_batching { max_queue_delay_microseconds: 500 }
	`}}))
	const clients, poisoner, outside = 64, 13, 99
	requests := make([]*kservepb.ModelInferRequest, clients)
	alone := make([][]byte, clients)
	c := s.client()
	for n := range requests {
		requests[n] = lookUp("rows", int64(n%16-8), int64(n%5))
		resp, err := c.ModelInfer(t.Context(), requests[n])
		if err != nil {
			t.Fatal(err)
		}
		alone[n] = resp.RawOutputContents[0]
	}
	check := func(n int, resp *kservepb.ModelInferResponse, err error) error {
		if err == nil && !bytes.Equal(resp.RawOutputContents[0], alone[n]) {
			return fmt.Errorf("the answer is %x, and alone it was %x", resp.RawOutputContents[0], alone[n])
		}
		return err
	}
	one := choose(9*time.Second, time.Second)
	without := crowd{clients: clients, request: func(n int) *kservepb.ModelInferRequest { return requests[n] }, check: check, during: lasting(one)}
	poisoned := without
	poisoned.request = func(n int) *kservepb.ModelInferRequest {
		if n == poisoner {
			return lookUp("rows", 0, outside)
		}
		return requests[n]
	}
	poisoned.check = func(n int, resp *kservepb.ModelInferResponse, err error) error {
		if n != poisoner {
			return check(n, resp, err)
		}
		if err == nil {
			return fmt.Errorf("a row outside of the table was answered")
		}
		if status.Code(err) != codes.InvalidArgument {
			return fmt.Errorf("a row outside of the table: %w", err)
		}
		return nil
	}
	// How much later is asked only if the test is strict.
	hold(t, "99th percentile of the others' latency, times that without the bad row", 0, choose(1.5, math.Inf(1)), func() float64 {
		before, during := without.run(t, s), poisoned.run(t, s)
		t.Logf("%.0f and %.0f answers a second, %d times a bad row; p99 %v and %v", before.perSecond(), during.perSecond(), during.client[poisoner],
			before.p99(), during.p99())
		if during.client[poisoner] == 0 || slices.Min(during.client) == 0 {
			t.Errorf("a client was not answered: %v", during.client)
		}
		return float64(during.p99()) / float64(before.p99())
	})
}

// TestProofABatchThatNobodyWaitsForIsStopped has four clients share a batch on the
// only instance, lets them leave while it runs, and asks for something short. The
// time until that is answered, less what was computed for it, is the time the
// instance was not free.
func TestProofABatchThatNobodyWaitsForIsStopped(t *testing.T) {
	onnxtest.Library(t)
	file := onnxtest.Model("spin")
	first, long, short := spin("m", 50_000), spin("m", 1e9), spin("m", 1)
	if *strict {
		file = realModel(t, "resnet50")
		first, long, short = picture("m", 1), picture("m", 2), picture("m", 1)
	}
	s := start(t, onnxRepository(t, map[string]onnxModel{"m": {file, `
		max_batch_size: 8
		instance_group [ { count: 1 } ]
		dynamic_batching { max_queue_delay_microseconds: 0 }
	`}}))
	c := s.client()
	asks := func(req *kservepb.ModelInferRequest) time.Duration {
		began := time.Now()
		if _, err := c.ModelInfer(t.Context(), req); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	asks(short) // the first is slow
	hold(t, "milliseconds until the instance is free", 0, choose(50.0, 2000), func() float64 {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var before, clients sync.WaitGroup
		before.Go(func() { asks(first) }) // the four wait for it, and then run together
		time.Sleep(20 * time.Millisecond)
		for range 4 {
			clients.Go(func() {
				if _, err := c.ModelInfer(ctx, long); status.Code(err) != codes.Canceled {
					t.Errorf("a client that left before its batch could end: %v", err)
				}
			})
		}
		before.Wait()
		time.Sleep(100 * time.Millisecond) // it runs by now, and for long
		computed := s.batches("m")[1]
		leave()
		took := asks(short)
		clients.Wait()
		after := s.batches("m")[1]
		if after.count != computed.count+1 {
			t.Errorf("%d batches of one row, and then %d, want one more", computed.count, after.count)
		}
		return float64(took-(after.took-computed.took)) / float64(time.Millisecond)
	})
}

// spin asks for steps of the model that takes as many as it is told.
func spin(model string, steps int64) *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName: model,
		Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "FP32", Shape: []int64{1, 64}}, {Name: "steps", Datatype: "INT64", Shape: []int64{1, 1}},
		},
		RawInputContents: [][]byte{make([]byte, 64*4), int64s(steps)},
	}
}

// picture asks ResNet-50 for some black pictures.
func picture(model string, rows int64) *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*kservepb.ModelInferRequest_InferInputTensor{{Name: "data", Datatype: "FP32", Shape: []int64{rows, 3, 224, 224}}},
		RawInputContents: [][]byte{make([]byte, rows*3*224*224*4)},
	}
}

// TestProofManyModelsInOneServer loads hundreds of small models, and asks what they
// cost while nobody wants anything of them.
func TestProofManyModelsInOneServer(t *testing.T) {
	onnxtest.Library(t)
	models := map[string]onnxModel{}
	for n := range choose(500, 50) {
		models[fmt.Sprintf("m%03d", n)] = onnxModel{file: onnxtest.Model("mlp")}
	}
	repository := onnxRepository(t, models)
	began := time.Now()
	s := start(t, repository) // which does not wait longer than the minute that is promised
	if got, body := s.get("/v2/health/ready"); got != 200 {
		t.Fatalf("not ready: %d %s", got, body)
	}
	ready := time.Since(began)
	c := s.client()
	for name := range models {
		_, err := c.ModelInfer(t.Context(), &kservepb.ModelInferRequest{
			ModelName:        name,
			Inputs:           []*kservepb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 32}}},
			RawInputContents: [][]byte{make([]byte, 32*4)},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for strings.Count(s.logged(), `msg="model measured"`) < len(models) {
		time.Sleep(10 * time.Millisecond) // until nothing is left to find out; the test's own timeout ends it
	}
	at := s.usage()
	t.Logf("%d models: ready after %v, %d MB resident, %d threads", len(models), ready.Round(time.Millisecond), at.memory>>20, at.threads)
	idle := choose(10*time.Second, 2*time.Second)
	hold(t, "share of a core that is used without requests", 0, choose(0.01, 0.1), func() float64 {
		before := s.usage()
		time.Sleep(idle)
		return (s.usage().cpu - before.cpu).Seconds() / idle.Seconds()
	})
}

// TestProofTheNetworkDoesNotWaitForComputing asks whether the server lives, again and
// again, while all cores compute.
func TestProofTheNetworkDoesNotWaitForComputing(t *testing.T) {
	onnxtest.Library(t)
	model, request := onnxtest.Model("mlp"), vector
	if *strict {
		model, request = realModel(t, "text_recognition"), black
	}
	s := start(t, onnxRepository(t, map[string]onnxModel{"busy": {file: model}}))
	ping := crowd{clients: 16, sharing: 6, request: func(int) *kservepb.ModelInferRequest { return request("busy") }}
	hold(t, "99th percentile of the time that a ping takes, ms", 0, choose(1, math.Inf(1)), func() float64 {
		var pings []time.Duration
		ping.during = func() {
			for began := time.Now(); time.Since(began) < choose(2*time.Second, 300*time.Millisecond); time.Sleep(2 * time.Millisecond) {
				sent := time.Now()
				if code, _ := s.get("/v2/health/live"); code != http.StatusOK {
					t.Errorf("answered with %d", code)
				}
				pings = append(pings, time.Since(sent))
			}
		}
		ping.run(t, s)
		slices.Sort(pings)
		t.Logf("of %d pings, half took %v at the most, and 99 %% %v", len(pings), pings[len(pings)/2], pings[len(pings)*99/100])
		return pings[len(pings)*99/100].Seconds() * 1000
	})
}
