package sched

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// An arrival is one request of a random load.
type arrival struct {
	at       time.Duration
	rows     int
	priority uint64
	timeout  time.Duration // in the queue; 0 means none
	deadline time.Duration // since the start; 0 means none
}

func randomArrivals(seed uint64, n int) []arrival {
	rnd := rand.New(rand.NewPCG(seed, 7))
	all := make([]arrival, n)
	var at time.Duration
	for i := range all {
		at += time.Duration(rnd.ExpFloat64()*400_000) + 1 // odd nanoseconds: no two things at one instant
		all[i] = arrival{at: at, rows: 1 + rnd.IntN(4), priority: rnd.Uint64N(3)}
		if rnd.IntN(4) == 0 {
			all[i].timeout = time.Duration(1 + rnd.Int64N(int64(4*ms)))
		}
		if rnd.IntN(4) == 0 {
			all[i].deadline = at + time.Duration(1+rnd.Int64N(int64(8*ms)))
		}
	}
	return all
}

func takes(rows int) time.Duration { return ms + time.Duration(rows)*70*time.Microsecond }

// TestTheSimulatorAndTheSchedulerAgree plays the same arrivals in both, and asks
// for the same time of every answer, to the nanosecond.
func TestTheSimulatorAndTheSchedulerAgree(t *testing.T) {
	triton := func(p batching.Triton) batching.Config {
		p.MaxRows = 8
		return batching.Config{MaxRows: 8, Policy: p}
	}
	levels := triton(batching.Triton{MaxDelay: 300 * time.Microsecond})
	levels.Levels = []batching.Level{{Timeout: 5 * ms, AllowOverride: true}, {Timeout: 3 * ms, DelayOnTimeout: true}}
	levels.DefaultLevel = 2
	ordered := triton(batching.Triton{})
	ordered.KeepOrder = true
	for name, cfg := range map[string]batching.Config{
		"none":      {MaxRows: 8},
		"greedy":    triton(batching.Triton{}),
		"delay":     triton(batching.Triton{MaxDelay: ms}),
		"preferred": triton(batching.Triton{Preferred: []int{4, 6}, MaxDelay: 2 * ms}),
		"levels":    levels,
		"ordered":   ordered,
	} {
		for _, instances := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s/%d", name, instances), func(t *testing.T) {
				arrivals := randomArrivals(uint64(instances), 400)
				want := simulated(arrivals, cfg, instances)
				got := scheduled(t, arrivals, cfg, instances)
				if !slices.Equal(got, want) {
					for i := range got {
						if got[i] != want[i] {
							t.Fatalf("request %d was answered at %v by the scheduler, at %v by the simulator", i, got[i], want[i])
						}
					}
				}
			})
		}
	}
}

// simulated returns when each arrival is answered, with an outcome or without.
func simulated(arrivals []arrival, cfg batching.Config, instances int) []time.Duration {
	answered := make([]time.Duration, len(arrivals))
	w := simulate.NewWorld(nil, 0)
	cfg.Predictor = batching.PredictorFor(cfg.Policy) // as the scheduler has
	w.Trace = func(o simulate.Occurrence) {
		if o.Action.Kind == batching.Deliver && !o.Ended || o.Action.Kind == batching.Reject {
			answered[o.Action.Item.Owner.(int)] = o.At
		}
	}
	m := w.Add("m", cfg, func(items []*batching.Item) time.Duration {
		rows := 0
		for _, it := range items {
			rows += it.Rows
		}
		return takes(rows)
	})
	for i := range instances {
		m.Up(i + 1)
	}
	for i, a := range arrivals {
		it := &batching.Item{Rows: a.rows, Priority: a.priority, Timeout: a.timeout, Deadline: a.deadline, Owner: i}
		w.At(a.at, func() { m.Arrive(it) })
	}
	w.Run(batching.Never)
	return answered
}

func scheduled(t *testing.T, arrivals []arrival, cfg batching.Config, instances int) []time.Duration {
	answered := make([]time.Duration, len(arrivals))
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		s := New(open(t, &enginetest.Echo{Takes: takes}, instances), Options{Pacer: p, Batching: cfg})
		began := time.Now()
		var calls sync.WaitGroup
		for i, a := range arrivals {
			calls.Go(func() {
				ctx := context.Background()
				if a.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithDeadline(ctx, began.Add(a.deadline))
					defer cancel()
				}
				time.Sleep(a.at)
				req := request(fmt.Sprint(i), a.rows)
				defer req.Memory.Release()
				req.Priority, req.Timeout = a.priority, a.timeout
				var resp infer.Response
				if s.Submit(ctx, req, &resp) == nil {
					resp.Release()
				}
				answered[i] = time.Since(began)
			})
		}
		calls.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return answered
}
