//go:build e2e

package proofs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

var overloadLasts = flag.Duration("overload-lasts", 10*time.Second, "how long the slow device is flooded at each rate, in each round")

// A flood sends requests at a rate, whether or not they are answered.
type flood struct {
	rate    float64 // requests a second, at random distances
	request *client.Request
	within  time.Duration // that an answer is in time
	warm    time.Duration // at the begin, of which nothing is counted
	lasts   time.Duration // after that
}

// A toll is what came of a flood.
type toll struct {
	sent, inTime, late int
	refused            []time.Duration // how long after they were sent those were told, ascending
	without            int             // of those, how many were not told when to come back
	lasts              time.Duration
}

// perSecond returns how many were answered in time.
func (t toll) perSecond() float64 { return float64(t.inTime) / t.lasts.Seconds() }

func (t toll) lateShare() float64 { return float64(t.late) / float64(max(1, t.inTime+t.late)) }

// refusedWithin returns how long it took to tell those who were told soonest, of
// which there is such a share. If there are none, it is as if they never were.
func (t toll) refusedWithin(share float64) time.Duration {
	if len(t.refused) == 0 {
		return math.MaxInt64
	}
	return t.refused[min(len(t.refused)-1, int(share*float64(len(t.refused))))]
}

func (t toll) String() string {
	return fmt.Sprintf("%.1f a second in time, %.2f %% late, %.0f %% refused, half of them within %v, 99 %% within %v, all within %v",
		t.perSecond(), 100*t.lateShare(), 100*float64(len(t.refused))/float64(max(1, t.sent)),
		t.refusedWithin(0.5).Round(10*time.Microsecond), t.refusedWithin(0.99).Round(10*time.Microsecond), t.refusedWithin(1).Round(10*time.Microsecond))
}

// run floods the server. Who has no answer when it is over is not waited for, and
// is late.
func (f flood) run(t *testing.T, s *servertest.Server) toll {
	t.Helper()
	// Not a timeout, which the server would be told of.
	ctx, abandon := context.WithCancel(t.Context())
	defer time.AfterFunc(f.warm+f.lasts+f.within, abandon).Stop()
	var clients []*client.Client
	for range 8 {
		clients = append(clients, s.Client())
	}
	var mu sync.Mutex // guards the following
	got := toll{lasts: f.lasts}
	var running sync.WaitGroup
	began := time.Now()
	n := 0
	for at := range bench.Poisson(f.rate, 1) {
		if at > f.warm+f.lasts {
			break
		}
		time.Sleep(at - time.Since(began))
		i := n
		n++
		running.Go(func() {
			sent := time.Now()
			_, err := clients[i%len(clients)].Infer(ctx, f.request)
			took := time.Since(sent)
			if at < f.warm {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got.sent++
			switch {
			case errors.Is(err, client.Overloaded):
				got.refused = append(got.refused, took)
				if e, ok := errors.AsType[*client.Error](err); !ok || e.RetryAfter == 0 {
					got.without++
				}
			case err != nil && ctx.Err() == nil:
				t.Errorf("request %d: %v", i, err)
			case err == nil && time.Since(began)-at <= f.within: // also what it was sent too late counts
				got.inTime++
			default:
				got.late++
			}
		})
	}
	running.Wait()
	slices.Sort(got.refused)
	return got
}

// TestProofOverloadCostsNoGoodput floods models with more than they can do, with an
// objective and without one.
func TestProofOverloadCostsNoGoodput(t *testing.T) {
	t.Run("seed device", func(t *testing.T) {
		// Where other work goes on, the device is slow, so that it and nothing else has
		// too much to do.
		slower := servertest.StrictOr(1, 20)
		within := time.Duration(slower) * 20 * time.Millisecond
		settings := func(more string) string {
			// The inputs are smaller than the seed device's, for the same reason.
			return fmt.Sprintf(`
				backend: "simulated"
				max_batch_size: 8
				input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
				output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
				instance_group [ { count: 1 } ]
				dynamic_batching { max_queue_delay_microseconds: 0 }
				parameters { key: "fixed_us" value { string_value: "%g" } }
				parameters { key: "per_row_us" value { string_value: "%g" } }
			`, 1921*float64(slower), 59.3*float64(slower)) + more
		}
		s := servertest.Start(t, servertest.Repository(t, map[string]string{"plain": settings(""), "bounded": settings(objective(within))}))
		request := func(model string) *client.Request {
			return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{2, 16}, Data: make([]byte, 2*16*4)}}}
		}
		holdUnderOverload(t, s, "seed device", request, within)
	})
	t.Run("ResNet-50", func(t *testing.T) {
		if !*servertest.Strict {
			t.Skip("it takes its time")
		}
		onnxtest.Library(t)
		file := servertest.RealModel(t, "resnet50")
		settings := func(more string) string {
			return `
				max_batch_size: 8
				instance_group [ { count: 1 } ]
				dynamic_batching { max_queue_delay_microseconds: 0 }
			` + more
		}
		// A batch of 8 takes about half a second here; a second would be two of them
		// with nothing to spare.
		const within = 3 * time.Second
		s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"plain": {File: file, Config: settings("")}, "bounded": {File: file, Config: settings(objective(within))}}))
		for _, model := range []string{"plain", "bounded"} {
			s.AwaitMeasured(t, model)
		}
		holdUnderOverload(t, s, "ResNet-50", func(model string) *client.Request { return picture(model, 1) }, within)
	})
}

// TestProofOverloadOnASlowDevice floods a device that is so slow that the clients and the
// server take a small part of the cores, so that the figures are those of admission alone.
func TestProofOverloadOnASlowDevice(t *testing.T) {
	if !*servertest.Strict {
		t.Skip("it takes its time")
	}
	const within = 400 * time.Millisecond
	s := startSlowDevice(t, within)
	request := slowDeviceRequest
	c := servertest.Crowd{Clients: 16, Sharing: 2, Request: func(int) *client.Request { return request("plain") }, During: servertest.For(3 * *overloadLasts)}
	capacity := c.Run(t, s).PerSecond()
	t.Logf("it can do %.1f requests a second", capacity)
	for _, times := range []float64{2, 4, 10} {
		var inTime, refused []float64
		first := s.Resident()
		for range servertest.Rounds() {
			before, used := s.Resident(), s.Usage().CPU
			f := flood{rate: times * capacity, within: within, warm: 2 * within, lasts: *overloadLasts, request: request("bounded")}
			got := f.run(t, s)
			t.Logf("at %g times that: %.1f %% of it, %v; memory %d KB before and %d KB after, server %.2f cores", times,
				100*got.perSecond()/capacity, got, before, s.Resident(), (s.Usage().CPU-used).Seconds()/(f.warm+f.lasts).Seconds())
			inTime = append(inTime, got.perSecond()/capacity)
			refused = append(refused, got.refusedWithin(0.99).Seconds()*1e3)
		}
		gate := fmt.Sprintf("overload: slow device at %g times its capacity, ", times)
		servertest.Judge(t, gate+"share in time", measure.AtLeast(0.97), inTime)
		servertest.Judge(t, gate+"p99 until refused, ms", measure.AtMost(5), refused)
		if grown := s.Resident() - first; grown > 16<<10 {
			t.Errorf("at %g times that, %d rounds have taken %d KB of memory", times, servertest.Rounds(), grown)
		}
	}
}

// TestProofOverloadOfATextRecogniser floods a model that takes all cores, which the clients need,
// too, with twice what it can do. Its configuration has an objective and nothing else.
func TestProofOverloadOfATextRecogniser(t *testing.T) {
	if !*servertest.Strict {
		t.Skip("it takes its time")
	}
	onnxtest.Library(t)
	const times, within = 2, 500 * time.Millisecond
	file := servertest.RealModel(t, "text_recognition")
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{
		"plain": {File: file, Config: "max_batch_size: 8 dynamic_batching { }"}, "bounded": {File: file, Config: "max_batch_size: 8 dynamic_batching { } " + objective(within)},
	}))
	for _, model := range []string{"plain", "bounded"} {
		s.AwaitMeasured(t, model)
	}
	var inTime, refused []float64
	for range servertest.Rounds() {
		c := servertest.Crowd{Clients: 16, Sharing: 2, Request: func(int) *client.Request { return servertest.BlackLine("plain") }, During: servertest.For(*overloadLasts / 2)}
		capacity := c.Run(t, s).PerSecond()
		f := flood{rate: times * capacity, within: within, warm: 2 * within, lasts: *overloadLasts, request: servertest.BlackLine("bounded")}
		got := f.run(t, s)
		t.Logf("of %.1f requests a second %.1f %%, %v", capacity, 100*got.perSecond()/capacity, got)
		inTime = append(inTime, got.perSecond()/capacity)
		refused = append(refused, got.refusedWithin(0.99).Seconds()*1e3)
	}
	gate := fmt.Sprintf("overload: text recogniser at %d times its capacity, ", times)
	servertest.Judge(t, gate+"share in time", measure.AtLeast(0.95), inTime)
	servertest.Judge(t, gate+"p99 until refused, ms", measure.Nothing(), refused)
}

// startSlowDevice runs a device that is slow as the models plain, and bounded, which has an
// objective. A batch takes 38 ms and a millisecond for each row.
func startSlowDevice(t *testing.T, within time.Duration) *servertest.Server {
	t.Helper()
	settings := func(more string) string {
		return `
			backend: "simulated"
			max_batch_size: 8
			input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
			output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
			instance_group [ { count: 1 } ]
			dynamic_batching { max_queue_delay_microseconds: 0 }
			parameters { key: "fixed_us" value { string_value: "38420" } }
			parameters { key: "per_row_us" value { string_value: "1186" } }
		` + more
	}
	return servertest.Start(t, servertest.Repository(t, map[string]string{"plain": settings(""), "bounded": settings(objective(within))}))
}

// slowDeviceRequest has two rows.
func slowDeviceRequest(model string) *client.Request {
	return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{2, 16}, Data: make([]byte, 2*16*4)}}}
}

func objective(within time.Duration) string {
	return fmt.Sprintf("parameters { key: %q value { string_value: \"%d\" } }\n", "slo_milliseconds", within.Milliseconds())
}

// holdUnderOverload asks what the model plain can do, and then floods it and the
// model bounded, which is the same with an objective.
func holdUnderOverload(t *testing.T, s *servertest.Server, name string, request func(model string) *client.Request, within time.Duration) {
	t.Helper()
	lasts := servertest.StrictOr(max(10*time.Second, 10*within), 2*time.Second)
	c := servertest.Crowd{Clients: 16, Sharing: 2, Request: func(int) *client.Request { return request("plain") }, During: servertest.For(lasts)}
	capacity := c.Run(t, s).PerSecond()
	t.Logf("it can do %.1f requests a second", capacity)
	if capacity == 0 {
		t.Fatal("nothing is left to be a multiple of")
	}
	for _, times := range servertest.StrictOr([]float64{1.2, 2, 4}, []float64{2}) {
		f := flood{rate: times * capacity, within: within, warm: max(lasts/10, 2*within), lasts: lasts}
		f.request = request("plain")
		without := f.run(t, s)
		t.Logf("at %g times that, without admission: %.1f %% of it, %v", times, 100*without.perSecond()/capacity, without)
		var inTime, late, refused []float64
		for range servertest.Rounds() {
			time.Sleep(within) // until what was left of the last one is gone
			f.request = request("bounded")
			with := f.run(t, s)
			t.Logf("at %g times that, with admission: %.1f %% of it, %v", times, 100*with.perSecond()/capacity, with)
			if with.without > 0 {
				t.Errorf("%d of those that were refused were not told when to come back", with.without)
			}
			if with.perSecond() <= max(2*without.perSecond(), capacity/4) {
				t.Errorf("at %g times what it can do, %.0f of %.0f a second are answered in time with admission, and %.0f without", times, with.perSecond(), capacity, without.perSecond())
			}
			inTime = append(inTime, with.perSecond()/capacity)
			late = append(late, with.lateShare())
			refused = append(refused, with.refusedWithin(0.99).Seconds()*1e3)
		}
		if *servertest.Strict {
			gate := fmt.Sprintf("slo: %s at %g times its capacity, ", name, times)
			servertest.Judge(t, gate+"share in time", measure.AtLeast(0.97), inTime)
			servertest.Judge(t, gate+"share late", measure.AtMost(0.005), late)
			servertest.Judge(t, gate+"p99 until refused, ms", measure.AtMost(5), refused)
		}
	}
}
