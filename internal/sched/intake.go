package sched

import (
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/batching"
)

// An intake is a lock-free list of calls that the core does not know about yet. Callers
// do not wait for the scheduler's lock: if thousands of them did, each waking the next, a
// lock that was held too long once would never recover. Instead a caller pushes its call
// to the intake, and the goroutine that holds the lock admits all calls in the intake,
// and checks again after it has unlocked. A caller that finds the lock free admits its
// call itself.
type intake struct {
	newest atomic.Pointer[call] // linked by next, newest first
}

func (in *intake) push(c *call) {
	for {
		c.next = in.newest.Load()
		if in.newest.CompareAndSwap(c.next, c) {
			return
		}
	}
}

func (in *intake) empty() bool { return in.newest.Load() == nil }

// takeAll empties the intake, and returns its calls linked by next, oldest first.
func (in *intake) takeAll() *call {
	var oldest *call
	for c := in.newest.Swap(nil); c != nil; {
		older := c.next
		c.next, oldest = oldest, c
		c = older
	}
	return oldest
}

// admit reports the calls in the intake to the core, unless another goroutine holds the
// lock. own is the call of the goroutine that calls admit, or nil.
func (s *Scheduler) admit(own *call, out *batching.Actions) {
	// A goroutine that holds the lock checks the intake again after it has unlocked, so
	// that no call is forgotten whose caller did not get the lock.
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
		next := c.next // read first: c may return to the pool once the core knows it
		c.next = nil
		c.taken, c.sender = false, nil
		c.times.Queued = s.at(now)
		s.stepLocked(now, batching.Event{Kind: batching.Arrive, Item: &c.item}, out)
		if c.req.Queued != nil && !s.opts.PassesOrderOn && c.item.Waits() {
			c.req.Queued() // not for one that is refused: a new version may run it, and has to get it before later ones
		}
		if c == own { // other callers may wait already, and would not copy their rows
			s.reserveLocked(c)
		}
		c = next
	}
}

// locked admits the calls in the intake, calls f with the lock held, unlocks, and carries
// out the actions that f appended to out. out is an empty buffer that the caller reuses;
// nil allocates one. Goroutines must not take the lock in any other way, because a caller
// that finds it taken relies on the holder to admit its call.
func (s *Scheduler) locked(out *batching.Actions, f func(now batching.Time, out *batching.Actions)) {
	if out == nil {
		out = new(batching.Actions)
	}
	s.mu.Lock()
	s.admitLocked(nil, out) // f's event may concern a call in the intake
	f(s.nowLocked(), out)
	s.mu.Unlock()
	s.admit(nil, out)
	s.carryOut(out)
}
