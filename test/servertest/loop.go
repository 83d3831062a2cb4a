package servertest

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Loop is what clients saw who each ask, wait for the answer, and ask again.
type Loop struct {
	PerSecond float64
	P50       time.Duration
	Used      []float64 // of each usage, for each answer, in microseconds
}

// AskInALoop lets the given number of clients ask until a time has passed and there are answers, and
// fails the test if one is an error. What is measured begins when each has been answered once, and a
// little later. Each usage is the CPU time that somebody has used until now.
func AskInALoop(t *testing.T, clients int, d time.Duration, ask func() error, usages ...func() time.Duration) Loop {
	t.Helper()
	type answer struct{ at, took time.Duration }
	answers := make([][]answer, clients)
	var stop atomic.Bool
	var answered atomic.Int64
	var all, first sync.WaitGroup
	first.Add(clients)
	began := time.Now()
	for n := range clients {
		all.Go(func() {
			for i := 0; !stop.Load(); i++ {
				sent := time.Since(began)
				err := ask()
				if i == 0 {
					first.Done()
				}
				if err != nil {
					t.Error(err)
					return
				}
				now := time.Since(began)
				answers[n] = append(answers[n], answer{now, now - sent})
				answered.Add(1)
			}
		})
	}
	first.Wait()
	time.Sleep(d / 8)
	used := make([]time.Duration, len(usages))
	for i, usage := range usages {
		used[i] = usage()
	}
	from, before := time.Since(began), answered.Load()
	time.Sleep(d)
	// A busy machine may need longer. An answer of each client may have come just before.
	for answered.Load()-before <= int64(clients) && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	for i, usage := range usages {
		used[i] = usage() - used[i]
	}
	to := time.Since(began)
	stop.Store(true)
	all.Wait()
	var took []time.Duration
	for _, a := range slices.Concat(answers...) {
		if a.at >= from && a.at < to {
			took = append(took, a.took)
		}
	}
	if len(took) == 0 || t.Failed() {
		t.Fatalf("%d answers, or errors among them", len(took))
	}
	slices.Sort(took)
	l := Loop{PerSecond: float64(len(took)) / (to - from).Seconds(), P50: took[len(took)/2]}
	for _, u := range used {
		l.Used = append(l.Used, u.Seconds()*1e6/float64(len(took)))
	}
	return l
}
