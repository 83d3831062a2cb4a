package batching

import "time"

func (c *Core) arrive(it *Item) {
	it.arrived, it.late = c.now, false
	it.level = c.levelOf(it)
	level := &c.cfg.Levels[it.level]
	var displaced *Item
	it.endsAt = level.ends(it, c.now)
	switch {
	case c.closed:
		c.reject(it, Closed)
		return
	case it.Rows < 1, c.cfg.MaxRows > 0 && it.Rows > c.cfg.MaxRows:
		c.reject(it, TooLarge)
		return
	case it.endsAt <= c.now:
		c.reject(it, Expired)
		return
	case it.Instance != 0 && !c.serves(it.Instance):
		c.reject(it, Unbound)
		return
	case c.unservable():
		c.reject(it, NoInstance)
		return
	case c.full(level, it):
		if displaced = c.displaced(level, it); displaced == nil {
			c.rejectWithRetry(it, QueueFull, c.queueTime(it))
			return
		}
	}
	c.arrivalRate.note(c.now, it.Rows)
	it.due = c.dueAt(it)
	if by, late := c.tooLate(it); late {
		c.rejectWithRetry(it, Late, by)
		return
	}
	if displaced != nil {
		c.answer(displaced, QueueFull, c.queueTime(displaced))
	}
	it.late, it.expiresAt = false, Never
	if timeout := level.timeout(it); timeout > 0 {
		it.expiresAt = after(c.now, timeout)
	}
	it.state = waiting
	c.enqueue(it)
	c.alarms.set(it, min(it.expiresAt, it.endsAt))
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
	if !level.UseSharedBound {
		return level.MaxQueue > 0 && c.perLevel[it.level] >= level.MaxQueue
	}
	bound, queued := c.cfg.Shared, c.shared
	return bound.Requests > 0 && queued.Requests >= bound.Requests ||
		bound.Bytes > 0 && queued.Requests > 0 && queued.Bytes+it.Bytes > bound.Bytes
}

func (c *Core) reject(it *Item, v Verdict) { c.rejectWithRetry(it, v, 0) }

// rejectWithRetry rejects it, and advises the client to retry after the given time.
func (c *Core) rejectWithRetry(it *Item, v Verdict, retry time.Duration) {
	it.state = answered
	c.emit(Action{Kind: Reject, Item: it, Verdict: v, RetryAfter: retry})
}

func (c *Core) levelOf(it *Item) int {
	if it.Priority == 0 || it.Priority > uint64(len(c.cfg.Levels)) {
		return c.cfg.DefaultLevel - 1
	}
	return int(it.Priority) - 1
}

func (c *Core) enqueue(it *Item) {
	c.sequence++
	it.sequence = c.sequence
	c.tenants[it.level].add(it, c.tenantOf(it))
	c.laneOf(it).push(it)
	c.waiting++
	c.perLevel[it.level]++
	c.rowsPerLevel[it.level] += it.Rows
	if it.due != Never {
		c.withDeadline++
	}
	if c.cfg.Levels[it.level].UseSharedBound {
		c.shared.Requests++
		c.shared.Bytes += it.Bytes
	}
	if it.Instance != 0 {
		c.boundItems++
	}
}

// dequeue removes it from the queue, because it runs now, or leaves without running.
func (c *Core) dequeue(it *Item, runs bool) {
	it.lane.remove(it)
	c.tenants[it.level].remove(it, runs)
	c.waiting--
	c.perLevel[it.level]--
	c.rowsPerLevel[it.level] -= it.Rows
	if it.due != Never {
		c.withDeadline--
	}
	if c.cfg.Levels[it.level].UseSharedBound {
		c.shared.Requests--
		c.shared.Bytes -= it.Bytes
	}
	if it.Instance != 0 {
		c.boundItems--
	}
}

// maxLanes is the number of lanes at which empty ones are dropped. Up to that they are
// kept for the next request of their shape; more would be slow to search.
const maxLanes = 32

func (c *Core) laneOf(it *Item) *lane {
	key := laneKey{it.Shape, it.Instance}
	if c.lastLane != nil && c.lastLane.key == key {
		return c.lastLane
	}
	l := c.byKey[key]
	if l == nil {
		if len(c.lanes) >= maxLanes {
			c.dropEmptyLanes()
		}
		l = c.newLane(key)
		c.byKey[key] = l
		c.lanes = append(c.lanes, l)
	}
	c.lastLane = l
	return l
}

func (c *Core) newLane(key laneKey) *lane {
	if n := len(c.spare); n > 0 {
		l := c.spare[n-1]
		c.spare = c.spare[:n-1]
		l.key = key
		return l
	}
	return &lane{key: key, levels: make([]level, len(c.cfg.Levels))}
}

func (c *Core) dropEmptyLanes() {
	kept := c.lanes[:0]
	for _, l := range c.lanes {
		if l.items > 0 {
			kept = append(kept, l)
		} else {
			delete(c.byKey, l.key)
			l.passed = 0
			c.spare = append(c.spare, l)
		}
	}
	clear(c.lanes[len(kept):])
	c.lanes = kept
}

// expire handles the items whose timeout or deadline has passed.
func (c *Core) expire() {
	for c.alarms.next() <= c.now {
		it := c.alarms[0]
		switch {
		case it.endsAt <= c.now:
			c.answer(it, Expired, 0)
		case c.cfg.Levels[it.level].DelayOnTimeout:
			c.dequeue(it, false)
			it.late, it.expiresAt = true, Never
			c.enqueue(it)
			c.alarms.set(it, it.endsAt)
		default:
			c.answer(it, TimedOut, 0)
		}
	}
}

// answer answers it without a result in any state, with a time to retry if that is known.
// It does nothing if the item was answered already: a cancellation may come after the
// answer.
func (c *Core) answer(it *Item, v Verdict, retry time.Duration) {
	switch it.state {
	case waiting:
		c.dequeue(it, false)
		if c.watcher != nil {
			c.watcher.Left(c.now, it)
		}
	case inBatch:
		in := it.running
		in.waitingClients--
		if in.waitingClients == 0 {
			c.emit(Action{Kind: Stop, Instance: in.number, Batch: in.batchNumber})
		}
	case finished:
	default:
		return
	}
	c.alarms.set(it, Never)
	it.state = answered
	c.emit(Action{Kind: Reject, Item: it, Verdict: v, RetryAfter: retry})
	if c.cfg.KeepOrder {
		unlinkOrder(it)
		c.deliverInOrder()
	}
}
