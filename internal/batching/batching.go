package batching

import (
	"math"
	"time"
)

// Time is the time since a start that the caller chose. It never runs
// backwards.
type Time = time.Duration

// Never is later than any other time.
const Never Time = math.MaxInt64

// An Item is one request as the core sees it. The caller fills in the exported
// fields and leaves all of it alone until the core lets go.
type Item struct {
	Rows     int           // rows of the batch that it fills, at least 1
	Bytes    int64         // that it keeps in memory while it waits
	Shape    uint64        // requests of different shapes never share a batch
	Priority uint64        // 1 is the highest; 0 and unknown levels mean the default
	Timeout  time.Duration // longest time the client asks for, in the queue or in all, as the level says; 0 means none
	Deadline Time          // answered by then, whatever happens; 0 means none
	Way      time.Duration // that it and its answer take outside of the core, which is taken off the objective
	Instance int           // the only instance that may run it; 0 means any

	Owner any // the caller's own; the core never looks at it

	state      state
	late       bool // waited past its level's timeout, and stands behind those that have not
	level      int
	arrived    Time
	number     uint64 // in the order in which items joined their lists
	expires    Time   // when its level's timeout ends its place in the queue
	ends       Time   // when it is answered at the latest
	due        Time   // when it should be answered; Never if nobody can say or wants it
	lane       *lane
	prev, next *Item // in the lane's list

	alarm     Time // when Step has to look at it again
	alarmSlot int  // its place in the core's alarms, from 1; 0 means none

	running              *instance
	orderPrev, orderNext *Item // of all items that are not answered yet, by arrival
}

// Arrived returns when the item arrived.
func (it *Item) Arrived() Time { return it.arrived }

// Waits reports whether the item stands in a queue.
func (it *Item) Waits() bool { return it.state == waiting }

// Runs reports whether the item is in a batch that runs, and has no answer yet.
func (it *Item) Runs() bool { return it.state == taken }

type state uint8

const (
	absent   state = iota
	waiting        // in a lane
	taken          // in a batch that runs
	finished       // its batch is done, but an earlier request is not answered yet
	answered
)

// A Kind says what happened.
type Kind uint8

// What can happen to a core.
const (
	Wake   Kind = iota // time passed
	Arrive             // Item wants to run
	Cancel             // Item's client left
	Up                 // Instance is there, and will Take
	Take               // Instance is ready for its next batch
	Done               // Instance has run its batch, and will Take again
	Down               // Instance shall leave when it has run its batch
	Broken             // Instance, which is down, cannot be started: no request waits for it until it is Up
	Turn               // the device granted a turn that was asked for
	Close              // nothing more will arrive, and nothing shall wait for company
)

// An Event is one thing that happened.
type Event struct {
	Kind     Kind
	Item     *Item // for Arrive and Cancel
	Instance int   // for Up, Take, Done, Down and Broken; from 1
}

// A Do says what is to be done.
type Do uint8

// What a core can ask for.
const (
	Run     Do = iota // Instance runs Items, together
	Call              // wake the parked Instance, so that it takes
	Deliver           // give Item the outcome of its batch
	Answer            // tell Item's client Verdict; it gets no outcome
	Stop              // everybody in Instance's batch has left: end it if that is possible
	Leave             // Instance has left, and is the caller's to close
	Ask               // ask the device for a turn
	Yield             // give the device a turn back
)

// An Action is one thing to be done.
type Action struct {
	Do       Do
	Instance int
	Item     *Item
	Items    []*Item // the core's memory, unchanged until the instance is Done
	Batch    uint64  // for Run and Stop: the batch's number, from 1
	Why      Reason  // for Run
	Verdict  Verdict // for Answer

	Exclusive bool // for Run: the batch has the device to itself; see [Active]

	Ran time.Duration // for Yield: how long the turn was used

	RetryAfter time.Duration // for Answer with QueueFull or Late: when another try is worth it; 0 means unknown
}

// Actions are what one Step asks for. The zero value is ready for use, and is
// meant to be used again.
type Actions struct {
	List []Action // in the order in which they are to be carried out
	Wake Time     // when to call Step again at the latest; Never if nothing is waited for
}

// A Reason says why a batch closed. It is a metric's label, so the set is small
// and closed.
type Reason uint8

// Why batches close.
const (
	Alone     Reason = iota // the model does not combine requests
	Full                    // it has reached the largest size
	Preferred               // it has reached a size that the model prefers
	Unfit                   // the next request has another shape, or would not fit
	Waited                  // its oldest request has waited as long as it may
	Idle                    // an instance was free, and the policy does not wait
	Closing                 // nothing more will come
	Efficient               // it has reached the size at which the model does most in its time
	Gathered                // those came back that it was held for, or will not come any more
	Burst                   // it was held for requests that come close together, and they have come
	Shared                  // other instances take the rest
	Cut                     // less than all, because the rest does better in a batch of its own
	Retest                  // all that fit, to measure a size again that is believed to be worse
)

var reasons = [...]string{
	"alone", "full", "preferred", "unfit", "waited", "idle", "closing", "efficient", "gathered", "burst", "shared", "cut", "retest",
}

// Reasons is how many there are.
const Reasons = len(reasons)

func (r Reason) String() string { return reasons[r] }

// A Verdict says why a request did not get an outcome.
type Verdict uint8

// Why requests are turned away.
const (
	TooLarge   Verdict = iota // more rows than a batch may have, or none
	QueueFull                 // as many wait as may
	TimedOut                  // it waited longer than its level allows
	Expired                   // its own deadline passed
	Cancelled                 // its client left
	Refused                   // the model is closing
	Unbound                   // the instance it is bound to has left
	Late                      // it would be answered too late
	NoInstance                // no instance serves, and one that is down cannot be started
)

var verdicts = [...]string{"too large", "queue full", "timed out", "expired", "cancelled", "refused", "unbound", "would be late", "no instance"}

func (v Verdict) String() string { return verdicts[v] }
