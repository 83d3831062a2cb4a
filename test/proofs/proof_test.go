//go:build e2e

package proofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
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

// Proofs are tests whose names say so. Like all tests here they are short, and ask
// for what holds on any machine; if they are strict they take their time, run
// models of real size, and hold the figures that are promised.

// lookUp asks the model fail_if for elements of its table, one for each row.
func lookUp(model string, index ...int64) *client.Request {
	return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "index", Type: tensor.Int64, Shape: []int64{int64(len(index)), 1}, Data: servertest.Int64s(index...)}}}
}

// TestProofABadRowFailsAlone has 64 clients share batches of a model that fails if
// a row is bad. One of them sends nothing else. The others must get what they get
// alone, to the last bit, and not much later than without it.
func TestProofABadRowFailsAlone(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"rows": {File: onnxtest.Model("fail_if"), Config: `
		max_batch_size: 64
		dynamic_batching { max_queue_delay_microseconds: 500 }
	`}}))
	const clients, poisoner, outside = 64, 13, 99
	requests := make([]*client.Request, clients)
	alone := make([][]byte, clients)
	c := s.Client()
	for n := range requests {
		requests[n] = lookUp("rows", int64(n%16-8), int64(n%5))
		resp, err := c.Infer(t.Context(), requests[n])
		if err != nil {
			t.Fatal(err)
		}
		alone[n] = resp.Outputs[0].Data
	}
	check := func(n int, resp *client.Response, err error) error {
		if err == nil && !bytes.Equal(resp.Outputs[0].Data, alone[n]) {
			return fmt.Errorf("the answer is %x, and alone it was %x", resp.Outputs[0].Data, alone[n])
		}
		return err
	}
	one := servertest.StrictOr(9*time.Second, time.Second)
	without := servertest.Crowd{Clients: clients, Request: func(n int) *client.Request { return requests[n] }, Check: check, During: servertest.For(one)}
	poisoned := without
	poisoned.Request = func(n int) *client.Request {
		if n == poisoner {
			return lookUp("rows", 0, outside)
		}
		return requests[n]
	}
	poisoned.Check = func(n int, resp *client.Response, err error) error {
		if n != poisoner {
			return check(n, resp, err)
		}
		if err == nil {
			return fmt.Errorf("a row outside of the table was answered")
		}
		if !errors.Is(err, client.Invalid) {
			return fmt.Errorf("a row outside of the table: %w", err)
		}
		return nil
	}
	servertest.Hold(t, "99th percentile of the others' latency, times that without the bad row", 0, servertest.StrictOr(1.5, 5.0), func() float64 {
		before, during := without.Run(t, s), poisoned.Run(t, s)
		t.Logf("%.0f and %.0f answers a second, %d times a bad row; p99 %v and %v", before.PerSecond(), during.PerSecond(), during.Client[poisoner],
			before.P99(), during.P99())
		if during.Client[poisoner] == 0 || slices.Min(during.Client) == 0 {
			t.Errorf("a client was not answered: %v", during.Client)
		}
		return float64(during.P99()) / float64(before.P99())
	})
}

// TestProofABatchThatNobodyWaitsForIsStopped has four clients share a batch on the
// only instance, lets them leave while it runs, and asks for something short. The
// time until that is answered, less what was computed for it, is the time the
// instance was not free.
func TestProofABatchThatNobodyWaitsForIsStopped(t *testing.T) {
	onnxtest.Library(t)
	file := onnxtest.Model("spin")
	first, long, short := servertest.Spin("m", 50_000), servertest.Spin("m", 1e9), servertest.Spin("m", 1)
	if *servertest.Strict {
		file = servertest.RealModel(t, "resnet50")
		first, long, short = picture("m", 1), picture("m", 2), picture("m", 1)
	}
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {File: file, Config: `
		max_batch_size: 8
		instance_group [ { count: 1 } ]
		dynamic_batching { max_queue_delay_microseconds: 0 }
	`}}))
	c := s.Client()
	asks := func(req *client.Request) time.Duration {
		began := time.Now()
		if _, err := c.Infer(t.Context(), req); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	asks(short) // the first is slow
	servertest.Hold(t, "milliseconds until the instance is free", 0, servertest.StrictOr(50.0, 150), func() float64 {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var before, clients sync.WaitGroup
		before.Go(func() { asks(first) }) // the four wait for it, and then run together
		time.Sleep(20 * time.Millisecond)
		for range 4 {
			clients.Go(func() {
				if _, err := c.Infer(ctx, long); !errors.Is(err, client.Canceled) {
					t.Errorf("a client that left before its batch could end: %v", err)
				}
			})
		}
		before.Wait()
		time.Sleep(100 * time.Millisecond) // it runs by now, and for long
		computed := s.Batches("m")[1]
		leave()
		took := asks(short)
		clients.Wait()
		after := s.Batches("m")[1]
		if after.Count != computed.Count+1 {
			t.Errorf("%d batches of one row, and then %d, want one more", computed.Count, after.Count)
		}
		return float64(took-(after.Took-computed.Took)) / float64(time.Millisecond)
	})
}

// picture asks ResNet-50 for some black pictures.
func picture(model string, rows int64) *client.Request {
	return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "data", Type: tensor.FP32, Shape: []int64{rows, 3, 224, 224}, Data: make([]byte, rows*3*224*224*4)}}}
}

// TestProofManyModelsInOneServer loads hundreds of small models, and asks what they
// cost while nobody wants anything of them.
func TestProofManyModelsInOneServer(t *testing.T) {
	onnxtest.Library(t)
	models := map[string]servertest.ONNXModel{}
	for n := range servertest.StrictOr(500, 50) {
		models[fmt.Sprintf("m%03d", n)] = servertest.ONNXModel{File: onnxtest.Model("mlp")}
	}
	repository := servertest.ONNXRepository(t, models)
	began := time.Now()
	s := servertest.Start(t, repository) // which does not wait longer than the minute that is promised
	if got, body := s.Get("/v2/health/ready"); got != 200 {
		t.Fatalf("not ready: %d %s", got, body)
	}
	ready := time.Since(began)
	c := s.Client()
	for name := range models {
		_, err := c.Infer(t.Context(), &client.Request{Model: name, Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 32*4)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for strings.Count(s.Log(), `msg="model measured"`) < len(models) {
		time.Sleep(10 * time.Millisecond) // until nothing is left to find out; the test's own timeout ends it
	}
	at := s.Usage()
	t.Logf("%d models: ready after %v, %d MB resident, %d threads", len(models), ready.Round(time.Millisecond), at.Memory>>20, at.Threads)
	idle := servertest.StrictOr(10*time.Second, 2*time.Second)
	servertest.Hold(t, "share of a core that is used without requests", 0, servertest.StrictOr(0.01, 0.03), func() float64 {
		before := s.Usage()
		time.Sleep(idle)
		return (s.Usage().CPU - before.CPU).Seconds() / idle.Seconds()
	})
}

// TestProofTheNetworkDoesNotWaitForComputing asks whether the server lives, again and
// again, while all cores compute.
func TestProofTheNetworkDoesNotWaitForComputing(t *testing.T) {
	onnxtest.Library(t)
	model, request := onnxtest.Model("mlp"), servertest.Vector
	if *servertest.Strict {
		model, request = servertest.RealModel(t, "text_recognition"), servertest.BlackLine
	}
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"busy": {File: model}}))
	ping := servertest.Crowd{Clients: 16, Sharing: 6, Request: func(int) *client.Request { return request("busy") }}
	servertest.Hold(t, "99th percentile of the time that a ping takes, ms", 0, servertest.StrictOr(1, 50.0), func() float64 {
		var pings []time.Duration
		ping.During = func() {
			for began := time.Now(); time.Since(began) < servertest.StrictOr(2*time.Second, 300*time.Millisecond); time.Sleep(2 * time.Millisecond) {
				sent := time.Now()
				if code, _ := s.Get("/v2/health/live"); code != http.StatusOK {
					t.Errorf("answered with %d", code)
				}
				pings = append(pings, time.Since(sent))
			}
		}
		ping.Run(t, s)
		slices.Sort(pings)
		t.Logf("of %d pings, half took %v at the most, and 99 %% %v", len(pings), pings[len(pings)/2], pings[len(pings)*99/100])
		return pings[len(pings)*99/100].Seconds() * 1000
	})
}
