package batching

import "time"

// A Core makes the batching decisions for one model; see the package documentation. It is
// not safe for concurrent use.
type Core struct {
	policy   Policy
	watcher  Watcher // the policy, if it is a Watcher
	learner  learner // the predictor, if it is a learner
	padder   Padder  // the policy, if it is a Padder
	combines bool    // requests may share a batch
	cfg      Config

	lanes    []*lane // in the order of creation; some may be empty
	byKey    map[laneKey]*lane
	lastLane *lane   // the lane that was used last; nearly all models have only one
	spare    []*lane // dropped lanes, for new ones

	waiting      int   // items in all lanes
	boundItems   int   // waiting items that are bound to an instance
	perLevel     []int // waiting items by level
	rowsPerLevel []int
	tenants      []tenantQueues // by level
	withDeadline int            // waiting items that are due at some time
	shared       Bound          // waiting items of levels that share Config.Shared
	sequence     uint64
	alarms       alarms
	unanswered   Item // sentinel of the list of unanswered items, if KeepOrder is set

	instances []*instance // by number, from 1
	parked    int
	awake     int
	running   int
	batches   uint64 // number of batches ever run
	serving   int    // instances that are up and not leaving
	broken    int    // instances that are down and cannot be started
	lastEnded Time   // when the last batch ended

	paddedUntil uint64 // the last padded batch was less than paddedBatches before this one

	// For predictions.
	arrivalRate recentArrivals
	rowLimit    rowLimitCache
	batchTime   time.Duration // total time of all batches
	lastChange  Time          // when the number of running batches last changed

	turns         int  // turns granted by the device and not used yet
	turnRequested bool // a requested turn was not granted yet
	closing       bool // batches are not held any longer
	closed        bool // no more requests are accepted

	nextDecision Time // when to ask the policy again

	// Set only during a Step.
	now Time
	out *Actions
}

// New returns a core without instances.
func New(cfg Config) *Core {
	c := &Core{policy: cfg.Policy, cfg: cfg, byKey: map[laneKey]*lane{}, nextDecision: Never}
	if c.policy == nil {
		c.policy = None{}
	}
	c.watcher, _ = c.policy.(Watcher)
	c.padder, _ = c.policy.(Padder)
	if len(c.cfg.Levels) == 0 {
		c.cfg.Levels, c.cfg.DefaultLevel = []Level{{}}, 1
	}
	_, never := c.policy.(None)
	c.combines = !never
	c.learner, _ = cfg.Predictor.(learner)
	c.perLevel, c.rowsPerLevel = make([]int, len(c.cfg.Levels)), make([]int, len(c.cfg.Levels))
	c.tenants = make([]tenantQueues, len(c.cfg.Levels))
	for i := range c.tenants {
		c.tenants[i].credit = creditBatches * uint64(max(cfg.MaxRows, 1)) * tagUnit
	}
	c.unanswered.orderPrev, c.unanswered.orderNext = &c.unanswered, &c.unanswered
	return c
}

// Waiting returns the number of queued requests.
func (c *Core) Waiting() int { return c.waiting }

// Idle returns the number of instances that can take a batch.
func (c *Core) Idle() int { return c.parked + c.awake }

// Running returns the number of running batches.
func (c *Core) Running() int { return c.running }

// Step handles an event that happened at now, and replaces the contents of out by the
// resulting actions. Times must not decrease from step to step.
func (c *Core) Step(now Time, ev Event, out *Actions) {
	out.List = out.List[:0]
	c.now, c.out = now, out
	c.expire()
	switch ev.Kind {
	case Wake:
	case Arrive:
		c.arrive(ev.Item)
	case Cancel:
		c.answer(ev.Item, Cancelled, 0)
	case Up:
		c.up(ev.Instance)
	case Take:
		c.take(c.instance(ev.Instance, awake))
	case Done:
		c.done(c.instance(ev.Instance, running))
	case Down:
		c.down(ev.Instance)
	case Broken:
		c.markBroken(ev.Instance)
	case Turn:
		c.turns++
		c.turnRequested = false
	case Flush:
		c.closing = true
	case Close:
		c.closing, c.closed = true, true
	}
	c.dispatch()
	out.Wake = min(c.alarms.next(), c.nextDecision)
	c.out = nil
}

func (c *Core) emit(a Action) { c.out.List = append(c.out.List, a) }
