package batching

import (
	"slices"
	"time"
)

// A Policy decides how many of the waiting requests an idle instance takes.
//
// Decide must depend only on its arguments and, if the policy is a [Watcher], on the
// events that it has received, and must not change any state: the core may call it any
// number of times, even if it does not act on the decision. What the core did is an
// event. The line is not empty and has no expired items.
type Policy interface {
	Decide(now Time, line Line) Decision
}

// A Watcher is a policy that learns from events. The core reports events in the order in
// which they happen, and before it asks for a decision. The methods must not keep their
// arguments.
type Watcher interface {
	Policy

	Arrived(now Time, it *Item)                                // it was queued
	Left(now Time, it *Item)                                   // it left the queue without running
	Held(now Time, d Decision)                                 // an instance was left idle, following d
	Began(now Time, run *Action)                               // an instance has taken the batch of the action Run
	Ended(now Time, instance int, items []*Item, stopped bool) // a batch has ended; stopped if all of its clients had left
}

// A Tunable is a policy that uses measured batch times, and the number of instances. Like
// Decide, its methods are not called concurrently.
type Tunable interface {
	Policy

	// Calibrated replaces the profile by one with more measurements.
	Calibrated(profile Profile)
	// Recalibrated replaces everything that the policy knows about batch times by a profile
	// that was measured with another input shape.
	Recalibrated(profile Profile)
	// Scaled sets the number of instances, whenever that changes.
	Scaled(instances int)
}

// A Decision is a policy's answer: take the first Take items now, or, if Take is zero,
// ask again at Until, which is later than now, or after the next event.
type Decision struct {
	Take   int
	Until  Time
	Reason Reason

	// Recheck is when to ask again although nothing has happened, for a policy that waits
	// for a running batch and not for a time, so that Until is Never. Zero means not at all.
	Recheck Time

	// Rule and Full are for the policy: why it holds requests that an instance could run, and for
	// how many it waits. The core passes them to Held. It ends a hold in time for deadlines.
	Rule uint8
	Full int
}

// None never combines requests.
type None struct{}

// Decide implements [Policy].
func (None) Decide(Time, Line) Decision { return Decision{Take: 1, Reason: Alone} }

// Triton is the rule of Triton's dynamic batcher, except that the requests of a batch are
// chosen when an instance takes it.
//
// If a preferred size can be formed, the batch runs immediately. Otherwise requests are
// held until the oldest has waited for MaxDelay, and then all that fit run. A request
// that does not fit closes the batch before it, and no later request overtakes it.
type Triton struct {
	MaxRows   int           // maximum batch size in rows, at least 1
	Preferred []int         // sizes that run immediately, ascending, at most MaxRows; empty means MaxRows
	MaxDelay  time.Duration // how long the oldest request may be held; 0 means not at all
}

// Decide implements [Policy].
func (p Triton) Decide(now Time, line Line) Decision {
	fit := p.fit(line)
	holdEnd := after(fit.oldest, p.MaxDelay)
	waited := p.MaxDelay > 0 && now >= holdEnd
	switch {
	case fit.best > 0 && !waited:
		return Decision{Take: fit.best, Reason: fit.bestReason}
	case fit.rows >= p.MaxRows:
		return Decision{Take: fit.items, Reason: Full}
	case fit.rows >= p.largest():
		return Decision{Take: fit.items, Reason: Preferred}
	case fit.closed:
		return Decision{Take: fit.items, Reason: Unfit}
	case waited:
		return Decision{Take: fit.items, Reason: Waited}
	case p.MaxDelay == 0:
		return Decision{Take: fit.items, Reason: Idle}
	case line.Closing():
		return Decision{Take: fit.items, Reason: Closing}
	}
	return Decision{Until: holdEnd}
}

// Backlog returns the batch size that works off a long queue, and 0 for any number of
// parallel batches.
func (p Triton) Backlog(int64) (rows, running int) { return p.largest(), 0 }

// A fit describes the requests at the front of a line that fit into a batch.
type fit struct {
	items, rows int
	oldest      Time // arrival of the oldest
	closed      bool // no further request can join
	best        int  // number of items that form the largest possible preferred size; 0 if none does
	bestReason  Reason
}

func (p *Triton) fit(line Line) fit {
	f := fit{oldest: Never}
	for it := line.First(); it != nil; it = line.After(it) {
		if f.items > 0 {
			if f.best == 0 && f.rows+it.Rows > p.largest() {
				f.best, f.bestReason = f.items, Unfit // no better size can follow
			}
			if f.rows+it.Rows > p.MaxRows {
				f.closed = true
				return f
			}
		}
		f.items++
		f.rows += it.Rows
		f.oldest = min(f.oldest, it.arrived)
		if reason, ok := p.prefers(f.rows); ok {
			f.best, f.bestReason = f.items, reason
		}
	}
	f.closed = line.Cut()
	return f
}

// prefers reports whether a batch of the given rows runs immediately, and why.
func (p *Triton) prefers(rows int) (Reason, bool) {
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
func (p *Triton) largest() int {
	if len(p.Preferred) == 0 {
		return p.MaxRows
	}
	return p.Preferred[len(p.Preferred)-1]
}
