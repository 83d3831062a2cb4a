package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

const (
	ms = time.Millisecond

	queued = `
backend: "echo"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_UINT8 dims: [ 1 ] } ]
output [ { name: "x" data_type: TYPE_UINT8 dims: [ 1 ] } ]
dynamic_batching { default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 50000 } }
`
)

// serve returns a server for one model, m, and what closes it.
func serve(t *testing.T, eng engine.Engine) (s *Server, stop func()) {
	t.Helper()
	p := pacer.NewPortable()
	s = New(env(eng, p), Options{Log: slog.New(slog.DiscardHandler)})
	load(t, s, servable.Source{Model: "m", Number: 1}, queued)
	s.MarkStarted()
	return s, func() {
		closeServer(t, s)
		p.Close()
	}
}

// rows makes a request of so many rows, each of which holds value.
func rows(n int, value uint8) *infer.Request {
	data := make([]byte, n)
	for i := range data {
		data[i] = value
	}
	return &infer.Request{Model: "m", Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{int64(n), 1}, Data: data}}}
}

func sum(count uint64, d time.Duration) stats.Sum { return stats.Sum{Count: count, Nanos: uint64(d)} }

// bad is the value that the model fails for, and deadly the one that its instance dies of.
const bad, deadly = 13, 14

func failsForBad(in []tensor.Tensor) error {
	switch {
	case slices.Contains(in[0].Data, bad):
		return errors.New("bad")
	case slices.Contains(in[0].Data, deadly):
		return infer.Errorf(infer.Unavailable, "%w", engine.ErrDied)
	}
	return nil
}

func TestEachRequestIsCountedOnceWithWhatItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, &enginetest.Echo{Takes: func(int) time.Duration { return 100 * ms }, Fails: failsForBad})
		began := time.Now()
		var calls sync.WaitGroup
		ask := func(ctx context.Context, at time.Duration, req *infer.Request, want infer.Code) {
			calls.Go(func() {
				time.Sleep(at - time.Since(began))
				var resp infer.Response
				err := s.Infer(ctx, req, &resp)
				if err == nil {
					resp.Release()
					t.Errorf("at %v: answered, want %v", at, want)
				} else if infer.CodeOf(err) != want {
					t.Errorf("at %v: %v, want %v", at, err, want)
				}
			})
		}
		succeed := func(at time.Duration, req *infer.Request) {
			calls.Go(func() {
				time.Sleep(at - time.Since(began))
				var resp infer.Response
				if err := s.Infer(t.Context(), req, &resp); err != nil {
					t.Errorf("at %v: %v", at, err)
				}
				resp.Release()
			})
		}
		wrong := rows(1, 1)
		wrong.Inputs[0].Name = "y"
		succeed(0, rows(4, 1))                                  // runs 0 to 100ms
		ask(t.Context(), 10*ms, rows(1, 1), infer.QueueTimeout) // until 60ms
		ask(t.Context(), 20*ms, rows(1, 1), infer.QueueTimeout) // until 70ms
		ask(t.Context(), 30*ms, rows(1, 1), infer.Overloaded)   // at once
		ask(t.Context(), 31*ms, rows(5, 1), infer.Invalid)      // at once
		ask(t.Context(), 32*ms, wrong, infer.Invalid)           // at once
		succeed(80*ms, rows(1, 1))                              // runs 100 to 200ms
		succeed(90*ms, rows(2, 1))                              // with it
		ask(t.Context(), 300*ms, rows(1, bad), infer.Internal)  // runs 300 to 400ms
		left, leave := context.WithCancel(t.Context())
		ask(left, 500*ms, rows(1, 1), infer.Cancelled) // runs 500ms until it is left at 510ms
		late, cancel := context.WithTimeout(t.Context(), 620*ms)
		defer cancel()
		ask(late, 600*ms, rows(1, 1), infer.Deadline) // runs 600ms until it is left at 620ms
		time.Sleep(85 * ms)
		if got := s.Figures()[0].Waiting; got != 1 {
			t.Errorf("%d wait, want 1", got)
		}
		time.Sleep(510*ms - time.Since(began))
		leave()
		calls.Wait()
		synctest.Wait() // for the end of the run that everybody has left
		all := s.Figures()
		stop()
		if len(all) != 1 || all[0].Model != "m" || all[0].Version != 1 || all[0].Waiting != 0 {
			t.Fatalf("figures are %+v", all)
		}
		got := all[0].Stats
		if got.Success != sum(3, 100*ms+120*ms+110*ms) || got.Queue != sum(3, 0+20*ms+10*ms) || got.Infer != sum(3, 300*ms) || got.Input != sum(3, 0) || got.Output != sum(3, 0) {
			t.Errorf("successes %+v, queue %+v, input %+v, infer %+v, output %+v", got.Success, got.Queue, got.Input, got.Infer, got.Output)
		}
		if got.Rows != 7 || got.Runs != 5 {
			t.Errorf("%d rows in %d runs, want 7 in 5", got.Rows, got.Runs)
		}
		want := [infer.NumCodes]uint64{
			infer.QueueTimeout: 2, infer.Overloaded: 1, infer.Invalid: 2, infer.Internal: 1, infer.Cancelled: 1, infer.Deadline: 1,
		}
		if took := 50*ms + 50*ms + 100*ms + 10*ms + 20*ms; got.Failed != want || got.Fail != sum(8, took) {
			t.Errorf("failures %v in %+v, want %v in %v", got.Failed, got.Fail, want, took)
		}
		if parts := got.Queue.Nanos + got.Input.Nanos + got.Infer.Nanos + got.Output.Nanos; parts > got.Success.Nanos {
			t.Errorf("the parts took %dns, and all of it %dns", parts, got.Success.Nanos)
		}
	})
}

func TestStatisticsHaveTheProtocolsForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, &enginetest.Echo{Takes: func(int) time.Duration { return 100 * ms }})
		defer stop()
		none := func() *kservepb.StatisticDuration { return &kservepb.StatisticDuration{} }
		want := &kservepb.ModelStatistics{Name: "m", Version: "1", InferenceStats: &kservepb.InferStatistics{
			Success: none(), Fail: none(), Queue: none(), ComputeInput: none(), ComputeInfer: none(), ComputeOutput: none(), CacheHit: none(), CacheMiss: none(),
		}}
		check := func(when string) {
			t.Helper()
			if got, err := kserve.Statistics(t.Context(), s, "m", ""); err != nil || len(got.GetModelStats()) != 1 || !proto.Equal(got.GetModelStats()[0], want) {
				t.Errorf("%s: %v, %v, want %v", when, got, err, want)
			}
		}
		check("before the first request")
		var resp infer.Response
		if err := s.Infer(t.Context(), rows(2, 1), &resp); err != nil {
			t.Fatal(err)
		}
		resp.Release()
		once, ran := &kservepb.StatisticDuration{Count: 1}, &kservepb.StatisticDuration{Count: 1, Ns: uint64(100 * ms)}
		want.LastInference, want.InferenceCount, want.ExecutionCount = uint64(time.Now().UnixMilli()), 2, 1
		want.InferenceStats.Success, want.InferenceStats.Queue, want.InferenceStats.ComputeInput = ran, once, once
		want.InferenceStats.ComputeInfer, want.InferenceStats.ComputeOutput = ran, once
		want.CloseStats = map[string]uint64{"idle": 1}
		want.BatchStats = []*kservepb.InferBatchStatistics{{BatchSize: 2, ComputeInput: once, ComputeInfer: ran, ComputeOutput: once}}
		check("after it")
	})
}

func TestRequestsForNobodyAreCountedWithoutTheirNames(t *testing.T) {
	s := start(t)
	var resp infer.Response
	for i := range 10 {
		req := request()
		req.Model = "nobody" + strconv.Itoa(i)
		if err := s.Infer(t.Context(), req, &resp); infer.CodeOf(err) != infer.NotFound {
			t.Fatal(err)
		}
	}
	if want := ([infer.NumCodes]uint64{infer.NotFound: 10}); s.UnknownModel() != want {
		t.Errorf("counted %v, want %v", s.UnknownModel(), want)
	}
	if got := s.Figures(); len(got) != 1 || got[0].Stats.Fail.Count != 0 {
		t.Errorf("figures are %+v", got)
	}
}
