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

// bisectable reports whether it makes sense to run parts of a batch again that
// failed. It does not if nobody waits any more, or if memory ran out: then parts
// would fail as well, only later. Nor does it if the instance died.
func bisectable(calls []*call, err error) bool {
	return len(calls) > 1 && blamable(err)
}

// blamable reports whether an error may be the fault of somebody in the batch.
func blamable(err error) bool {
	return !errors.Is(err, context.Canceled) && !errors.Is(err, engine.ErrExhausted) && !errors.Is(err, engine.ErrDied)
}

// A bisection looks for the calls that make a batch fail.
type bisection struct {
	w    *worker
	left int // runs that may still be spent
}

// bisect runs halves of the batch that failed with err, and halves of those that
// fail, so that one bad request fails alone. To find one among n takes at most
// 2⌈log₂ n⌉ runs. A batch may spend twice as many; what is not told apart by then
// fails with the others, since a model that is broken altogether shall not be run
// over and over for every batch.
func (w *worker) bisect(err error) {
	n := len(w.calls)
	b := bisection{w: w, left: 4 * bits.Len(uint(n-1))}
	b.halve(slices.Clone(w.calls), err)
}

func (b *bisection) halve(calls []*call, err error) {
	middle := len(calls) / 2
	b.try(calls[:middle], err)
	b.try(calls[middle:], err)
}

// try runs calls again, of which at least one is in a batch that failed with err.
func (b *bisection) try(calls []*call, err error) {
	calls = b.w.present(calls)
	switch {
	case len(calls) == 0:
		return
	case b.left == 0:
		b.w.fail(calls, err)
		return
	}
	b.left--
	err = b.w.attempt(calls, time.Since(b.w.s.began))
	switch {
	case err == nil:
	case bisectable(calls, err):
		b.halve(calls, err)
	default:
		b.w.fail(calls, err)
	}
}

// present keeps the calls whose callers still wait, in place. The others have had
// their answer, at their deadline or because they left.
func (w *worker) present(calls []*call) []*call {
	w.s.locked(&w.out, func(batching.Time, *batching.Actions) {
		calls = slices.DeleteFunc(calls, func(c *call) bool { return !c.item.Runs() })
	})
	return calls
}
