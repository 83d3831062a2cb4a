// Package batching decides which waiting requests run now, and in which batches.
//
// A [Core] is a state machine for one model. The caller reports what happened and when,
// and carries out the resulting actions:
//
//	core.Step(now, batching.Event{Kind: batching.Arrive, Item: item}, &out)
//	for _, a := range out.List {
//		carryOut(a)
//	}
//	callAgainAt(out.Wake)
//
// It has no goroutine, clock, channel or lock, and does not allocate once it has
// seen its largest load. So the scheduler, the simulator, the fuzzer and the
// scripts in testdata run the same code, and get the same results.
//
// # Queues
//
// Waiting requests are queued in lanes: one for each shape whose requests may share a
// batch, and one for each instance that requests are bound to. A lane is ordered by
// priority, then by the shares of tenants that compete, and then by arrival. A [Policy]
// looks at a lane and decides how many of its first requests run as one batch now, or until
// when to wait.
//
// # Instances pull
//
// An idle instance is parked. When a batch is due, the core unparks one instance.
// When that instance is awake, it takes the batch. Only then are the requests of the
// batch chosen, so requests that arrive in between join it. The instance that took a
// batch unparks the next instance if more requests are due.
//
//	         Up               Unpark              Run
//	(absent) ──▶ awake ◀────── parked ◀──┐    ┌──────▶ running
//	              │  ▲                   │    │           │
//	              │  └───────────────────┼────┼── Done ───┘
//	              └── Take ──────────────┴────┘
//
// # Sequences
//
// [Sequences] is a core for models that keep a state from request to request. It binds each
// sequence to a slot of an instance, and gives the core behind it one request of a sequence
// at a time.
//
// # Late requests
//
// With a [Predictor], the core predicts when a request will be answered, and refuses
// requests that would be late: most of them when they arrive, and those for which the
// prediction was wrong when a batch is formed. docs/explanation/service-levels.md has the rules.
//
// # Ownership
//
// An [Item] belongs to the core from its Arrive until a Deliver or a Reject names it.
// An item that is answered while its batch still runs, because its client left or its
// deadline passed, stays in that batch and is released when the batch is Done.
package batching
