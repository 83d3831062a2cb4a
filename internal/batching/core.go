package batching

import "time"

// A Core decides for one model. It is not safe for concurrent use.
type Core struct {
	policy   Policy
	watcher  Watcher // the policy, if it is one
	learner  learner // the predictor, if it is one
	combines bool    // requests may share a batch
	cfg      Config

	lanes  []*lane // in the order in which they were made; some may be empty
	byKey  map[laneKey]*lane
	recent *lane // the one that was used last; nearly all models have only one

	waiting      int   // items in all lanes
	bound        int   // of those, items in lanes of one instance
	perLevel     []int // of those, items of each level
	rowsPerLevel []int
	dated        int   // of those, items that are due at some time
	sharing      Bound // of those, items of levels that share a bound
	arrivals     uint64
	alarms       alarms
	unanswered   Item // its order links are the ends of the list of unanswered items, if order is kept

	instances []*instance // by number, from 1
	parked    int
	awake     int
	running   int
	batches   uint64 // that ever ran
	serving   int    // instances that are there and shall not leave
	broken    int    // instances that are down and cannot be started
	ended     Time   // when the last batch did

	// For predictions.
	recently recent
	bounded  bounded
	ran      time.Duration // of all batches together
	changed  Time          // when their number did

	turns   int  // granted by the device and not used yet
	asked   bool // for a turn that has not come yet
	closing bool

	until Time // when a line that is not due yet may be

	// For the length of one Step.
	now Time
	out *Actions
}

// New returns a core without instances.
func New(cfg Config) *Core {
	c := &Core{policy: cfg.Policy, cfg: cfg, byKey: map[laneKey]*lane{}, until: Never}
	if c.policy == nil {
		c.policy = None{}
	}
	c.watcher, _ = c.policy.(Watcher)
	if len(c.cfg.Levels) == 0 {
		c.cfg.Levels, c.cfg.DefaultLevel = []Level{{}}, 1
	}
	_, alone := c.policy.(None)
	c.combines = !alone
	c.learner, _ = cfg.Predictor.(learner)
	c.perLevel, c.rowsPerLevel = make([]int, len(c.cfg.Levels)), make([]int, len(c.cfg.Levels))
	c.unanswered.orderPrev, c.unanswered.orderNext = &c.unanswered, &c.unanswered
	return c
}

// Waiting returns how many requests wait for an instance.
func (c *Core) Waiting() int { return c.waiting }

// Idle returns how many instances run nothing and may take a batch.
func (c *Core) Idle() int { return c.parked + c.awake }

// Running returns how many batches run.
func (c *Core) Running() int { return c.running }

// Step takes in what happened at now, and writes what is to be done about it to
// out, over what was there. Times must not run backwards from step to step.
func (c *Core) Step(now Time, ev Event, out *Actions) {
	out.List = out.List[:0]
	c.now, c.out = now, out
	c.expire()
	switch ev.Kind {
	case Wake:
	case Arrive:
		c.arrive(ev.Item)
	case Cancel:
		c.leave(ev.Item, Cancelled, 0)
	case Up:
		c.up(ev.Instance)
	case Take:
		c.take(c.instance(ev.Instance, awake))
	case Done:
		c.done(c.instance(ev.Instance, running))
	case Down:
		c.down(ev.Instance)
	case Broken:
		c.breakDown(ev.Instance)
	case Turn:
		c.turns++
		c.asked = false
	case Close:
		c.closing = true
	}
	c.dispatch()
	out.Wake = min(c.alarms.next(), c.until)
	c.out = nil
}

func (c *Core) do(a Action) { c.out.List = append(c.out.List, a) }
