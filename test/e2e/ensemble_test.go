//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// member is the configuration of a simulated model that returns its rows, of the given number of
// numbers. It takes the given time for a batch.
func member(dims int, takes time.Duration) string {
	return fmt.Sprintf(`
backend: "simulated"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: %[1]d }
output { name: "y" data_type: TYPE_FP32 dims: %[1]d }
dynamic_batching { }
parameters { key: "fixed_us" value { string_value: "%[2]d" } }
`, dims, takes.Microseconds())
}

// chain is the configuration of an ensemble of members, one after the other, with the given names of
// its input and output. Those of its members are x and y.
func chain(dims int, in, out string, members ...string) string {
	var steps strings.Builder
	from := in
	for i, m := range members {
		to := out
		if i < len(members)-1 {
			to = fmt.Sprint("t", i+1)
		}
		fmt.Fprintf(&steps, `  step { model_name: %q model_version: -1 input_map { key: "x" value: %q } output_map { key: "y" value: %q } }`+"\n", m, from, to)
		from = to
	}
	return fmt.Sprintf(`
platform: "ensemble"
max_batch_size: 8
input { name: %[1]q data_type: TYPE_FP32 dims: %[3]d }
output { name: %[2]q data_type: TYPE_FP32 dims: %[3]d }
ensemble_scheduling {
%[4]s}
`, in, out, dims, steps.String())
}

// ensemble starts a server with an ensemble whose first member takes the given time.
func ensemble(t *testing.T, first time.Duration) *servertest.Server {
	t.Helper()
	return servertest.Start(t, servertest.Repository(t, map[string]string{
		"a_chain": chain(2, "IN", "OUT", "first", "second"), "first": member(2, first), "second": member(2, time.Millisecond),
	}))
}

func TestRequestsOfAnEnsembleShareTheBatchesOfItsMembers(t *testing.T) {
	s := ensemble(t, 5*time.Millisecond)
	const clients, each = 32, 20
	for name, c := range map[string]*client.Client{"HTTP": s.Web(), "gRPC": s.Client()} {
		before := s.Batches("first")
		var all sync.WaitGroup
		for n := range clients {
			all.Go(func() {
				for i := range each {
					want := []float32{float32(n), float32(i)}
					resp, err := c.Infer(t.Context(), &client.Request{Model: "a_chain", Inputs: []client.Tensor{client.NewTensor("IN", want, 1, 2)}})
					if err != nil {
						t.Error(err)
						return
					}
					got, err := client.Values[float32](&resp.Outputs[0])
					if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
						t.Errorf("%s: %v: got %v, want %v", name, err, got, want)
						return
					}
				}
			})
		}
		all.Wait()
		batches := 0
		for size, b := range s.Batches("first") {
			batches += b.Count - before[size].Count
		}
		if batches > clients*each/3 {
			t.Errorf("%s: %d requests of 32 clients made %d batches of the first member, want less than a third", name, clients*each, batches)
		}
	}
}

func TestADeadlineEndsAnEnsembleInMidGraph(t *testing.T) {
	s := ensemble(t, 2*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Client().Infer(ctx, &client.Request{Model: "a_chain", Inputs: []client.Tensor{client.NewTensor("IN", []float32{1, 2}, 1, 2)}})
	if took := time.Since(began); err == nil || took > 1500*time.Millisecond {
		t.Errorf("%v after %v, want the deadline of 300 ms, not the end of the first step", err, took)
	}
	time.Sleep(2 * time.Second) // the first step could have ended by now
	if ran := s.Batches("second"); len(ran) != 0 {
		t.Errorf("the second step ran %v, want never", ran)
	}
}

// TestTheRestOfAGraphEndsAtTheDeadline measures at the server how long a request lasts whose deadline
// passes during its second step: the time of the client is that of its own clock.
func TestTheRestOfAGraphEndsAtTheDeadline(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"three": chain(2, "IN", "OUT", "first", "second", "third"),
		"first": member(2, 10*time.Millisecond), "second": member(2, 3*time.Second), "third": member(2, time.Millisecond),
	}))
	const deadline, requests = 150 * time.Millisecond, 8
	figure := func(model string) client.Total { return statisticsOf(t, s, model).Fail }
	servertest.Hold(t, "ms after the deadline until the rest has ended", -float64(deadline.Milliseconds()), servertest.StrictOr(5.0, 50), func() float64 {
		before, step, ran := figure("three"), figure("second"), statisticsOf(t, s, "first").Success.Count
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				_, err := s.Client().Infer(ctx, &client.Request{Model: "three", Inputs: []client.Tensor{client.NewTensor("IN", []float32{1, 2}, 1, 2)}})
				if err == nil {
					t.Error("a request was answered after its deadline")
				}
			})
		}
		all.Wait()
		inMidGraph := func() bool {
			return figure("three").Count == before.Count+requests && figure("second").Count == step.Count+requests && statisticsOf(t, s, "first").Success.Count == ran+requests
		}
		for ended := time.Now(); !inMidGraph(); time.Sleep(time.Millisecond) {
			if time.Since(ended) > 5*time.Second {
				return math.Inf(1) // on a busy machine the deadline of one passes in the first step, or before it
			}
		}
		took := (figure("three").Time - before.Time) / requests
		return float64((took - deadline).Microseconds()) / 1000
	})
	if n := statisticsOf(t, s, "third"); n.Success.Count+n.Fail.Count != 0 {
		t.Errorf("the third step had %d requests, want none", n.Success.Count+n.Fail.Count)
	}
}

func TestAnErrorOfAStepNamesTheEnsemble(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"a_chain": chain(2, "IN", "OUT", "first", "second"), "first": member(2, time.Millisecond), "second": member(2, time.Millisecond),
	}), "--model-control-mode=explicit", "--load-model=a_chain")
	s.Unload("second")
	for name, c := range map[string]*client.Client{"HTTP": s.Web(), "gRPC": s.Client()} {
		_, err := c.Infer(t.Context(), &client.Request{Model: "a_chain", Inputs: []client.Tensor{client.NewTensor("IN", []float32{1, 2}, 1, 2)}})
		if refused, ok := errors.AsType[*client.Error](err); !ok || !strings.Contains(refused.Error(), "in ensemble 'a_chain', Request for unknown model: 'second'") {
			t.Errorf("%s: %v, want an error that names the ensemble and its step", name, err)
		}
	}
	if status, _ := s.Get("/v2/models/a_chain/ready"); status == 200 {
		t.Error("the ensemble is ready without a member")
	}
	s.Load("second")
	if status, _ := s.Get("/v2/models/a_chain/ready"); status != 200 {
		t.Errorf("the ensemble is not ready with all its members: %d", status)
	}
}

// TestAnEnsembleIsExplainedByItsSteps compares the shares of two steps with the times of their models.
func TestAnEnsembleIsExplainedByItsSteps(t *testing.T) {
	s := ensemble(t, 40*time.Millisecond)
	explains(s, "a_chain", "a_chain, version 1, run by ensemble", "No request has succeeded yet.")
	for range 5 {
		if _, err := s.Client().Infer(t.Context(), &client.Request{Model: "a_chain", Inputs: []client.Tensor{client.NewTensor("IN", []float32{1, 2}, 1, 2)}}); err != nil {
			t.Fatal(err)
		}
	}
	explains(s, "a_chain", "critical path", "A request takes ")
	e := s.Explanation("a_chain").Ensemble
	if e == nil || e.Requests != 5 || len(e.Steps) != 2 {
		t.Fatalf("got %+v", e)
	}
	first, second := e.Steps[0], e.Steps[1]
	if first.Model != "first" || second.Model != "second" || first.Requests != 5 || second.Critical != 5 || first.Compute < 40*time.Millisecond {
		t.Errorf("steps %+v", e.Steps)
	}
	if sum := first.Share + second.Share + e.Between; first.Share < 0.5 || sum < 0.999 || sum > 1.001 {
		t.Errorf("shares %v and %v, and %v between them; want the first to have most, and all of them to be the whole", first.Share, second.Share, e.Between)
	}
}
