package batching

import (
	"math"
	"time"
)

// Time is the time since a start that the caller chose. It must never decrease.
type Time = time.Duration

// Never is later than any other time.
const Never Time = math.MaxInt64

// after returns the time that is d after t. It is before Never, however long d is:
// configurations write the longest duration that there is if they mean no limit.
func after(t Time, d time.Duration) Time { return t + min(d, Never-1-t) }

// An Item is one request. The caller sets the exported fields and must not touch the item
// again until the core releases it with a Deliver or a Reject.
type Item struct {
	Rows           int           // number of rows, at least 1
	Bytes          int64         // memory that it uses while it waits
	Shape          uint64        // requests of different shapes do not share a batch, unless they have the same PadGroup
	PadGroup       uint64        // requests of one group may share a batch if rows are padded; the same for all requests of a shape; 0 means none
	Elements       int64         // elements of a row, the same for all requests of a shape; 0 if the model has no variable dimensions
	Priority       uint64        // 1 is the highest; 0 and unknown levels mean the default
	Timeout        time.Duration // requested by the client, in the queue or in total, depending on Level.TimeoutIsDeadline; 0 means none
	Deadline       Time          // when the request is answered at the latest; 0 means none
	TransportDelay time.Duration // transport overhead of the request and its answer, which is subtracted from the objective
	Instance       int           // the only instance that may run it; 0 means any
	Tenant         int           // whose share of the queue it uses; tenants are numbered densely from 0
	Weight         int           // of the tenant's share, from 1; 0 means 1

	Owner any // for the caller; the core does not use it

	state      state
	late       bool // exceeded its level's timeout, and is queued behind items that have not
	level      int
	arrived    Time
	sequence   uint64 // order in which items were queued
	expiresAt  Time   // when the timeout of its level expires
	endsAt     Time   // when it is answered at the latest; Never if there is no deadline
	due        Time   // when it should be answered; Never if there is no goal, or no prediction
	lane       *lane
	prev, next *Item // in the lane's list

	tenant                 int    // Tenant, or 0 if tenants do not matter
	start                  uint64 // virtual time at which it starts, see tenants.go
	tenantPrev, tenantNext *Item  // waiting items of the tenant in this level, by arrival

	alarm     Time // when Step has to handle it
	alarmSlot int  // its position in Core.alarms, from 1; 0 means none

	running              *instance
	orderPrev, orderNext *Item // list of all unanswered items, by arrival

	// For [Sequences], which sets Instance itself. They are last, so that the fields of the core
	// stay in the cache lines that they had.
	Correlation Correlation // of the request's sequence
	Start, End  bool        // it is the first, the last of its sequence
	Again       bool        // it has to run once more; see SequenceConfig.Iterative
	seq         *Sequence   // nil if the core is not one for sequences
}

// Arrived returns when the item arrived.
func (it *Item) Arrived() Time { return it.arrived }

// Queued reports whether the item is queued, and not behind other requests of its sequence.
func (it *Item) Queued() bool { return it.state == waiting }

// Waits reports whether the item is queued, or behind other requests of its sequence.
func (it *Item) Waits() bool { return it.state == waiting || it.state == pending }

// Running reports whether the item is in a running batch and not answered yet.
func (it *Item) Running() bool { return it.state == inBatch }

type state uint8

const (
	absent   state = iota
	waiting        // in a lane
	inBatch        // in a running batch
	pending        // behind other requests of its sequence, or its sequence has no slot
	finished       // its batch has ended, but an earlier request is not answered yet
	answered
)

// An EventKind is the kind of an [Event].
type EventKind uint8

// Kinds of events.
const (
	Wake   EventKind = iota // time passed
	Arrive                  // Item arrived
	Cancel                  // Item's client canceled the request
	Up                      // Instance was added, and will Take
	Take                    // Instance is ready for a batch
	Done                    // Instance has completed its batch, and will Take again
	Down                    // Instance must leave once it has completed its batch; again, if it is Broken, when it is removed
	Broken                  // Instance is down and cannot be started: requests do not wait for it until it is Up
	Turn                    // the device granted a turn
	Close                   // no more requests will arrive, so batches are not held any longer
	Flush                   // batches are not held any longer: only requests behind those that wait will arrive
)

// An Event reports one thing that happened to a [Core].
type Event struct {
	Kind     EventKind
	Item     *Item // for Arrive and Cancel
	Instance int   // for Up, Take, Done, Down and Broken; from 1
}

// An ActionKind is the kind of an [Action].
type ActionKind uint8

// Kinds of actions.
const (
	Run     ActionKind = iota // run Items on Instance, as one batch
	Unpark                    // wake the parked Instance, which must Take
	Deliver                   // answer Item with the result of its batch
	Reject                    // answer Item without a result, because of Verdict
	Stop                      // no client waits for Instance's batch any more: stop it if possible
	Leave                     // Instance was removed, and the caller may close it
	Ask                       // request a turn from the device
	Yield                     // return a turn to the device
)

// An Action is one thing that the caller of Step must do.
type Action struct {
	Kind     ActionKind
	Instance int
	Item     *Item
	Items    []*Item // owned by the core, and unchanged until the instance is Done
	Batch    uint64  // for Run and Stop: number of the batch, from 1
	Reason   Reason  // for Run: why the batch closed
	Verdict  Verdict // for Reject

	Exclusive bool // for Run: the batch begins on an idle device; see [ActiveBatches]

	Due Time          // for Ask: when the first of the waiting requests is due; 0 if the model has no objective
	Ran time.Duration // for Yield: how long the turn was used

	RetryAfter time.Duration // for Reject with QueueFull or Late: when to retry; 0 means unknown
}

// Actions are the result of one Step. The zero value is ready for use. Reuse it to avoid
// allocations.
type Actions struct {
	List []Action // in the order in which to carry them out
	Wake Time     // when to call Step again at the latest; Never if no time is awaited
}

// A Reason is why a batch was closed. It is a metric label, so the set is small and
// fixed.
type Reason uint8

// Reasons to close a batch.
const (
	Alone     Reason = iota // the model does not combine requests
	Full                    // the maximum size is reached
	Preferred               // a preferred size is reached
	Unfit                   // the next request has another shape, or does not fit
	Waited                  // the oldest request has waited for the maximum delay
	Idle                    // an instance is free, and the policy does not hold requests
	Closing                 // no more requests will arrive
	Efficient               // the size with the best throughput is reached
	Gathered                // the clients that it was held for have returned, or are not expected any longer
	Burst                   // the burst of requests that it was held for has arrived
	Shared                  // the remaining requests are for other instances
	Cut                     // several smaller batches are faster than one
	Retest                  // a size that is expected to be slower is measured again
	Padded                  // requests of other shapes were padded to join it
)

var reasons = [...]string{
	"alone", "full", "preferred", "unfit", "waited", "idle", "closing", "efficient", "gathered", "burst", "shared", "cut", "retest", "padded",
}

// NumReasons is the number of reasons.
const NumReasons = len(reasons)

func (r Reason) String() string { return reasons[r] }

// A Verdict is why a request was rejected.
type Verdict uint8

// Reasons to reject a request.
const (
	TooLarge   Verdict = iota // more rows than the maximum batch size, or none
	QueueFull                 // the queue is full
	TimedOut                  // the timeout of its level expired
	Expired                   // its own deadline passed
	Cancelled                 // its client left
	Closed                    // the core is closing
	Unbound                   // the instance that it is bound to was removed
	Late                      // it is predicted to miss its deadline or objective
	NoInstance                // all instances are down, and at least one cannot be started

	NoStart          // its sequence does not exist, and it does not start one
	Discontinued     // an earlier request of its sequence left without having run
	SequenceTimedOut // a request of its sequence timed out before the sequence got a slot
)

var verdicts = [...]string{
	"too large", "queue full", "timed out", "expired", "cancelled", "closed", "unbound", "would be late", "no instance",
	"no start", "discontinued", "sequence timed out",
}

func (v Verdict) String() string { return verdicts[v] }
