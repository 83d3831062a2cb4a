//go:build e2e

package proofs

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A step is a part of a load: requests at a rate, at random distances.
type step struct {
	share float64 // of the capacity
	lasts time.Duration
}

// A stepped request is one that was due at a time.
type stepped struct {
	at      time.Time
	due     time.Duration // from the begin of its step
	took    time.Duration // from when it was due
	refused bool
}

// TestProofALoadInSteps sends a slow device a tenth of what it can do, then one and a half times
// that, and then a tenth again. Refusals say when to come back, and soon after the last step the
// latency is what it was before the first. The clients and the server take a small part of the cores,
// so that the figures are those of the queue alone. Requests that meet a time at which the machine let
// a goroutine wait do not count, and neither does a round that has few others.
func TestProofALoadInSteps(t *testing.T) {
	if !*servertest.Strict {
		t.Skip("it takes its time")
	}
	const within = 400 * time.Millisecond
	steps := []step{{0.1, 25 * time.Second}, {1.5, 10 * time.Second}, {0.1, 15 * time.Second}}
	s := startSlowDevice(t, within)
	c := servertest.Crowd{Clients: 16, Sharing: 2, Request: func(int) *client.Request { return slowDeviceRequest("plain") }, During: servertest.For(15 * time.Second)}
	capacity := c.Run(t, s).PerSecond()
	t.Logf("it can do %.1f requests a second", capacity)
	var clients []*client.Client
	for range 4 {
		clients = append(clients, s.Client(), s.Closing(client.NewHTTP(s.HTTP, client.Options{})))
	}
	var back, cores []float64
	for round := 0; len(back) < servertest.Rounds() && round < 2*servertest.Rounds() && !t.Failed(); round++ {
		stalls := watchStalls()
		got, busiest := inSteps(t, s, clients, steps, capacity, uint64(round))
		met := stalls()
		cores = append(cores, busiest)
		_, refused := latencies(got[1])
		if refused == 0 {
			t.Error("the device was not overloaded")
		}
		before, after := met.without(got[0]), met.without(got[2])
		answered, early := latencies(before)
		if len(before) < len(got[0])/2 || len(after) < len(got[2])/2 {
			t.Logf("the machine was busy: of %d and %d requests %d and %d met no stall", len(got[0]), len(got[2]), len(before), len(after))
			continue
		}
		bound := percentile99(answered) * 12 / 10
		seconds := recovery(got[2], after, bound)
		back = append(back, seconds.Seconds())
		_, late := latencies(after)
		t.Logf("at %g times the capacity the p99 was %v, and %d of %d requests were refused; at %g times %d of %d; then %d of %d, and the p99 of each second was at most %v from %.0f s after the step on; at most %.2f cores",
			steps[0].share, percentile99(answered).Round(time.Millisecond/10), early, len(before), steps[1].share, refused, len(got[1]), late, len(after), bound.Round(time.Millisecond/10), seconds.Seconds(), busiest)
	}
	if s.EndsWithin(0) || strings.Contains(s.Log(), "panic") {
		t.Errorf("the server has crashed:\n%s", s.Log())
	}
	servertest.Judge(t, "steps: s until the p99 is at most 1.2 times what it was", measure.AtMost(2), back)
	// Stalls are the machine's only if the server and the clients take little.
	servertest.Judge(t, "steps: cores of the server and the clients in the busiest step", measure.AtMost(0.25), cores)
}

// inSteps sends the requests of all steps, each when it is due, and returns those of each step when
// all have been answered, and how many cores the server and the clients took in the busiest step. It
// fails the test if a request fails, or is refused and not told when to come back.
func inSteps(t *testing.T, s *servertest.Server, clients []*client.Client, steps []step, capacity float64, seed uint64) (got [][]stepped, busiest float64) {
	t.Helper()
	ctx, abandon := context.WithCancel(t.Context()) // not a timeout, which the server would be told of
	defer abandon()
	var mu sync.Mutex // guards the following
	got = make([][]stepped, len(steps))
	var running sync.WaitGroup
	began, n := time.Now(), 0
	used := func() time.Duration { return s.Usage().CPU + s.UsageOf(os.Getpid()).CPU }
	for i, st := range steps {
		before := used()
		for due := range bench.Poisson(st.share*capacity, seed*uint64(len(steps))+uint64(i)) {
			if due > st.lasts {
				break
			}
			at := began.Add(due)
			time.Sleep(time.Until(at))
			c := clients[n%len(clients)]
			n++
			running.Go(func() {
				_, err := c.Infer(ctx, slowDeviceRequest("bounded"))
				r := stepped{at: at, due: due, took: time.Since(at), refused: errors.Is(err, client.Overloaded)}
				if e, ok := errors.AsType[*client.Error](err); r.refused && (!ok || e.RetryAfter == 0) {
					t.Errorf("a request was refused and not told when to come back: %v", err)
				} else if err != nil && !r.refused {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got[i] = append(got[i], r)
			})
		}
		began = began.Add(st.lasts)
		time.Sleep(time.Until(began))
		busiest = max(busiest, (used()-before).Seconds()/st.lasts.Seconds())
	}
	defer time.AfterFunc(20*time.Second, abandon).Stop()
	running.Wait()
	return got, busiest
}

// recovery returns the first second from which on, in three seconds one after the other, the p99 of
// the requests that are due in a second is at most bound, and none is refused. Only those that met no
// stall count, and a second of which fewer than half are left shows nothing.
func recovery(all, unstalled []stepped, bound time.Duration) time.Duration {
	sent, each := map[time.Duration]int{}, map[time.Duration][]stepped{}
	for _, r := range all {
		sent[r.due.Truncate(time.Second)]++
	}
	for _, r := range unstalled {
		second := r.due.Truncate(time.Second)
		each[second] = append(each[second], r)
	}
	good := 0
	var first time.Duration
	for _, second := range slices.Sorted(maps.Keys(sent)) {
		answered, refused := latencies(each[second])
		if 2*len(each[second]) < sent[second] || refused > 0 || percentile99(answered) > bound {
			good = 0
			continue
		}
		if good == 0 {
			first = second
		}
		if good++; good == 3 {
			return first
		}
	}
	return time.Hour // it has not
}

// A stalls is the times at which the machine let a goroutine wait that was to run.
type stalls []struct{ from, to time.Time }

// watchStalls returns a function that returns the stalls until then.
func watchStalls() (until func() stalls) {
	const nap, late = time.Millisecond, 10 * time.Millisecond
	stop, all := make(chan struct{}), make(chan stalls)
	go func() {
		var seen stalls
		for {
			began := time.Now()
			time.Sleep(nap)
			if now := time.Now(); now.Sub(began) > nap+late {
				seen = append(seen, struct{ from, to time.Time }{began, now})
			}
			select {
			case <-stop:
				all <- seen
				return
			default:
			}
		}
	}()
	return func() stalls {
		close(stop)
		return <-all
	}
}

// without returns the requests that met no stall, and of which those before them met none either.
func (s stalls) without(all []stepped) (rest []stepped) {
	const aftermath = 100 * time.Millisecond // two batches
	for _, r := range all {
		met := false
		for _, one := range s {
			met = met || one.from.Before(r.at.Add(r.took)) && one.to.Add(aftermath).After(r.at)
		}
		if !met {
			rest = append(rest, r)
		}
	}
	return rest
}

// latencies returns how long the answered requests took, ascending, and how many were refused.
func latencies(all []stepped) (answered []time.Duration, refused int) {
	for _, r := range all {
		if r.refused {
			refused++
		} else {
			answered = append(answered, r.took)
		}
	}
	slices.Sort(answered)
	return answered, refused
}

func percentile99(ascending []time.Duration) time.Duration {
	if len(ascending) == 0 {
		return 0
	}
	return ascending[min(len(ascending)-1, len(ascending)*99/100)]
}
