package sched

import (
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// died returns a channel that is closed when the instance dies. It is nil if the instance
// cannot die, or if the core already considers it down. It is also nil once the worker is
// to exit: the core then keeps giving batches to a dead instance, and they fail, so that
// Close does not wait for queued requests that no instance can run.
func (w *worker) died() <-chan struct{} {
	if w.restartable == nil || w.down || w.restartCtx.Err() != nil { // only this goroutine writes down
		return nil
	}
	return w.restartable.Died()
}

// reportDown reports to the core that the instance is down, if it has died or was replaced.
// The core then gives it no more batches until it is up again.
func (w *worker) reportDown() { w.s.locked(&w.out, w.reportDownLocked) }

func (w *worker) reportDownLocked(now batching.Time, out *batching.Actions) {
	if !w.fresh {
		select {
		case <-w.died():
		default:
			return
		}
	}
	if w.leaving {
		return // retire has reported it
	}
	w.down = true
	w.s.addAlive(-1)
	w.s.stepLocked(now, batching.Event{Kind: batching.Down, Instance: w.number}, out)
	if !w.fresh {
		w.reportBrokenLocked(now, out)
	}
}

// reportBrokenLocked reports to the core that the instance is broken, if it has died and
// is not expected to restart soon. Requests then do not wait for it.
func (w *worker) reportBrokenLocked(now batching.Time, out *batching.Actions) {
	if err := w.restartable.Failing(); err != nil && !w.leaving {
		w.s.outage.Store(err)
		w.s.stepLocked(now, batching.Event{Kind: batching.Broken, Instance: w.number}, out)
	}
}

// rejoin restarts an instance that is down, however many attempts that takes, unless it is
// fresh, and reports to the core that it is up again. It returns false if the worker is to exit instead.
func (w *worker) rejoin() bool {
	if !w.down {
		return false
	}
	for !w.fresh && !w.restart() && w.restartCtx.Err() == nil {
		w.s.locked(&w.out, w.reportBrokenLocked)
	}
	w.fresh = false
	// Either the instance is alive, or the scheduler is closing. Then a dead instance
	// rejoins as well, and fails the queued requests.
	w.s.locked(&w.out, func(now batching.Time, out *batching.Actions) {
		if w.leaving {
			return
		}
		w.down = false
		w.s.outage.Store(nil)
		w.s.addAlive(1)
		w.s.stepLocked(now, batching.Event{Kind: batching.Up, Instance: w.number}, out)
	})
	return !w.down
}

// retry restarts the instance that died while it ran the batch, and runs the batch once
// more. If the first attempt to restart it fails, retry returns err, the error of the
// batch. So it does at once if there are sequences: those of the instance have to end.
func (w *worker) retry(err error) error {
	if w.s.opts.Sequences != nil {
		return err
	}
	if w.restartable.Failing() != nil || slices.ContainsFunc(w.calls, func(c *call) bool { return c.streaming }) {
		return err // a client has a stream already, which has the error
	}
	// The core still counts the instance as running its batch. Only Alive and probes must
	// see that it is down for now; if it stays dead, next reports it.
	w.s.addAlive(-1)
	restarted := w.restart()
	w.s.addAlive(1)
	if !restarted {
		return err
	}
	return w.runCounted(w.calls, time.Since(w.s.epoch))
}

// restart makes one attempt to restart the instance, and reports whether it is alive. The
// engine logs why an attempt failed.
func (w *worker) restart() bool {
	if w.s.opts.Stats != nil {
		w.s.opts.Stats.Restarted()
	}
	return w.restartable.Restart(w.restartCtx) == nil
}

// retire takes the instance out of service for good. The worker exits when it has run its
// batch.
func (w *worker) retire() {
	wasAlive := false
	w.s.locked(nil, func(now batching.Time, out *batching.Actions) {
		w.leaving, wasAlive = true, !w.down
		// Also if it is down: requests do not wait for others because it is broken.
		w.s.stepLocked(now, batching.Event{Kind: batching.Down, Instance: w.number}, out)
	})
	if wasAlive {
		// After the worker got its command to leave: a probe that waits for fewer instances
		// now starts at once, and would run on this one if it had no command yet.
		w.s.addAlive(-1)
	}
}
