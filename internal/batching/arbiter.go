package batching

import (
	"slices"
	"time"
)

// An Arbiter shares one device among models: no more batches of those that take
// turns run at once than the device has slots. A turn goes to the model that has
// used the device for the shortest time, and what the turn really took is charged
// when it ends, since nobody knows it before. So models share the device's time
// evenly, and not its turns. This is start-time fair queueing, with as many in
// service as there are slots.
//
// A model that did not ask for a while does not make up for it: when it asks
// again, it counts as having used as much as the one whose turn it was last.
//
// Models whose instances were set by hand do not ask. They always run, and the
// slots they use are counted against the others.
//
// Like a [Core], an Arbiter is a pure state machine and not safe for concurrent
// use.
type Arbiter struct {
	// Slots is how many batches may run at once. Zero means 1.
	Slots int

	busy  int           // slots of batches that run, and of turns that were granted and not yielded
	asks  []*Share      // those that ask, in the order in which they did
	clock time.Duration // what the share had used whose turn it was last
}

// A Share is one model's part in a device. The zero Share is ready for use. Its
// fields belong to the arbiter.
type Share struct {
	// Owner is the caller's own; the arbiter never looks at it.
	Owner any

	// Width is how many slots a batch takes, such as the threads that compute it. Zero
	// means 1. One that takes more than there are runs when nothing else does.
	Width int

	turns int           // that it holds
	used  time.Duration // for how long it has used slots of the device, as far as that still counts
}

// Ask asks for one turn of s, and returns the shares that are granted one now,
// appended to granted.
func (a *Arbiter) Ask(s *Share, granted []*Share) []*Share {
	if s.turns == 0 {
		s.used = max(s.used, a.clock)
	}
	a.asks = append(a.asks, s)
	return a.grant(granted)
}

// Yield takes back a turn of s that ran for so long, and returns the shares that
// are granted one now, appended to granted.
func (a *Arbiter) Yield(s *Share, ran time.Duration, granted []*Share) []*Share {
	a.busy -= s.width()
	s.turns--
	s.used += ran * time.Duration(s.width())
	return a.grant(granted)
}

// Began counts a batch of s that runs without having asked.
func (a *Arbiter) Began(s *Share) { a.busy += s.width() }

// Ended counts the end of a batch of s that had not asked, and returns the shares
// that are granted a turn now, appended to granted.
func (a *Arbiter) Ended(s *Share, granted []*Share) []*Share {
	a.busy -= s.width()
	return a.grant(granted)
}

// Forget drops whatever s asked for. Turns that it holds are still to be
// yielded.
func (a *Arbiter) Forget(s *Share) {
	a.asks = slices.DeleteFunc(a.asks, func(other *Share) bool { return other == s })
}

func (a *Arbiter) grant(granted []*Share) []*Share {
	for len(a.asks) > 0 {
		next := 0
		for i, s := range a.asks {
			if s.used < a.asks[next].used {
				next = i
			}
		}
		s := a.asks[next]
		if a.busy > 0 && a.busy+s.width() > max(a.Slots, 1) {
			break // nobody narrower goes first, or it might never be its turn
		}
		a.asks = slices.Delete(a.asks, next, next+1)
		a.clock = max(a.clock, s.used)
		a.busy += s.width()
		s.turns++
		granted = append(granted, s)
	}
	return granted
}

func (s *Share) width() int { return max(s.Width, 1) }
