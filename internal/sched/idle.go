package sched

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// An IdleGate detects when no model of the process has work to do, so that models are
// measured only while no client waits for them. All models share one gate: a probe of
// one model stops as soon as any model gets a request. At most one probe runs at a time.
//
// The zero value is ready for use, and its methods may be called concurrently. BeginWork
// and EndWork do nothing on a nil gate.
type IdleGate struct {
	busy      atomic.Int64  // batches of clients, and other work that needs the cores, in progress
	begun     atomic.Uint64 // pieces of work that have begun so far
	stopProbe atomic.Pointer[func()]

	mu sync.Mutex // held by the probe in progress
}

// minRecheck is the shortest interval at which Await checks whether work has ended.
const minRecheck = 10 * time.Millisecond

// Await blocks until no work has run for the duration quiet, or until ctx ends.
func (g *IdleGate) Await(ctx context.Context, quiet time.Duration) error {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		busy, before := g.busy.Load() > 0, g.begun.Load()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !busy && g.begun.Load() == before {
			return nil
		}
		timer.Reset(max(quiet, minRecheck))
	}
}

// BeginWork records that a batch, or other work that needs the cores, has begun, and
// stops the probe in progress. The caller must call EndWork when the work has ended.
func (g *IdleGate) BeginWork() {
	if g == nil {
		return
	}
	g.busy.Add(1)
	g.begun.Add(1)
	g.interrupt()
}

// EndWork records the end of work that BeginWork recorded.
func (g *IdleGate) EndWork() {
	if g != nil {
		g.busy.Add(-1)
	}
}

// interrupt stops the probe in progress, if any.
func (g *IdleGate) interrupt() {
	if g == nil {
		return
	}
	if stop := g.stopProbe.Load(); stop != nil {
		(*stop)()
	}
}

// acquire reserves the gate for a probe, which the gate ends by calling stop. It returns
// false if there is work in progress. A batch that begins at the same time is either
// counted here, or finds stop set and calls it. After true, the caller must call release.
func (g *IdleGate) acquire(stop func()) bool {
	g.mu.Lock()
	g.stopProbe.Store(&stop)
	if g.busy.Load() > 0 {
		g.release()
		return false
	}
	return true
}

func (g *IdleGate) release() {
	g.stopProbe.Store(nil)
	g.mu.Unlock()
}
