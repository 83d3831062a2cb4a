package batching

import (
	"slices"
	"time"
)

// An Arbiter shares one device among models: no more batches of those that take
// turns run at once than the device has slots. It is deficit round-robin. Of the
// models that ask, the first that has credit is granted a turn; when none has any
// left, each gets a quantum; and what a turn really took is charged when it ends,
// since nobody knows it before. So models share the device's time evenly, and not
// its turns.
//
// Models whose instances were set by hand do not ask. They always run, and the
// slots they use are counted against the others.
//
// Like a [Core], an Arbiter is a pure state machine and not safe for concurrent
// use.
type Arbiter struct {
	// Slots is how many batches may run at once. Zero means 1.
	Slots int

	busy    int      // batches that run, turns that were granted and not yielded
	ring    []*Share // those that ask, the next one first
	quantum time.Duration
}

// A Share is one model's part in a device. The zero Share is ready for use. Its
// fields belong to the arbiter.
type Share struct {
	// Owner is the caller's own; the arbiter never looks at it.
	Owner any

	credit time.Duration
}

// minQuantum keeps the first rounds short, before any batch has been timed.
const minQuantum = 100 * time.Microsecond

// Ask puts s in the ring for one turn, and returns the shares that are granted
// one now, appended to granted.
func (a *Arbiter) Ask(s *Share, granted []*Share) []*Share {
	a.ring = append(a.ring, s)
	return a.grant(granted)
}

// Yield takes back a turn of s that ran for so long, and returns the shares that
// are granted one now, appended to granted.
func (a *Arbiter) Yield(s *Share, ran time.Duration, granted []*Share) []*Share {
	a.busy--
	s.credit -= ran
	// With a quantum as long as the longest batch, one that has overdrawn its
	// credit has some again after few refills, so that granting stays cheap.
	a.quantum = max(a.quantum, ran)
	return a.grant(granted)
}

// Began counts a batch that runs without having asked.
func (a *Arbiter) Began() { a.busy++ }

// Ended counts the end of a batch that had not asked, and returns the shares that
// are granted a turn now, appended to granted.
func (a *Arbiter) Ended(granted []*Share) []*Share {
	a.busy--
	return a.grant(granted)
}

// Forget drops whatever s asked for. Turns that it holds are still to be
// yielded.
func (a *Arbiter) Forget(s *Share) {
	kept := a.ring[:0]
	for _, other := range a.ring {
		if other != s {
			kept = append(kept, other)
		}
	}
	clear(a.ring[len(kept):])
	a.ring = kept
}

func (a *Arbiter) grant(granted []*Share) []*Share {
	for a.busy < max(a.Slots, 1) && len(a.ring) > 0 {
		i := slices.IndexFunc(a.ring, func(s *Share) bool { return s.credit > 0 })
		if i < 0 {
			a.refill()
			continue
		}
		granted = append(granted, a.ring[i])
		a.ring = slices.Delete(a.ring, i, i+1)
		a.busy++
	}
	return granted
}

// refill gives a quantum to all that ask. It is called when none of them has
// credit, so that nobody ever has more than one.
func (a *Arbiter) refill() {
	for _, s := range a.ring {
		s.credit += max(a.quantum, minQuantum)
	}
}
