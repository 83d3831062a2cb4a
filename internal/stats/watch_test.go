package stats

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// observe shows a run of n requests.
func observe(c *Counters, n int) {
	b := Batch{Instance: 1, CloseReason: batching.Full, Rows: n, Taken: time.Unix(1, 0)}
	for range n {
		b.Requests = append(b.Requests, BatchRequest{Queued: time.Unix(0, 0), Rows: 1})
	}
	c.Observe(&b)
}

func TestAWatchSeesTheBatchesThatEndWhileItIsOpen(t *testing.T) {
	c := New(8)
	observe(c, 1) // without a viewer
	first := c.Watch()
	observe(c, 2)
	second := c.Watch()
	observe(c, 3)
	sizes := func(w *Watch, n int) (all []int, missed uint64) {
		batches, missed := w.Next(n)
		for _, b := range batches {
			all = append(all, len(b.Requests))
		}
		return all, missed
	}
	if got, missed := sizes(first, 10); !slices.Equal(got, []int{2, 3}) || missed != 0 {
		t.Errorf("the first watch sees batches of %v, and misses %d", got, missed)
	}
	if got, missed := sizes(second, 10); !slices.Equal(got, []int{3}) || missed != 0 {
		t.Errorf("the second watch sees batches of %v, and misses %d", got, missed)
	}
	for n := range 5 {
		observe(c, n+1)
	}
	if got, missed := sizes(first, 2); !slices.Equal(got, []int{4, 5}) || missed != 3 {
		t.Errorf("of five batches it sees %v and misses %d, want the newest two", got, missed)
	}
	for range 2 * maxWatched {
		observe(c, 1)
	}
	if got, missed := sizes(first, 10*maxWatched); len(got) != maxWatched || missed != maxWatched {
		t.Errorf("it sees %d batches and misses %d, want %d of each", len(got), missed, maxWatched)
	}
	first.Close()
	if c.watched.Load() == nil {
		t.Error("the second watch does not count")
	}
	second.Close()
	if c.watched.Load() != nil {
		t.Error("batches are kept without a watch")
	}
}

func TestOfACrowdOfBatchesSomeAreShown(t *testing.T) {
	c := New(8)
	w := c.Watch()
	defer w.Close()
	began := time.Unix(100, 0)
	for i := range 3 * maxPerWindow { // in one and a half windows
		if c.Observes(began.Add(time.Duration(i) * window / (2 * maxPerWindow))) {
			observe(c, 1)
		}
	}
	batches, missed := w.Next(10 * maxPerWindow)
	if len(batches) != maxWatched || missed != 3*maxPerWindow-maxWatched {
		t.Fatalf("it sees %d batches and misses %d", len(batches), missed)
	}
	// The first window ends with batch 800, of which 400 are shown.
	if first, last := batches[0].Number, batches[len(batches)-1].Number; first != 3*maxPerWindow-maxWatched-maxPerWindow+1 || last != 3*maxPerWindow {
		t.Errorf("it sees batches %d to %d", first, last)
	}
	if c.Observes(began.Add(window + window/2)) {
		t.Error("a second window has more")
	}
	if !c.Observes(began.Add(2 * window)) {
		t.Error("a third window has none")
	}
}

func TestBatchesOfAWatchDoNotChange(t *testing.T) {
	c := New(8)
	w := c.Watch()
	defer w.Close()
	observe(c, 3)
	batches, _ := w.Next(1)
	for range maxWatched {
		observe(c, 1) // takes the same place
	}
	if b := batches[0]; len(b.Requests) != 3 || b.Requests[2].Rows != 1 || b.Number != 1 {
		t.Errorf("the batch changed to %+v", b)
	}
}

func TestWithoutAWatchABatchCostsNoMemory(t *testing.T) {
	c := New(8)
	w := c.Watch()
	w.Close()
	b := Batch{Requests: make([]BatchRequest, 8)}
	if allocs := testing.AllocsPerRun(100, func() {
		if c.Observes(time.Time{}) {
			t.Error("a watch is open")
		}
		c.Observe(&b)
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
