package sched

import (
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A way learns how long it takes until a caller whose outcome is there goes on: next
// to nothing while a core is idle, and milliseconds while others want it. That is all
// that can be seen here of how long requests and answers are on their way, and it is
// as good a sign of the rest. The zero way has seen nothing.
type way struct{ slow atomic.Int64 } // nanoseconds: the p99

var ways = batching.Quantile{P: 0.99, Step: 1. / 16, MinStep: float64(time.Microsecond), Max: float64(time.Hour)}

// took takes in one. Of two at the same time one may get lost, which does no harm.
func (w *way) took(d time.Duration) {
	slow := w.slow.Load()
	w.slow.Store(int64(ways.Next(float64(slow), int64(d) > slow)))
}

// expected returns how long a request and its answer will be on their way: as long
// as that is seen, for each of the two.
func (w *way) expected() time.Duration { return 2 * time.Duration(w.slow.Load()) }
