package batching

import (
	"slices"
	"time"
)

// An Arbiter shares one device among models: it limits the number of running batches of
// those that take turns to the slots of the device. A turn goes to the model that has
// used the device for the shortest time. The duration of a turn is charged when it ends,
// because it is not known before. So models share the device's time evenly, and not its
// turns. This is start-time fair queueing with as many servers as slots.
//
// If all models that ask have a latency objective, and every request would still begin
// before it is due if it waited for one more turn, the turn goes to the model whose request
// is due first. A model with few requests then leaves turns to one with many, whose
// requests are older. A model that gets more than it can run gains little by that: its
// requests are soon those that cannot wait, and among these the time used decides again.
//
// A model that was idle for a while gets no credit for it: when it asks again, it counts
// as having used as much as the model that was served last.
//
// Models with an explicitly configured number of instances do not ask. They always run,
// and their slots count against the others.
//
// Like a [Core], an Arbiter is a pure state machine and not safe for concurrent use.
type Arbiter struct {
	// Slots is the number of batches that may run in parallel. Zero means 1.
	Slots int

	busy     int           // slots of running batches, and of turns that were granted and not yielded
	requests []*Share      // pending requests, in order
	clock    time.Duration // time used by the share that was served last
	longest  time.Duration // longest of the last turns
}

// A long turn is forgotten by this part with each that follows.
const forgets = 8

// A Share is one model's share of a device. The zero Share is ready for use. Its
// unexported fields belong to the arbiter.
type Share struct {
	// Owner is for the caller; the arbiter does not use it.
	Owner any

	// Due is when the oldest request that waits should be answered; zero if the model has no
	// objective. The caller sets it before it asks.
	Due Time

	// Width is the number of slots that a batch uses, such as its threads. Zero means 1. A
	// batch wider than Slots runs when no other batch does.
	Width int

	turns int           // turns that it holds
	used  time.Duration // slot time that counts against it
}

// Ask requests one turn for s, and appends the shares that are granted a turn now to
// granted.
func (a *Arbiter) Ask(now Time, s *Share, granted []*Share) []*Share {
	if s.turns == 0 {
		s.used = max(s.used, a.clock)
	}
	a.requests = append(a.requests, s)
	return a.grant(now, granted)
}

// Yield returns a turn of s that ran for the given time, and appends the shares that are
// granted a turn now to granted.
func (a *Arbiter) Yield(now Time, s *Share, ran time.Duration, granted []*Share) []*Share {
	a.busy -= s.width()
	s.turns--
	s.used += ran * time.Duration(s.width())
	a.longest = max(ran, a.longest-a.longest/forgets)
	return a.grant(now, granted)
}

// Began records the start of a batch of s that runs without a turn.
func (a *Arbiter) Began(s *Share) { a.busy += s.width() }

// Ended records the end of a batch of s that ran without a turn, and appends the shares
// that are granted a turn now to granted.
func (a *Arbiter) Ended(now Time, s *Share, granted []*Share) []*Share {
	a.busy -= s.width()
	return a.grant(now, granted)
}

// Forget drops the pending requests of s. Turns that it holds must still be yielded.
func (a *Arbiter) Forget(s *Share) {
	a.requests = slices.DeleteFunc(a.requests, func(other *Share) bool { return other == s })
}

func (a *Arbiter) grant(now Time, granted []*Share) []*Share {
	for len(a.requests) > 0 {
		next := a.next(now)
		s := a.requests[next]
		if a.busy > 0 && a.busy+s.width() > max(a.Slots, 1) {
			break // a narrower share does not go first, or this one could starve
		}
		a.requests = slices.Delete(a.requests, next, next+1)
		a.clock = max(a.clock, s.used)
		a.busy += s.width()
		s.turns++
		granted = append(granted, s)
	}
	return granted
}

// next returns the index of the request that gets the next turn.
func (a *Arbiter) next(now Time) int {
	least, first, urgent := 0, 0, -1
	for i, s := range a.requests {
		if s.used < a.requests[least].used {
			least = i
		}
		if s.Due < a.requests[first].Due {
			first = i
		}
		if s.Due <= now+a.longest && (urgent < 0 || s.used < a.requests[urgent].used) {
			urgent = i
		}
	}
	switch {
	case a.requests[first].Due == 0: // a model without an objective
		return least
	case urgent >= 0:
		return urgent
	}
	return first
}

func (s *Share) width() int { return max(s.Width, 1) }
