package sched

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
)

// Add adds an instance. The scheduler takes ownership of it. Add, Remove and Close must not
// be called concurrently.
func (s *Scheduler) Add(inst engine.Instance) {
	workers := slices.Clone(s.workers())
	at := slices.IndexFunc(workers, func(w *worker) bool { return w.removed })
	if at < 0 {
		at, workers = len(workers), append(workers, nil)
	}
	w := newWorker(s, at+1, inst)
	// A removed worker is replaced, not reused: an action that stops one of its batches
	// may not have been carried out yet, and must not affect the new worker.
	workers[at] = w
	s.setWorkers(workers)
	s.addAlive(1)
	s.step(batching.Event{Kind: batching.Up, Instance: w.number}, &w.out)
	s.goroutines.Go(w.loop)
}

// Remove waits until the instance that was added last has run its batch, removes it and
// closes it. It returns false if there is no instance. Queued requests stay queued for
// the other instances. Add, Remove and Close must not be called concurrently.
func (s *Scheduler) Remove() (ok bool, err error) {
	for _, w := range slices.Backward(s.workers()) {
		if w.removed {
			continue
		}
		w.retire()
		w.cancelRestart() // after retire, so that a dead instance does not rejoin first
		<-w.exited
		w.removed = true
		s.setWorkers(s.workers())
		return true, w.inst.Close()
	}
	return false, nil
}

// setWorkers replaces the list of workers, reports their number to the policy, and updates
// joins: rows are joined if there are instances and all of them take joined rows.
func (s *Scheduler) setWorkers(workers []*worker) {
	s.workerList.Store(&workers)
	present := slices.DeleteFunc(slices.Clone(workers), func(w *worker) bool { return w.removed })
	s.locked(nil, func(batching.Time, *batching.Actions) {
		s.joins = s.combines && len(present) > 0 && !slices.ContainsFunc(present, func(w *worker) bool { return w.perRequest != nil })
		if policy, ok := s.opts.Batching.Policy.(batching.Tunable); ok {
			policy.Scaled(len(present))
		}
	})
}

// addAlive adds n to the number of instances that are alive, and wakes probes that wait
// for instances.
func (s *Scheduler) addAlive(n int64) {
	s.alive.Add(n)
	close(*s.aliveChanged.Swap(new(make(chan struct{}))))
}

// Alive returns the number of instances that can run requests.
func (s *Scheduler) Alive() int { return int(s.alive.Load()) }
