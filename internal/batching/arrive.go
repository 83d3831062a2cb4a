package batching

import "time"

func (c *Core) arrive(it *Item) {
	it.arrived = c.now
	it.level = c.levelOf(it)
	level := &c.cfg.Levels[it.level]
	it.ends = level.ends(it, c.now)
	switch {
	case c.closing:
		c.refuse(it, Refused)
		return
	case it.Rows < 1, c.cfg.MaxRows > 0 && it.Rows > c.cfg.MaxRows:
		c.refuse(it, TooLarge)
		return
	case it.ends <= c.now:
		c.refuse(it, Expired)
		return
	case it.Instance != 0 && !c.serves(it.Instance):
		c.refuse(it, Unbound)
		return
	case c.abandoned():
		c.refuse(it, NoInstance)
		return
	case c.full(level, it):
		c.refuseFor(it, QueueFull, c.untilRoom(it))
		return
	}
	c.recently.note(c.now, it.Rows)
	it.due = c.dueAt(it)
	if by, late := c.tooLate(it); late {
		c.refuseFor(it, Late, by)
		return
	}
	it.late, it.expires = false, Never
	if timeout := level.timeout(it); timeout > 0 {
		it.expires = c.now + timeout
	}
	it.state = waiting
	c.enqueue(it)
	c.alarms.set(it, min(it.expires, it.ends))
	if c.watcher != nil {
		c.watcher.Arrived(c.now, it)
	}
	if c.cfg.KeepOrder {
		last := c.unanswered.orderPrev
		it.orderPrev, it.orderNext = last, &c.unanswered
		last.orderNext, c.unanswered.orderPrev = it, it
	}
}

// full reports whether the queue of a level has no room for it.
func (c *Core) full(level *Level, it *Item) bool {
	if !level.Shares {
		return level.MaxQueue > 0 && c.perLevel[it.level] >= level.MaxQueue
	}
	most, now := c.cfg.Shared, c.sharing
	return most.Requests > 0 && now.Requests >= most.Requests ||
		most.Bytes > 0 && now.Requests > 0 && now.Bytes+it.Bytes > most.Bytes
}

func (c *Core) refuse(it *Item, v Verdict) { c.refuseFor(it, v, 0) }

// refuseFor refuses it, with the advice to come back after so long.
func (c *Core) refuseFor(it *Item, v Verdict, retry time.Duration) {
	it.state = answered
	c.do(Action{Do: Answer, Item: it, Verdict: v, RetryAfter: retry})
}

func (c *Core) levelOf(it *Item) int {
	if it.Priority == 0 || it.Priority > uint64(len(c.cfg.Levels)) {
		return c.cfg.DefaultLevel - 1
	}
	return int(it.Priority) - 1
}

func (c *Core) enqueue(it *Item) {
	c.arrivals++
	it.number = c.arrivals
	c.laneOf(it).push(it)
	c.waiting++
	c.perLevel[it.level]++
	c.rowsPerLevel[it.level] += it.Rows
	if it.due != Never {
		c.dated++
	}
	if c.cfg.Levels[it.level].Shares {
		c.sharing.Requests++
		c.sharing.Bytes += it.Bytes
	}
	if it.Instance != 0 {
		c.bound++
	}
}

func (c *Core) dequeue(it *Item) {
	it.lane.remove(it)
	c.waiting--
	c.perLevel[it.level]--
	c.rowsPerLevel[it.level] -= it.Rows
	if it.due != Never {
		c.dated--
	}
	if c.cfg.Levels[it.level].Shares {
		c.sharing.Requests--
		c.sharing.Bytes -= it.Bytes
	}
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
		case it.ends <= c.now:
			c.leave(it, Expired, 0)
		case c.cfg.Levels[it.level].DelayLate:
			c.dequeue(it)
			it.late, it.expires = true, Never
			c.enqueue(it)
			c.alarms.set(it, it.ends)
		default:
			c.leave(it, TimedOut, 0)
		}
	}
}

// leave answers it without an outcome, wherever it is, with the advice to come back
// after retry, if that is known. An item that has its answer already is left alone:
// its client was slower than the answer.
func (c *Core) leave(it *Item, v Verdict, retry time.Duration) {
	switch it.state {
	case waiting:
		c.dequeue(it)
		if c.watcher != nil {
			c.watcher.Left(c.now, it)
		}
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
	c.do(Action{Do: Answer, Item: it, Verdict: v, RetryAfter: retry})
	if c.cfg.KeepOrder {
		unlinkOrder(it)
		c.deliverInOrder()
	}
}
