package sched

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
)

// bisectable reports whether running parts of a failed batch again can succeed.
func bisectable(calls []*call, err error) bool {
	return len(calls) > 1 && requestMayBeCause(err)
}

// requestMayBeCause reports whether a request may have caused err. It cannot have if the
// batch was cancelled because all clients left, if memory ran out (smaller batches would
// only fail later), or if the instance died.
func requestMayBeCause(err error) bool {
	return !errors.Is(err, context.Canceled) && !errors.Is(err, engine.ErrExhausted) && !errors.Is(err, engine.ErrDied)
}

// A bisection searches a failed batch for the requests that make it fail.
type bisection struct {
	w        *worker
	runsLeft int
}

// bisect runs the halves of the batch that failed with err, and the halves of those that
// fail, until each bad request has failed on its own. Finding one bad request among n
// takes at most 2⌈log₂ n⌉ runs. A batch may use twice as many runs; requests that have
// not been separated by then fail together, so that a model that always fails is not run
// over and over for each batch.
func (w *worker) bisect(err error) {
	n := len(w.calls)
	b := bisection{w: w, runsLeft: 4 * bits.Len(uint(n-1))}
	b.halve(slices.Clone(w.calls), err)
}

func (b *bisection) halve(calls []*call, err error) {
	middle := len(calls) / 2
	b.runPart(calls[:middle], err)
	b.runPart(calls[middle:], err)
}

// runPart runs calls, a part of a batch that failed with err.
func (b *bisection) runPart(calls []*call, err error) {
	calls = b.w.stillWaiting(calls, err)
	switch {
	case len(calls) == 0:
		return
	case b.runsLeft == 0:
		setError(calls, err) // of a run with others, for which no client is blamed
		return
	}
	b.runsLeft--
	err = b.w.runCounted(calls, time.Since(b.w.s.epoch))
	switch {
	case err == nil:
	case bisectable(calls, err):
		b.halve(calls, err)
	default:
		b.w.fail(calls, err)
	}
}

// stillWaiting removes the calls whose callers have left, or were answered at their deadline, and
// those whose callers have a stream, which has the error. It reuses the slice.
func (w *worker) stillWaiting(calls []*call, err error) []*call {
	w.s.locked(&w.out, func(batching.Time, *batching.Actions) {
		calls = slices.DeleteFunc(calls, func(c *call) bool {
			if c.streaming {
				c.err = err
			}
			return c.streaming || !c.item.Running()
		})
	})
	return calls
}
