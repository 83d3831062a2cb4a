package onnx

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// A thread is the OS thread on which an instance computes. Its priority is
// lowered for the run and raised again after it, because Go's threads serve
// everybody: one that stayed low would later run a goroutine that reads a
// client's request, and those it starts would be low as well.
//
// Only a process with CAP_SYS_NICE, or with a limit on niceness, may raise a
// thread again, and containers have neither unless they ask. Where it is refused,
// the goroutine keeps the thread for itself for good: it does little else than run
// batches, and when it ends, Go ends the thread with it. Go starts no others from
// a thread that is kept. That costs a switch of threads each time the goroutine
// waits, and what it does between batches is done at low priority, too.
type thread struct {
	nice int // 0 means that threads are left as they are
	from int // the niceness to return to
	kept int // the thread that was kept low, 0 if none
	own  int // the thread that runs now
	set  func(tid, nice int) error
}

func (t *thread) lower() {
	if t.nice == 0 {
		return
	}
	if t.set == nil {
		t.set = setNice
	}
	runtime.LockOSThread()
	t.own = unix.Gettid()
	if t.own == t.kept {
		runtime.UnlockOSThread() // only this one: the lock that keeps it stays
		return
	}
	t.kept = 0
	t.from = niceOf(t.own)
	if t.from >= t.nice || t.set(t.own, t.nice) != nil {
		runtime.UnlockOSThread() // it is low enough, or cannot be lowered, which is no reason not to run
		t.own = 0
	}
}

// raise ends what lower began.
func (t *thread) raise() {
	if t.own == 0 || t.own == t.kept {
		return
	}
	if t.set(t.own, t.from) != nil {
		t.kept = t.own
		return
	}
	runtime.UnlockOSThread()
	t.own = 0
}

// lowered runs f on a thread of its own, of low priority, and waits for it. The
// threads that f starts are as low. Go ends a thread whose goroutine ends without
// unlocking it.
func lowered(nice int, f func()) {
	if nice == 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if tid := unix.Gettid(); niceOf(tid) < nice {
			_ = setNice(tid, nice) // if it is refused, f runs all the same
		}
		f()
	}()
	<-done
}

func setNice(tid, nice int) error { return unix.Setpriority(unix.PRIO_PROCESS, tid, nice) }

// niceOf returns the niceness of a thread, 0 if it is unknown. The kernel answers
// with 20 less the niceness, so that no answer is negative.
func niceOf(tid int) int {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		return 0
	}
	return 20 - n
}
