package batching

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
		line, d := c.decide(in.number)
		if d.Take > 0 {
			c.call(in)
		} else {
			c.held(line, d)
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

// held tells the policy that its decision to wait was followed. Where there was no
// line it was not asked.
func (c *Core) held(line Line, d Decision) {
	if c.watcher != nil && line.lane != nil {
		c.watcher.Held(c.now, d)
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
	d := c.policy.Decide(c.now, line)
	if c.dated > 0 {
		d = c.inTime(line, d)
	}
	return line, d
}

// decideApart asks the policy about each lane by itself, and takes the due one
// whose first item would run first, or else the one that is due next.
func (c *Core) decideApart(number int) (Line, Decision) {
	var line Line
	best := Decision{Until: Never}
	for _, l := range c.lanes {
		if l.items == 0 || l.key.instance != 0 && l.key.instance != number {
			continue
		}
		alone := Line{lane: l, closing: c.closing}
		d := c.policy.Decide(c.now, alone)
		if c.dated > 0 {
			d = c.inTime(alone, d)
		}
		// A decision to take has no Until, and so is sooner than any to wait.
		if line.lane == nil || d.Until < best.Until || d.Take > 0 && best.Take > 0 && before(l.first(), line.lane.first()) {
			line, best = alone, d
		}
	}
	return line, best
}
