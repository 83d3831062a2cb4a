package batching

// dispatch unparks an instance if a batch is due that no awake instance will take.
func (c *Core) dispatch() {
	c.nextDecision = Never
	if c.waiting > 0 && c.parked > 0 {
		c.unparkInstances()
	}
	// Return unused turns immediately: other models wait for them.
	for c.turns > 0 && c.awake == 0 {
		c.turns--
		c.emit(Action{Kind: Yield})
	}
}

func (c *Core) unparkInstances() {
	for _, in := range c.instances {
		if in.state != parked {
			continue
		}
		// An awake instance takes the items that are not bound, and unparks the next instance
		// if more are due. Only items that are bound to this instance need it.
		if c.awake > 0 && c.boundItems == 0 {
			return
		}
		if c.awake > 0 && !c.hasBound(in.number) {
			continue
		}
		line, d := c.decide(in.number)
		if d.Take > 0 {
			c.unpark(in)
		} else {
			c.held(line, d)
			c.nextDecision = min(c.nextDecision, d.Until)
			if d.Recheck > 0 {
				c.nextDecision = min(c.nextDecision, d.Recheck)
			}
		}
		if c.boundItems == 0 {
			return // the decision is the same for all other instances
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

func (c *Core) unpark(in *instance) {
	if c.cfg.TakeTurns && c.turns == 0 {
		c.requestTurn()
		return
	}
	in.state = awake
	c.parked--
	c.awake++
	c.emit(Action{Kind: Unpark, Instance: in.number})
}

func (c *Core) requestTurn() {
	if !c.turnRequested {
		c.turnRequested = true
		c.emit(Action{Kind: Ask, Due: c.firstDue()})
	}
}

// firstDue returns when the first of the waiting requests is due; zero if the model has no
// objective, or nothing can be predicted. Deadlines do not count: clients set them to give
// up, and not because their requests may wait until then.
func (c *Core) firstDue() Time {
	if c.cfg.Objective == 0 {
		return 0
	}
	due := Never
	for _, l := range c.lanes {
		if l.items > 0 {
			due = min(due, l.first().due)
		}
	}
	if due == Never {
		return 0
	}
	return due
}

// held reports to the policy that the core followed its decision to wait. An empty line
// was never shown to the policy.
func (c *Core) held(line Line, d Decision) {
	if c.watcher != nil && line.lane != nil {
		c.watcher.Held(c.now, d)
	}
}

// decide returns the line that the instance would take from now, and the policy's
// decision for it. If no line is due, the decision says when to ask again.
func (c *Core) decide(number int) (Line, Decision) {
	if c.cfg.OvertakeOtherShapes {
		return c.decidePerLane(number)
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
		case runsBefore(head, first):
			line.lane, line.end, first = l, first, head
		case line.end == nil || runsBefore(head, line.end):
			line.end = head
		}
	}
	if first == nil {
		return line, Decision{Until: Never}
	}
	line.closing = c.closing
	d := c.policy.Decide(c.now, line)
	if c.withDeadline > 0 {
		d = c.meetDeadlines(line, d)
	}
	return line, d
}

// decidePerLane asks the policy about one lane after the other, in the order in which
// their first items would run. It returns the first lane that is due, or else the one that
// is due next.
func (c *Core) decidePerLane(number int) (Line, Decision) {
	var line Line
	best, recheck := Decision{Until: Never}, Never
	for l := c.laneAfter(nil, number); l != nil; {
		next := c.laneAfter(l, number)
		whole := Line{lane: l, closing: c.closing, deferrable: c.deferrable(l, next)}
		d := c.policy.Decide(c.now, whole)
		if c.withDeadline > 0 {
			d = c.meetDeadlines(whole, d)
		}
		if d.Take > 0 {
			return whole, d
		}
		if d.Recheck > 0 {
			recheck = min(recheck, d.Recheck)
		}
		if line.lane == nil || d.Until < best.Until {
			line, best = whole, d
		}
		l = next
	}
	best.Recheck = recheck
	return line, best
}

// laneAfter returns the lane whose first item runs next after that of the given lane, or
// the first of all if that is nil, among the lanes that the instance may take from.
func (c *Core) laneAfter(after *lane, number int) *lane {
	var next *lane
	for _, l := range c.lanes {
		if l.items == 0 || l.key.instance != 0 && l.key.instance != number {
			continue
		}
		if head := l.first(); (after == nil || runsBefore(after.first(), head)) && (next == nil || runsBefore(head, next.first())) {
			next = l
		}
	}
	return next
}

// maxPassed is how many batches of other lanes may run in place of one that is held.
const maxPassed = 2

// overtaken reports whether as many batches have run in place of the lane as may. A lane that is
// bound to an instance is not overtaken: most batches that run before it could not run there.
func (l *lane) overtaken() bool { return l.passed >= maxPassed && l.key.instance == 0 }

// deferrable reports whether the lane can be held without leaving an instance idle: the
// next lane runs in its place. A lane is not passed by one with fewer items, which would gain
// more by waiting itself, nor by one of lower priority, nor too often, nor if that could make
// its first item late.
func (c *Core) deferrable(l, next *lane) bool {
	if next == nil || next.items < l.items || l.passed >= maxPassed {
		return false
	}
	head, other := l.first(), next.first()
	return head.level == other.level && head.late == other.late && c.canWaitForOther(head)
}

// passLanes counts that a batch of the given lane runs before earlier ones of other lanes.
func (c *Core) passLanes(taken *lane, first *Item) {
	for _, l := range c.lanes {
		if l != taken && l.items > 0 && runsBefore(l.first(), first) {
			l.passed++
		}
	}
}
