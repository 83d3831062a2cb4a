package pacer

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestAlarmsGoOffInTheOrderOfTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPortable()
		defer p.Close()
		began := time.Now()
		var got []time.Duration
		for _, d := range []int{30, 10, 20} {
			p.Alarm(func() { got = append(got, time.Since(began)) }).Set(began.Add(time.Duration(d) * time.Millisecond))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		want := []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond}
		if !slices.Equal(got, want) {
			t.Errorf("alarms went off after %v, want %v", got, want)
		}
	})
}

func TestAnAlarmCanBeMovedAndStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPortable()
		defer p.Close()
		began := time.Now()
		var got []time.Duration
		ring := func() { got = append(got, time.Since(began)) }
		sooner, later, stopped := p.Alarm(ring), p.Alarm(ring), p.Alarm(ring)
		sooner.Set(began.Add(time.Hour))
		sooner.Set(began.Add(5 * time.Millisecond))
		later.Set(began.Add(time.Millisecond))
		later.Set(began.Add(7 * time.Millisecond))
		stopped.Set(began.Add(2 * time.Millisecond))
		stopped.Stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []time.Duration{5 * time.Millisecond, 7 * time.Millisecond}; !slices.Equal(got, want) {
			t.Errorf("alarms went off after %v, want %v", got, want)
		}
	})
}

func TestTheQueueIsAHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	alarms := make([]*Alarm, 64)
	for i := range alarms {
		alarms[i] = &Alarm{}
	}
	var q queue
	for range 20_000 {
		a := alarms[r.IntN(len(alarms))]
		a.at = time.Unix(int64(r.IntN(100)), 0) // many are equal
		switch {
		case a.slot == 0:
			heap.Push(&q, a)
		case r.IntN(2) == 0:
			heap.Fix(&q, a.slot-1)
		default:
			// Its new time must not matter to an alarm that leaves.
			if got := heap.Remove(&q, a.slot-1); got != a {
				t.Fatal("another alarm was removed")
			}
		}
		for i, a := range q {
			if a.slot != i+1 {
				t.Fatalf("the alarm at %d believes that it is at %d", i, a.slot-1)
			}
			if q.Less(i, (i-1)/2) {
				t.Fatalf("the alarm at %d is earlier than the one above it", i)
			}
		}
	}
	for last := (time.Time{}); q.Len() > 0; {
		a := heap.Pop(&q).(*Alarm)
		if a.at.Before(last) {
			t.Fatal("a later alarm came first")
		}
		last = a.at
	}
	for i, a := range alarms {
		if a.slot != 0 {
			t.Errorf("alarm %d believes that it is in the queue", i)
		}
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPortable()
		defer p.Close()
		began := time.Now()
		if err := p.Sleep(t.Context(), began.Add(3*time.Millisecond)); err != nil || time.Since(began) != 3*time.Millisecond {
			t.Errorf("slept %v with error %v, want 3ms", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := p.Sleep(ctx, began.Add(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v, want the context's", err)
		}
	})
}

// TestExactClock uses real time, so it asks only for what no machine is too slow
// for: that nothing rings early or is forgotten while alarms are set from all
// sides.
func TestExactClock(t *testing.T) {
	p := New()
	defer p.Close()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				at := time.Now().Add(time.Duration(i*37%200) * time.Microsecond)
				if err := p.Sleep(t.Context(), at); err != nil {
					t.Error(err)
				}
				if early := time.Until(at); early > 0 {
					t.Errorf("woke %v early", early)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLateness(b *testing.B) {
	for name, make := range map[string]func() *Pacer{"exact": New, "portable": NewPortable} {
		b.Run(name, func(b *testing.B) {
			p := make()
			defer p.Close()
			var late time.Duration
			for b.Loop() {
				at := time.Now().Add(200 * time.Microsecond)
				_ = p.Sleep(b.Context(), at)
				late += time.Since(at)
			}
			b.ReportMetric(float64(late.Microseconds())/float64(b.N), "µs-late")
		})
	}
}
