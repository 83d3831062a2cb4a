package batching

import (
	"fmt"
	"time"
)

// An instance is a place where one batch can run at a time.
type instance struct {
	number      int
	state       instanceState
	leaving     bool
	broken      bool // it is down, and cannot be started
	batch       []*Item
	batchNumber uint64
	began       Time
	rows        int
	members     int           // items of the batch whose clients still wait
	ran         time.Duration // of all batches together, when it began
}

type instanceState uint8

const (
	away instanceState = iota
	parked
	awake
	running
)

func (c *Core) instance(number int, want instanceState) *instance {
	if number < 1 || number > len(c.instances) || c.instances[number-1].state != want {
		panic(fmt.Sprintf("batching: an event came out of turn for instance %d", number))
	}
	return c.instances[number-1]
}

// serves reports whether the instance takes batches, now or later.
func (c *Core) serves(number int) bool {
	return number <= len(c.instances) && c.instances[number-1].state != away && !c.instances[number-1].leaving
}

func (c *Core) up(number int) {
	for len(c.instances) < number {
		c.instances = append(c.instances, &instance{number: len(c.instances) + 1})
	}
	in := c.instance(number, away)
	in.state, in.leaving = awake, false
	if in.broken {
		in.broken = false
		c.broken--
	}
	c.awake++
	c.serving++
}

func (c *Core) down(number int) {
	in := c.instances[number-1]
	if !in.leaving {
		c.serving--
	}
	in.leaving = true
	if in.state == parked {
		c.parked--
		in.state = away
		c.do(Action{Do: Leave, Instance: number})
	}
	if c.bound > 0 {
		c.unbind(number)
	}
	c.abandonQueue()
}

func (c *Core) breakDown(number int) {
	if in := c.instances[number-1]; !in.broken {
		in.broken = true
		c.broken++
	}
	c.abandonQueue()
}

// abandoned reports whether no instance serves and at least one that is down cannot be
// started. Instances that are down for a moment, as a process that is being restarted
// is, do not count: requests wait for those.
func (c *Core) abandoned() bool { return c.serving == 0 && c.broken > 0 }

// abandonQueue turns away all that wait if the core is abandoned.
func (c *Core) abandonQueue() {
	if !c.abandoned() {
		return
	}
	for _, l := range c.lanes {
		for it := l.first(); it != nil; it = l.first() {
			c.leave(it, NoInstance, 0)
		}
	}
}

// unbind turns away those that only the given instance could have run.
func (c *Core) unbind(number int) {
	for _, l := range c.lanes {
		if l.key.instance == number {
			for it := l.first(); it != nil; it = l.first() {
				c.leave(it, Unbound, 0)
			}
		}
	}
}

func (c *Core) take(in *instance) {
	c.awake--
	if in.leaving {
		in.state = away
		c.do(Action{Do: Leave, Instance: in.number})
		return
	}
	in.state = parked
	c.parked++
	if c.waiting == 0 || c.cfg.TakeTurns && c.turns == 0 {
		return
	}
	for {
		line, d := c.decide(in.number)
		if d.Take == 0 {
			c.held(line, d)
			return
		}
		late, by := c.hopeless(line, d.Take)
		if late == nil {
			c.run(in, line, d)
			return
		}
		c.leave(late, Late, by) // and somebody else may take the place
	}
}

func (c *Core) run(in *instance, line Line, d Decision) {
	c.passed()
	in.batch, in.rows, in.ran = in.batch[:0], 0, c.ran
	for it := line.First(); len(in.batch) < d.Take; {
		next := line.After(it)
		c.dequeue(it)
		it.state, it.running = taken, in
		c.alarms.set(it, it.ends)
		in.batch = append(in.batch, it)
		in.rows += it.Rows
		it = next
	}
	in.members, in.began = len(in.batch), c.now
	c.batches++
	in.state, in.batchNumber = running, c.batches
	c.parked--
	c.running++
	if c.cfg.TakeTurns {
		c.turns--
	}
	exclusive := c.cfg.Active != nil && c.cfg.Active.Begin()
	c.do(Action{Do: Run, Instance: in.number, Items: in.batch, Batch: in.batchNumber, Why: d.Why, Exclusive: exclusive})
	if c.watcher != nil {
		c.watcher.Began(c.now, &c.out.List[len(c.out.List)-1])
	}
}

func (c *Core) done(in *instance) {
	c.passed()
	c.learn(in)
	c.ended = c.now
	in.state = awake
	c.running--
	c.awake++
	if c.cfg.Active != nil {
		c.cfg.Active.End()
	}
	if c.watcher != nil {
		c.watcher.Ended(c.now, in.number, in.batch, in.members == 0)
	}
	if c.cfg.TakeTurns {
		// Ask for the next turn before this one goes back. If it asked only when
		// it takes, the device would find the others alone and never weigh them
		// against this model.
		if _, d := c.decide(in.number); d.Take > 0 && !in.leaving {
			c.ask()
		}
		c.do(Action{Do: Yield, Ran: c.now - in.began})
	}
	for _, it := range in.batch {
		it.running = nil
		switch {
		case it.state != taken: // answered while the batch ran
		case c.cfg.KeepOrder:
			it.state = finished
		default:
			c.deliver(it)
		}
	}
	if c.cfg.KeepOrder {
		c.deliverInOrder()
	}
}

func (c *Core) deliver(it *Item) {
	c.alarms.set(it, Never)
	it.state = answered
	c.do(Action{Do: Deliver, Item: it})
}

// deliverInOrder delivers the outcomes that no earlier request holds up.
func (c *Core) deliverInOrder() {
	for it := c.unanswered.orderNext; it.state == finished; it = c.unanswered.orderNext {
		unlinkOrder(it)
		c.deliver(it)
	}
}

func unlinkOrder(it *Item) {
	it.orderPrev.orderNext, it.orderNext.orderPrev = it.orderNext, it.orderPrev
	it.orderPrev, it.orderNext = nil, nil
}
