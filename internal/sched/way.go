package sched

import (
	"sync/atomic"
	"time"
)

// A way learns how long it takes until a caller whose outcome is there goes on: next
// to nothing while a core is idle, and milliseconds while others want it. That is all
// that can be seen here of how long requests and answers are on their way, and it is
// as good a sign of the rest. The zero way has seen nothing.
type way struct{ slow atomic.Int64 } // nanoseconds: 99 of 100 take no longer

// took takes in one. Of two at the same time one may get lost, which does no harm.
func (w *way) took(d time.Duration) {
	slow := w.slow.Load()
	// The quantile is where those above it, which are one in a hundred, push up as much
	// as the others push down.
	step := max(slow/16, int64(time.Microsecond))
	if int64(d) > slow {
		slow += step * 99 / 100
	} else {
		slow -= step / 100
	}
	w.slow.Store(max(0, slow))
}

// expected returns how long a request and its answer will be on their way: as long
// as that is seen, for each of the two.
func (w *way) expected() time.Duration { return 2 * time.Duration(w.slow.Load()) }
