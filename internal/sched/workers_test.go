package sched

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
)

func (b *bench) remove() {
	b.t.Helper()
	if ok, err := b.Remove(); !ok || err != nil {
		b.t.Errorf("remove: %v, %v", ok, err)
	}
}

// stagesTwo checks that requests are staged while one batch of eight rows runs on each
// of the given number of instances.
func (b *bench) stagesTwo(instances int) {
	b.t.Helper()
	b.began = time.Now()
	for range instances {
		b.submit(0, largeRequest("z", 8), 10*ms)
	}
	b.submit(1*ms, largeRequest("a", 2), 20*ms)
	b.submit(2*ms, largeRequest("b", 3), 20*ms)
	time.Sleep(5 * ms)
	if got, want := staged(b.Scheduler), []string{"1a", "1b"}; !slices.Equal(got, want) {
		b.t.Errorf("on the stages are %v, want %v", got, want)
	}
	b.calls.Wait()
}

func joining() Options {
	return Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}}
}

func TestRowsAreStagedAfterAnInstanceWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{Takes: constant(10 * ms)}, 3, joining())
		b.remove()
		b.stagesTwo(2)
		b.remove()
		b.stagesTwo(1)
		b.finish()
	})
}

func TestRowsAreStagedForInstancesThatWereAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 0, joining())
		b.Add(open(t, eng, 1)[0])
		b.stagesTwo(1)
		each := &mortal{died: make(chan struct{})} // takes requests one by one
		b.Add(each)
		if b.joins {
			t.Error("rows would be joined for an instance that takes requests one by one")
		}
		b.remove()
		b.stagesTwo(1)
		b.finish()
	})
}

// warm warms all instances at a time, and checks when that ends.
func (b *bench) warm(at, want time.Duration) {
	b.calls.Go(func() {
		req := request("warm", 1)
		defer req.Memory.Release()
		time.Sleep(at - time.Since(b.began))
		if err := b.WarmUp(b.t.Context(), req, 2); err != nil || time.Since(b.began) != want {
			b.t.Errorf("warming ended after %v with %v, want %v", time.Since(b.began), err, want)
		}
	})
}

func TestInstancesThatWereRemovedAreNotWarmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 3, joining())
		b.remove()
		b.warm(0, 20*ms)
		b.finish()
		if got := eng.Batches(); len(got) != 4 {
			t.Errorf("%d runs, want 2 on each of 2 instances", len(got))
		}
	})
}

func TestWarmingEndsWhenAnInstanceThatTakesPartIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 2, joining())
		synctest.Wait()
		b.submit(0, request("a", 8), 10*ms) // on the first, for which warming waits
		b.warm(1*ms, 2*ms)                  // the second one takes part, and leaves
		time.Sleep(2 * ms)
		b.remove()
		b.finish()
	})
}

func TestWarmingGoesOnWithThoseThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 2, joining())
		synctest.Wait()
		b.submit(0, request("a", 8), 10*ms)
		b.submit(0, request("b", 8), 10*ms)
		b.warm(1*ms, 30*ms)
		time.Sleep(2 * ms)
		b.remove() // when its batch has ended
		b.finish()
	})
}
