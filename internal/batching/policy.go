package batching

import (
	"slices"
	"time"
)

// A Policy says how many of the waiting requests an idle instance takes.
//
// Decide only answers: it depends on its arguments and, if the policy is a [Watcher],
// on the events that it has seen, and it changes nothing. The core asks as often as it
// likes, also when it does not act on the answer; what it did is an event. The line
// is not empty, and holds nothing that has expired.
type Policy interface {
	Decide(now Time, line Line) Decision
}

// A Watcher is a policy that learns from what happens. The core tells it in the
// order in which it happens, and before it asks it to decide. Nothing that it is
// told of may be kept beyond the call.
type Watcher interface {
	Policy

	Arrived(now Time, it *Item)                                // it has joined the queue
	Left(now Time, it *Item)                                   // it has left the queue without having run
	Held(now Time, d Decision)                                 // an instance that could have taken a batch was left idle, as d says
	Began(now Time, run *Action)                               // an instance has taken a batch, as the action Run says
	Ended(now Time, instance int, items []*Item, stopped bool) // its batch is done; stopped if nobody waited for it any more
}

// A Tunable is a policy that decides by how long batches take. Like Decide, its
// methods are not called concurrently.
type Tunable interface {
	Policy

	// Calibrated replaces what was measured so far by a profile that has more.
	Calibrated(profile Profile)
	// Recalibrated replaces all that the policy knows about batch times by a profile
	// that was measured with rows of another shape.
	Recalibrated(profile Profile)
}

// A Decision is a policy's answer: take so many from the front now, or, if Take
// is zero, ask again at Until, which is later than now, or when something has changed.
type Decision struct {
	Take  int
	Until Time
	Why   Reason

	// Rule and Full are the policy's own: why it waits, and for how many requests. The
	// core passes them back in Held.
	Rule uint8
	Full int
}

// None never combines requests.
type None struct{}

// Decide implements [Policy].
func (None) Decide(Time, Line) Decision { return Decision{Take: 1, Why: Alone} }

// Triton is the rule of Triton's dynamic batcher, for a batch whose members are
// settled when an instance takes it.
//
// A preferred size that can be formed leaves at once; any other number of
// requests is held until its oldest has waited for MaxDelay, and then leaves
// with all that fits, preferred or not. A request that would not fit closes the
// batch before it, and nobody overtakes it.
type Triton struct {
	MaxRows   int           // rows of the largest batch, at least 1
	Preferred []int         // sizes that leave at once, ascending, none above MaxRows; empty means MaxRows
	MaxDelay  time.Duration // how long the oldest request may be held; 0 holds none
}

// Decide implements [Policy].
func (p Triton) Decide(now Time, line Line) Decision {
	fit := p.fit(line)
	leave := fit.oldest + p.MaxDelay
	waited := p.MaxDelay > 0 && now >= leave
	switch {
	case fit.best > 0 && !waited:
		return Decision{Take: fit.best, Why: fit.bestWhy}
	case fit.rows >= p.MaxRows:
		return Decision{Take: fit.items, Why: Full}
	case fit.rows >= p.largest():
		return Decision{Take: fit.items, Why: Preferred}
	case fit.closed:
		return Decision{Take: fit.items, Why: Unfit}
	case waited:
		return Decision{Take: fit.items, Why: Waited}
	case p.MaxDelay == 0:
		return Decision{Take: fit.items, Why: Idle}
	case line.Closing():
		return Decision{Take: fit.items, Why: Closing}
	}
	return Decision{Until: leave}
}

// Backlog says what it makes of a long queue.
func (p Triton) Backlog() (rows, running int) { return p.largest(), 0 }

// A fit is what the front of a line amounts to.
type fit struct {
	items, rows int
	oldest      Time // arrival of the oldest of them
	closed      bool // nothing more can join
	best        int  // items that make the largest preferred size; 0 if none does
	bestWhy     Reason
}

func (p Triton) fit(line Line) fit {
	f := fit{oldest: Never}
	for it := line.First(); it != nil; it = line.After(it) {
		if f.items > 0 {
			if f.best == 0 && f.rows+it.Rows > p.largest() {
				f.best, f.bestWhy = f.items, Unfit // the best that there will be
			}
			if f.rows+it.Rows > p.MaxRows {
				f.closed = true
				return f
			}
		}
		f.items++
		f.rows += it.Rows
		f.oldest = min(f.oldest, it.arrived)
		if why, ok := p.prefers(f.rows); ok {
			f.best, f.bestWhy = f.items, why
		}
	}
	f.closed = line.Cut()
	return f
}

// prefers reports whether a batch of so many rows leaves at once, and why.
func (p Triton) prefers(rows int) (Reason, bool) {
	switch {
	case len(p.Preferred) == 0:
		return Full, rows == p.MaxRows
	case slices.Contains(p.Preferred, rows):
		if rows == p.MaxRows {
			return Full, true
		}
		return Preferred, true
	}
	return 0, false
}

// largest returns the largest preferred size.
func (p Triton) largest() int {
	if len(p.Preferred) == 0 {
		return p.MaxRows
	}
	return p.Preferred[len(p.Preferred)-1]
}
