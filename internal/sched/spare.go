package sched

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Spare is the time in which no model has anything to do. All models of a process
// share one, so that what is tried with one of them makes way for the requests of
// every other. One thing is tried at a time.
type Spare struct {
	batches atomic.Int64  // that run for clients, and what else needs the cores
	ran     atomic.Uint64 // of them that began so far
	trial   atomic.Pointer[func()]

	mu sync.Mutex // held by the trial that is under way
}

// shortest is how long at least to wait while there is something to do.
const shortest = 10 * time.Millisecond

// Await returns when no batch has run for so long, or when ctx ends.
func (s *Spare) Await(ctx context.Context, quiet time.Duration) error {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		busy, before := s.batches.Load() > 0, s.ran.Load()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !busy && s.ran.Load() == before {
			return nil
		}
		timer.Reset(max(quiet, shortest))
	}
}

// Began notes that a batch runs, or something else that needs the cores, and ends
// the trial. Whoever calls it calls Ended.
func (s *Spare) Began() {
	if s == nil {
		return
	}
	s.batches.Add(1)
	s.ran.Add(1)
	s.interrupt()
}

// Ended notes that what began has ended.
func (s *Spare) Ended() {
	if s != nil {
		s.batches.Add(-1)
	}
}

// interrupt makes the trial end that is under way, if there is one.
func (s *Spare) interrupt() {
	if s == nil {
		return
	}
	if halt := s.trial.Load(); halt != nil {
		(*halt)()
	}
}

// use takes the spare time for a trial that halt ends. It returns false if there is
// none. A batch that begins meanwhile either is seen here, or sees the trial.
func (s *Spare) use(halt func()) bool {
	s.mu.Lock()
	s.trial.Store(&halt)
	if s.batches.Load() > 0 {
		s.leave()
		return false
	}
	return true
}

func (s *Spare) leave() {
	s.trial.Store(nil)
	s.mu.Unlock()
}
