package onnx

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// A thread manages the priority of the OS thread on which an instance computes. It lowers
// the priority for each run and restores it afterwards, because Go runs any goroutine on
// any thread: a thread that kept the low priority would later run a goroutine that reads a
// client's request, and threads that it starts would inherit the priority.
//
// Only a process with CAP_SYS_NICE, or with a limit on niceness, may raise a thread's
// priority again, and containers have neither by default. Where raising it fails, the
// goroutine stays locked to the thread for good: it does little else than run batches, and
// when it ends, Go ends the thread with it. Go does not start threads from a locked one.
// The price is a thread switch each time the goroutine waits, and low priority for its
// work between batches.
type thread struct {
	nice        int // 0 means that priorities are not changed
	restoreNice int // the niceness before lower
	keptTID     int // the thread that the goroutine stays locked to; 0 if none
	tid         int // the thread of the current run; 0 if its priority was not changed
	setNice     func(tid, nice int) error
}

// lower locks the goroutine to its thread and lowers the thread's priority. The caller must
// call raise after the run.
func (t *thread) lower() {
	if t.nice == 0 {
		return
	}
	if t.setNice == nil {
		t.setNice = setNice
	}
	runtime.LockOSThread()
	t.tid = unix.Gettid()
	if t.tid == t.keptTID {
		runtime.UnlockOSThread() // undoes the call above; the lock that keeps the thread remains
		return
	}
	t.keptTID = 0
	t.restoreNice = niceOf(t.tid)
	if t.restoreNice >= t.nice || t.setNice(t.tid, t.nice) != nil {
		runtime.UnlockOSThread() // low enough already, or not permitted, which is no reason not to run
		t.tid = 0
	}
}

// raise restores the priority and unlocks the goroutine. If the priority cannot be
// restored, the goroutine stays locked to the thread.
func (t *thread) raise() {
	if t.tid == 0 || t.tid == t.keptTID {
		return
	}
	if t.setNice(t.tid, t.restoreNice) != nil {
		t.keptTID = t.tid
		return
	}
	runtime.UnlockOSThread()
	t.tid = 0
}

// runWithNice runs f on a new thread with the given niceness, and waits for it. Threads that
// f starts inherit the niceness. The thread ends with its goroutine, which does not unlock
// it. A panic of f is the caller's.
func runWithNice(nice int, f func()) {
	if nice == 0 {
		f()
		return
	}
	done := make(chan struct{})
	var cause any
	go func() {
		defer close(done)
		defer func() { cause = recover() }()
		runtime.LockOSThread()
		if tid := unix.Gettid(); niceOf(tid) < nice {
			_ = setNice(tid, nice) // best effort: f runs either way
		}
		f()
	}()
	<-done
	if cause != nil {
		panic(cause)
	}
}

func setNice(tid, nice int) error { return unix.Setpriority(unix.PRIO_PROCESS, tid, nice) }

// niceOf returns the niceness of a thread, or 0 if it is unknown. The system call returns 20
// minus the niceness, so that results are never negative.
func niceOf(tid int) int {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		return 0
	}
	return 20 - n
}
