package onnx

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-serving/shoal/tensor"
)

func TestAThreadIsLowOnlyWhileItComputes(t *testing.T) {
	base := niceOf(unix.Gettid())
	var seen []int
	th := thread{nice: base + 3, setNice: func(_, nice int) error {
		seen = append(seen, nice)
		return nil
	}}
	th.lower()
	th.raise()
	if len(seen) != 2 || seen[0] != base+3 || seen[1] != base || th.keptTID != 0 {
		t.Errorf("set niceness %v, want %d and then %d", seen, base+3, base)
	}
}

// A goroutine whose thread cannot be raised keeps it, and is the only one that
// runs on it.
func TestAThreadThatCannotBeRaisedIsKept(t *testing.T) {
	done := make(chan struct{})
	go func() { // it ends with its thread
		defer close(done)
		sets := 0
		th := thread{nice: 15, setNice: func(tid, nice int) error {
			sets++
			if nice < 15 {
				return errors.New("refused")
			}
			return setNice(tid, nice)
		}}
		var first int
		for n := range 100 {
			th.lower()
			tid := unix.Gettid()
			if n == 0 {
				first = tid
			}
			if nice := niceOf(tid); nice < 15 || tid != first {
				t.Errorf("run %d was on thread %d at niceness %d, want thread %d at 15", n, tid, nice, first)
			}
			th.raise()
		}
		if sets != 2 || th.keptTID != first {
			t.Errorf("niceness was set %d times, and thread %d kept; want twice, and %d", sets, th.keptTID, first)
		}
	}()
	<-done
}

// A new thread is as low as the one that starts it.
func TestAThreadThatIsKeptMakesNoOthersLow(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		th := thread{nice: 15, setNice: func(tid, nice int) error {
			if nice < 15 {
				return errors.New("refused")
			}
			return setNice(tid, nice)
		}}
		th.lower()
		th.raise()
		var all, together sync.WaitGroup
		together.Add(20)
		for range 20 { // each wants a thread of its own, more than there are
			all.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				together.Done()
				together.Wait()
				if tid := unix.Gettid(); tid == th.keptTID || niceOf(tid) >= 15 {
					t.Errorf("thread %d has niceness %d, and thread %d is kept", tid, niceOf(tid), th.keptTID)
				}
			})
		}
		all.Wait()
	}()
	<-done
}

func TestWhatIsLoweredRunsLow(t *testing.T) {
	var inside int
	runWithNice(7, func() { inside = niceOf(unix.Gettid()) })
	if inside < 7 {
		t.Errorf("niceness was %d, want 7", inside)
	}
	runWithNice(0, func() { inside = 0 })
	if inside != 0 {
		t.Error("it did not run")
	}
}

func TestAPanicOfALoadIsItsCallers(t *testing.T) {
	for _, nice := range []int{0, 7} {
		func() {
			defer func() {
				if cause := recover(); cause != "defect" {
					t.Errorf("recovered %v at niceness %d, want the panic of the load", cause, nice)
				}
			}()
			runWithNice(nice, func() { panic("defect") })
		}()
	}
}

func TestTheThreadOfABatchHasItsPriorityBackAfterwards(t *testing.T) {
	inst := open(t, sources["mlp"]()).(*instance)
	var set []int
	inst.thread = thread{nice: 20, setNice: func(_, nice int) error { // more than any thread has
		set = append(set, nice)
		return nil
	}}
	run(t, inst, tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)})
	if len(set) != 2 || set[0] != 20 || set[1] == 20 || inst.thread.tid != 0 {
		t.Errorf("niceness was set to %v, want 20 and then that of before; thread %d", set, inst.thread.tid)
	}
}
