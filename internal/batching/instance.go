package batching

import (
	"fmt"
	"time"
)

// An instance runs one batch at a time.
type instance struct {
	number           int
	state            instanceState
	leaving          bool
	broken           bool // it is down and cannot be started
	batch            []*Item
	batchNumber      uint64
	began            Time
	rows             int
	elements         int64         // of a row of the batch
	waitingClients   int           // items of the batch that are not answered yet
	batchTimeAtStart time.Duration // Core.batchTime when the batch began
}

type instanceState uint8

const (
	offline instanceState = iota
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

// serves reports whether the instance is up and not leaving.
func (c *Core) serves(number int) bool {
	return number <= len(c.instances) && c.instances[number-1].state != offline && !c.instances[number-1].leaving
}

func (c *Core) up(number int) {
	for len(c.instances) < number {
		c.instances = append(c.instances, &instance{number: len(c.instances) + 1})
	}
	in := c.instance(number, offline)
	in.state, in.leaving = awake, false
	c.clearBroken(in)
	c.awake++
	c.serving++
}

func (c *Core) down(number int) {
	in := c.instances[number-1]
	if !in.leaving {
		c.serving--
	}
	in.leaving = true
	c.clearBroken(in)
	if in.state == parked {
		c.parked--
		in.state = offline
		c.emit(Action{Kind: Leave, Instance: number})
	}
	if c.boundItems > 0 {
		c.answerBound(number)
	}
	c.answerAllIfUnservable()
}

// clearBroken marks an instance as one that requests wait for, or that is gone for good.
func (c *Core) clearBroken(in *instance) {
	if in.broken {
		in.broken = false
		c.broken--
	}
}

func (c *Core) markBroken(number int) {
	if in := c.instances[number-1]; !in.broken {
		in.broken = true
		c.broken++
	}
	c.answerAllIfUnservable()
}

// unservable reports whether no instance is up and at least one that is down cannot be
// started. Requests wait for instances that are down only for a moment, such as a process
// that is being restarted.
func (c *Core) unservable() bool { return c.serving == 0 && c.broken > 0 }

// answerAllIfUnservable answers all queued items with NoInstance if the core is
// unservable.
func (c *Core) answerAllIfUnservable() {
	if !c.unservable() {
		return
	}
	for _, l := range c.lanes {
		for it := l.first(); it != nil; it = l.first() {
			c.answer(it, NoInstance, 0)
		}
	}
}

// answerBound answers the queued items that are bound to the given instance with Unbound.
func (c *Core) answerBound(number int) {
	for _, l := range c.lanes {
		if l.key.instance == number {
			for it := l.first(); it != nil; it = l.first() {
				c.answer(it, Unbound, 0)
			}
		}
	}
}

func (c *Core) take(in *instance) {
	c.awake--
	if in.leaving {
		in.state = offline
		c.emit(Action{Kind: Leave, Instance: in.number})
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
		late, by := c.firstLate(line, d.Take)
		if late == nil {
			c.run(in, line, d)
			return
		}
		c.answer(late, Late, by) // another item may take its place in the batch
	}
}

func (c *Core) run(in *instance, line Line, d Decision) {
	c.addBatchTime()
	in.batch, in.rows, in.elements, in.batchTimeAtStart = in.batch[:0], 0, 0, c.batchTime
	line.lane.passed = 0
	if c.cfg.OvertakeOtherShapes && line.lane.items < c.waiting {
		c.passLanes(line.lane, line.First())
	}
	for it := line.First(); len(in.batch) < d.Take; it = line.After(it) {
		in.batch = append(in.batch, it)
	}
	if c.mayPad(line, d.Take) {
		d.Reason = c.pad(in, line.lane, d.Reason)
	}
	for i, it := range in.batch {
		if i >= d.Take {
			it.lane.passed = 0
		}
		c.dequeue(it, true)
		it.state, it.running = inBatch, in
		c.alarms.set(it, it.endsAt)
		in.rows += it.Rows
		in.elements = max(in.elements, it.Elements)
	}
	in.waitingClients, in.began = len(in.batch), c.now
	c.batches++
	if len(in.batch) > d.Take {
		c.paddedUntil = c.batches + paddedBatches
	}
	in.state, in.batchNumber = running, c.batches
	c.parked--
	c.running++
	if c.cfg.TakeTurns {
		c.turns--
	}
	exclusive := c.cfg.ActiveBatches != nil && c.cfg.ActiveBatches.Begin()
	c.emit(Action{Kind: Run, Instance: in.number, Items: in.batch, Batch: in.batchNumber, Reason: d.Reason, Exclusive: exclusive})
	if c.watcher != nil {
		c.watcher.Began(c.now, &c.out.List[len(c.out.List)-1])
	}
}

func (c *Core) done(in *instance) {
	c.addBatchTime()
	c.learn(in)
	c.lastEnded = c.now
	in.state = awake
	c.running--
	c.awake++
	if c.cfg.ActiveBatches != nil {
		c.cfg.ActiveBatches.End()
	}
	if c.watcher != nil {
		c.watcher.Ended(c.now, in.number, in.batch, in.waitingClients == 0)
	}
	if c.cfg.TakeTurns {
		// Request the next turn before returning this one. If it were requested at the next
		// Take, the device would only see the requests of other models, and never weigh them
		// against this one.
		if _, d := c.decide(in.number); d.Take > 0 && !in.leaving {
			c.requestTurn()
		}
		c.emit(Action{Kind: Yield, Ran: c.now - in.began})
	}
	for _, it := range in.batch {
		it.running = nil
		switch {
		case it.state != inBatch: // answered while the batch ran
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
	c.emit(Action{Kind: Deliver, Item: it})
}

// deliverInOrder delivers the results that no earlier request blocks.
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
