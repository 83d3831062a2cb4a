package sched

import (
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A transportDelay estimates how long requests and responses spend outside the scheduler.
// The only part the scheduler can measure is the time between a result being ready and
// its caller running again: next to nothing while a core is idle, milliseconds while
// other goroutines compete for it. The rest of the transport is assumed to slow down
// likewise. The zero value has no samples and expects no delay. Its methods may be called
// concurrently.
type transportDelay struct{ p99 atomic.Int64 } // nanoseconds

var delayQuantile = batching.Quantile{P: 0.99, Step: 1. / 16, MinStep: float64(time.Microsecond), Max: float64(time.Hour)}

// observe records one sample. Of two concurrent samples one may be lost, which is
// harmless.
func (t *transportDelay) observe(d time.Duration) {
	p99 := t.p99.Load()
	t.p99.Store(int64(delayQuantile.Next(float64(p99), int64(d) > p99)))
}

// expected returns the delay to expect for a request and its response together: the
// measured p99 for each of them.
func (t *transportDelay) expected() time.Duration { return 2 * time.Duration(t.p99.Load()) }
