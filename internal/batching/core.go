package batching

import "fmt"

// A Core decides for one model. It is not safe for concurrent use.
type Core struct {
	policy Policy
	cfg    Config

	lanes  []*lane // in the order in which they were made; some may be empty
	byKey  map[laneKey]*lane
	recent *lane // the one that was used last; nearly all models have only one

	waiting   int   // items in all lanes
	bound     int   // of those, items in lanes of one instance
	perLevel  []int // of those, items of each level
	arrivals  uint64
	alarms    alarms
	unordered Item // its order links are the ends of the list of unanswered items, if order is kept

	instances []*instance // by number, from 1
	parked    int
	awake     int
	running   int
	batches   uint64 // that ever ran

	turns   int  // granted by the device and not used yet
	asked   bool // for a turn that has not come yet
	closing bool

	until Time // when a line that is not due yet may be

	// For the length of one Step.
	now Time
	out *Actions
}

// An instance is a place where one batch can run at a time.
type instance struct {
	number      int
	state       instanceState
	leaving     bool
	batch       []*Item
	batchNumber uint64
	began       Time
	members     int // items of the batch whose clients still wait
}

type instanceState uint8

const (
	away instanceState = iota
	parked
	awake
	running
)

// New returns a core without instances.
func New(cfg Config) *Core {
	c := &Core{policy: cfg.Policy, cfg: cfg, byKey: map[laneKey]*lane{}, until: Never}
	if c.policy == nil {
		c.policy = None{}
	}
	if len(c.cfg.Levels) == 0 {
		c.cfg.Levels, c.cfg.DefaultLevel = []Level{{}}, 1
	}
	c.perLevel = make([]int, len(c.cfg.Levels))
	c.unordered.orderPrev, c.unordered.orderNext = &c.unordered, &c.unordered
	return c
}

// Waiting returns how many requests wait for an instance.
func (c *Core) Waiting() int { return c.waiting }

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
		c.leave(ev.Item, Cancelled)
	case Up:
		c.up(ev.Instance)
	case Take:
		c.take(c.instance(ev.Instance, awake))
	case Done:
		c.done(c.instance(ev.Instance, running))
	case Down:
		c.down(ev.Instance)
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

// Arriving and leaving.

func (c *Core) arrive(it *Item) {
	it.arrived = c.now
	it.level = c.levelOf(it)
	level := &c.cfg.Levels[it.level]
	switch {
	case c.closing:
		c.refuse(it, Refused)
		return
	case it.Rows < 1, c.cfg.MaxRows > 0 && it.Rows > c.cfg.MaxRows:
		c.refuse(it, TooLarge)
		return
	case it.Deadline != 0 && it.Deadline <= c.now:
		c.refuse(it, Expired)
		return
	case it.Instance != 0 && !c.serves(it.Instance):
		c.refuse(it, Unbound)
		return
	case level.MaxQueue > 0 && c.perLevel[it.level] >= level.MaxQueue:
		c.refuse(it, QueueFull)
		return
	}
	it.late, it.expires = false, Never
	if timeout := level.timeout(it); timeout > 0 {
		it.expires = c.now + timeout
	}
	it.state = waiting
	c.enqueue(it)
	c.alarms.set(it, min(it.expires, deadline(it)))
	if c.cfg.KeepOrder {
		last := c.unordered.orderPrev
		it.orderPrev, it.orderNext = last, &c.unordered
		last.orderNext, c.unordered.orderPrev = it, it
	}
}

func (c *Core) refuse(it *Item, v Verdict) {
	it.state = answered
	c.do(Action{Do: Answer, Item: it, Verdict: v})
}

func (c *Core) levelOf(it *Item) int {
	if it.Priority == 0 || it.Priority > uint64(len(c.cfg.Levels)) {
		return c.cfg.DefaultLevel - 1
	}
	return int(it.Priority) - 1
}

func deadline(it *Item) Time {
	if it.Deadline == 0 {
		return Never
	}
	return it.Deadline
}

func (c *Core) enqueue(it *Item) {
	c.arrivals++
	it.number = c.arrivals
	c.laneOf(it).push(it)
	c.waiting++
	c.perLevel[it.level]++
	if it.Instance != 0 {
		c.bound++
	}
}

func (c *Core) dequeue(it *Item) {
	it.lane.remove(it)
	c.waiting--
	c.perLevel[it.level]--
	if it.Instance != 0 {
		c.bound--
	}
}

// Lanes that are empty are kept for the next request of their shape, until there
// are so many that looking through them would cost.
const maxLanes = 32

func (c *Core) laneOf(it *Item) *lane {
	key := laneKey{it.Shape, it.Instance}
	if c.recent != nil && c.recent.key == key {
		return c.recent
	}
	l := c.byKey[key]
	if l == nil {
		if len(c.lanes) >= maxLanes {
			c.dropEmptyLanes()
		}
		l = &lane{key: key, levels: make([]level, len(c.cfg.Levels))}
		c.byKey[key] = l
		c.lanes = append(c.lanes, l)
	}
	c.recent = l
	return l
}

func (c *Core) dropEmptyLanes() {
	kept := c.lanes[:0]
	for _, l := range c.lanes {
		if l.items > 0 {
			kept = append(kept, l)
		} else {
			delete(c.byKey, l.key)
		}
	}
	clear(c.lanes[len(kept):])
	c.lanes = kept
}

// expire deals with the items whose timeouts and deadlines have come.
func (c *Core) expire() {
	for c.alarms.next() <= c.now {
		it := c.alarms[0]
		switch {
		case deadline(it) <= c.now:
			c.leave(it, Expired)
		case c.cfg.Levels[it.level].DelayLate:
			c.dequeue(it)
			it.late, it.expires = true, Never
			c.enqueue(it)
			c.alarms.set(it, deadline(it))
		default:
			c.leave(it, TimedOut)
		}
	}
}

// leave answers it without an outcome, wherever it is. An item that has its
// answer already is left alone: its client was slower than the answer.
func (c *Core) leave(it *Item, v Verdict) {
	switch it.state {
	case waiting:
		c.dequeue(it)
	case taken:
		in := it.running
		in.members--
		if in.members == 0 {
			c.do(Action{Do: Stop, Instance: in.number, Batch: in.batchNumber})
		}
	case finished:
	default:
		return
	}
	c.alarms.set(it, Never)
	it.state = answered
	c.do(Action{Do: Answer, Item: it, Verdict: v})
	if c.cfg.KeepOrder {
		unlinkOrder(it)
		c.deliverInOrder()
	}
}

// Instances.

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
	c.awake++
}

func (c *Core) down(number int) {
	in := c.instances[number-1]
	in.leaving = true
	if in.state == parked {
		c.parked--
		in.state = away
		c.do(Action{Do: Leave, Instance: number})
	}
	if c.bound > 0 {
		c.unbind(number)
	}
}

// unbind turns away those that only the given instance could have run.
func (c *Core) unbind(number int) {
	for _, l := range c.lanes {
		if l.key.instance == number {
			for it := l.first(); it != nil; it = l.first() {
				c.leave(it, Unbound)
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
	if line, d := c.decide(in.number); d.Take > 0 {
		c.run(in, line, d)
	}
}

func (c *Core) run(in *instance, line Line, d Decision) {
	in.batch = in.batch[:0]
	for it := line.First(); len(in.batch) < d.Take; {
		next := line.After(it)
		c.dequeue(it)
		it.state, it.running = taken, in
		c.alarms.set(it, deadline(it))
		in.batch = append(in.batch, it)
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
	c.do(Action{Do: Run, Instance: in.number, Items: in.batch, Batch: in.batchNumber, Why: d.Why})
}

func (c *Core) done(in *instance) {
	in.state = awake
	c.running--
	c.awake++
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
	for it := c.unordered.orderNext; it.state == finished; it = c.unordered.orderNext {
		unlinkOrder(it)
		c.deliver(it)
	}
}

func unlinkOrder(it *Item) {
	it.orderPrev.orderNext, it.orderNext.orderPrev = it.orderNext, it.orderPrev
	it.orderPrev, it.orderNext = nil, nil
}

// Deciding.

// dispatch calls an instance if a batch is due that nobody is coming for.
func (c *Core) dispatch() {
	c.until = Never
	if c.waiting > 0 && c.parked > 0 {
		c.callFor()
	}
	// A turn that nobody will use goes back at once: others wait for it.
	for c.turns > 0 && c.awake == 0 {
		c.turns--
		c.do(Action{Do: Yield})
	}
}

func (c *Core) callFor() {
	for _, in := range c.instances {
		if in.state != parked {
			continue
		}
		// Whoever is awake takes what is bound to nobody, and calls the next if
		// more is due. Only what is bound to this instance needs this instance.
		if c.awake > 0 && c.bound == 0 {
			return
		}
		if c.awake > 0 && !c.hasBound(in.number) {
			continue
		}
		_, d := c.decide(in.number)
		if d.Take > 0 {
			c.call(in)
		} else {
			c.until = min(c.until, d.Until)
		}
		if c.bound == 0 {
			return // the others would decide the same
		}
	}
}

func (c *Core) hasBound(number int) bool {
	for _, l := range c.lanes {
		if l.key.instance == number && l.items > 0 {
			return true
		}
	}
	return false
}

func (c *Core) call(in *instance) {
	if c.cfg.TakeTurns && c.turns == 0 {
		c.ask()
		return
	}
	in.state = awake
	c.parked--
	c.awake++
	c.do(Action{Do: Call, Instance: in.number})
}

func (c *Core) ask() {
	if !c.asked {
		c.asked = true
		c.do(Action{Do: Ask})
	}
}

// decide returns the line that the instance would take from now and what its
// policy says of it. If no line is due, the decision says until when.
func (c *Core) decide(number int) (Line, Decision) {
	if c.cfg.LanesApart {
		return c.decideApart(number)
	}
	var line Line
	var first *Item
	for _, l := range c.lanes {
		if l.items == 0 || l.key.instance != 0 && l.key.instance != number {
			continue
		}
		switch head := l.first(); {
		case first == nil:
			line.lane, first = l, head
		case before(head, first):
			line.lane, line.end, first = l, first, head
		case line.end == nil || before(head, line.end):
			line.end = head
		}
	}
	if first == nil {
		return line, Decision{Until: Never}
	}
	line.closing = c.closing
	return line, c.policy.Decide(c.now, line)
}

// decideApart asks the policy about each lane by itself, and takes the due one
// whose first item would run first.
func (c *Core) decideApart(number int) (Line, Decision) {
	var line Line
	best := Decision{Until: Never}
	for _, l := range c.lanes {
		if l.items == 0 || l.key.instance != 0 && l.key.instance != number {
			continue
		}
		alone := Line{lane: l, closing: c.closing}
		switch d := c.policy.Decide(c.now, alone); {
		case d.Take == 0:
			best.Until = min(best.Until, d.Until)
		case best.Take == 0 || before(l.first(), line.lane.first()):
			line, best = alone, Decision{Take: d.Take, Why: d.Why, Until: best.Until}
		}
	}
	return line, best
}
