package sched

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/explain"
)

// A thoughtful policy takes its time to explain itself.
type thoughtful struct{ batching.Triton }

func (thoughtful) Explain() explain.Policy {
	time.Sleep(10 * ms)
	return explain.Policy{}
}

// A caller does not wait for the lock: the goroutine that holds it admits the call.
func TestACallThatFindsTheLockTakenIsAdmittedByItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{Takes: constant(ms)}, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: thoughtful{batching.Triton{MaxRows: 8}}}})
		synctest.Wait() // until the instance is parked: time stands still while a goroutine waits for the lock
		b.submit(5*ms, request("a", 1), 11*ms)
		if _, ok := b.Explain(); !ok || time.Since(b.began) != 10*ms {
			t.Errorf("explained %v after %v", ok, time.Since(b.began))
		}
		b.finish()
	})
}
