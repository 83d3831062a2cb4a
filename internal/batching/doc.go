// Package batching decides which waiting requests run now, and how many
// together.
//
// A [Core] is a state machine for one model. The caller tells it what happened
// and when, and carries out what it answers:
//
//	core.Step(now, batching.Event{Kind: batching.Arrive, Item: item}, &out)
//	for _, a := range out.List {
//		carryOut(a)
//	}
//	callAgainAt(out.Wake)
//
// It has no goroutine, clock, channel or lock, and does not allocate once it has
// seen its largest load. So the scheduler, the simulator, the fuzzer and the
// scripts in testdata run the same code, and get the same answers.
//
// # Who waits where
//
// Waiting requests stand in lanes: one for each shape that may share a batch,
// and one for each instance that requests are bound to. Within a lane they stand
// by priority, and then in the order of their arrival. A [Policy] looks at a lane
// and says how many of its first requests go together now, or until when to wait.
//
// # Instances pull
//
// An instance that has nothing to do is parked. When a batch is due, the core
// calls one parked instance, and the instance, once it is awake, takes: only
// then is it settled who is in the batch. Whatever arrives in between joins it.
// The instance that took calls the next one if more is due.
//
//	         Up                Call               Run
//	(absent) ──▶ awake ◀────── parked ◀──┐    ┌──────▶ running
//	              │  ▲                   │    │           │
//	              │  └───────────────────┼────┼── Done ───┘
//	              └── Take ──────────────┴────┘
//
// # Who would be late
//
// With a [Predictor] the core knows about when a request will be answered, and turns
// away who would be late: most of them when they arrive, and those with whom it went
// otherwise than predicted when a batch is formed. docs/service-levels.md has the
// rules.
//
// # Who owns what
//
// An [Item] belongs to the core from its Arrive until an Answer or a Deliver
// names it. One that is answered while its batch still runs (its client left, or
// its deadline passed) stays in that batch, and is let go when the batch is Done.
package batching
