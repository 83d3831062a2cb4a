package sched

import (
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/batching"
)

// The intake is where calls stand before the core has heard of them. Callers do
// not wait for the scheduler's lock: with thousands of them, each waking the next,
// a lock that was held for too long once would never recover. Instead a caller puts
// its call here, and whoever has the lock admits all that are here, once more after
// unlocking it. A caller that finds the lock free does so itself.
type intake struct {
	newest atomic.Pointer[call] // linked to the ones before it
}

func (in *intake) push(c *call) {
	for {
		c.before = in.newest.Load()
		if in.newest.CompareAndSwap(c.before, c) {
			return
		}
	}
}

func (in *intake) empty() bool { return in.newest.Load() == nil }

// takeAll empties the intake, and returns the oldest call, linked to those after
// it.
func (in *intake) takeAll() *call {
	var oldest *call
	for c := in.newest.Swap(nil); c != nil; {
		before := c.before
		c.before, oldest = oldest, c
		c = before
	}
	return oldest
}

// admit tells the core of the calls in the intake, unless somebody else is at it.
// own is the caller's own call, or nil.
func (s *Scheduler) admit(own *call, out *batching.Actions) {
	// Whoever holds the lock looks here again after unlocking it, so that nobody is
	// forgotten whose caller did not get it.
	for !s.intake.empty() && s.mu.TryLock() {
		s.admitLocked(own, out)
		s.mu.Unlock()
	}
}

func (s *Scheduler) admitLocked(own *call, out *batching.Actions) {
	if s.intake.empty() {
		return
	}
	now := s.nowLocked()
	for c := s.intake.takeAll(); c != nil; {
		after := c.before // c may be gone once the core has it
		c.before = nil
		c.times.Queued = s.at(now)
		s.stepLocked(now, batching.Event{Kind: batching.Arrive, Item: &c.item}, out)
		if c == own {
			s.reserveLocked(c)
		}
		c = after
	}
}

// locked calls f with the lock held, when the core knows all calls in the intake, and
// carries out what the core asks for. f adds that to out, which is memory of the
// caller's, empty and to be used again; nil means new memory. Goroutines take the lock
// in no other way: a caller that finds it taken relies on the holder to admit its call.
func (s *Scheduler) locked(out *batching.Actions, f func(now batching.Time, out *batching.Actions)) {
	if out == nil {
		out = new(batching.Actions)
	}
	s.mu.Lock()
	s.admitLocked(nil, out) // what f tells the core may be about one of them
	f(s.nowLocked(), out)
	s.mu.Unlock()
	s.admit(nil, out)
	s.carryOut(out)
}
