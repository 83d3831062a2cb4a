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
	s.setCrew(crew)
	s.addLiving(1)
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
		s.setCrew(s.workers())
		return true, w.inst.Close()
	}
	return false, nil
}

// setCrew sets the workers, and with them whether rows are joined: that is so if every
// instance takes them joined. Before there is one, that is not known.
func (s *Scheduler) setCrew(crew []*worker) {
	s.crew.Store(&crew)
	present := slices.DeleteFunc(slices.Clone(crew), func(w *worker) bool { return w.removed })
	joins := s.combines && len(present) > 0 && !slices.ContainsFunc(present, func(w *worker) bool { return w.each != nil })
	s.locked(nil, func(batching.Time, *batching.Actions) { s.joins = joins })
}

// addLiving changes the number of living instances, and wakes trials that wait for
// more of them than there may be now.
func (s *Scheduler) addLiving(n int64) {
	s.alive.Add(n)
	close(*s.changed.Swap(new(make(chan struct{}))))
}

// Living returns how many instances can run requests.
func (s *Scheduler) Living() int { return int(s.alive.Load()) }
