//go:build !race

// Under the race detector pools lose things on purpose, so nothing can be said
// about allocations.

package sched

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestARequestDoesNotAllocate counts the allocations of enough requests that
// those of starting the callers do not matter.
func TestARequestDoesNotAllocate(t *testing.T) {
	for name, cfg := range costs {
		for _, callers := range []int{2, 64, 4096} {
			t.Run(fmt.Sprintf("%s/%d", name, callers), func(t *testing.T) {
				// The collector empties pools, which would have to be filled again.
				defer debug.SetGCPercent(debug.SetGCPercent(-1))
				s := startNoOp(t, cfg())
				ctx, unwatch := context.WithCancel(t.Context())
				watching := make(chan error, 1)
				go func() {
					_, err := s.AwaitShapeChange(ctx, smallRequest().Shape)
					watching <- err
				}()
				defer func() {
					unwatch()
					if err := <-watching; !errors.Is(err, context.Canceled) {
						t.Errorf("the shape that all requests have is another: %v", err)
					}
				}()
				n := max(20_000, 20*callers)
				perRequest := 1.0
				for range 5 { // pools and queues still grow a little, the less the more have passed
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					run(t, s, callers, n)
					runtime.ReadMemStats(&after)
					// A caller allocates its request, its goroutine and its response once.
					perRequest = min(perRequest, (float64(after.Mallocs-before.Mallocs)-8*float64(callers))/float64(n))
					if perRequest < 0.05 {
						return
					}
				}
				t.Errorf("%.3f allocations per request, want none", perRequest)
			})
		}
	}
}
