package sched

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
)

// Add lets one more instance run requests. It is the scheduler's from now on. Add,
// Remove and Close are not called concurrently.
func (s *Scheduler) Add(inst engine.Instance) {
	crew := slices.Clone(s.workers())
	at := slices.IndexFunc(crew, func(w *worker) bool { return w.removed })
	if at < 0 {
		at, crew = len(crew), append(crew, nil)
	}
	w := newWorker(s, at+1, inst)
	// The place of one that has left is taken over as a whole: an order to stop one of
	// its batches may still be on the way, and means nothing to the new one.
	crew[at] = w
	s.crew.Store(&crew)
	s.alive.Add(1)
	s.step(batching.Event{Kind: batching.Up, Instance: w.number}, &w.out)
	s.running.Go(w.loop)
}

// Remove takes the instance away that came last, when it has run its batch, and
// closes it. It returns false if there is none. What waits goes on waiting for
// others.
func (s *Scheduler) Remove() (ok bool, err error) {
	for _, w := range slices.Backward(s.workers()) {
		if w.removed {
			continue
		}
		w.dismiss()
		w.dismissal() // after: one that was dead must not come back for a moment
		<-w.left
		w.removed = true
		return true, w.inst.Close()
	}
	return false, nil
}

// Living returns how many instances can run requests.
func (s *Scheduler) Living() int { return int(s.alive.Load()) }
