package batching

// Tenants share the queue of a model by weighted start-time fair queueing. Each level has a
// virtual clock. A request of a tenant starts, in virtual time, when the tenant's previous
// request ends, but not long before the clock; it ends after its rows divided by the tenant's
// weight. Requests of one level run in the order of their starts, and the clock is the start
// of the request that ran last.
//
// So tenants that wait get rows in proportion to their weights, whatever they send. The share
// of a tenant that is idle goes to the others. It gets credit for that, but of some batches
// only: without any, one that sends its share at random times would wait longer beside
// one that sends more than beside one that does not, because it could not make up for the
// moments at which it had nothing to run. With a single tenant the order is that of arrival.
//
// A request that leaves the queue without running was not served: the requests behind it
// move to the time that it leaves free. That is done once for several requests, see
// maxUnserved.

const (
	// tagUnit is the virtual time of a row of a tenant of weight 1.
	tagUnit = 1 << 16
	// creditBatches is the credit of a tenant that was idle, in batches.
	creditBatches = 2
	// A tenant's requests get new starts when those that left without running are more than
	// this part of those that wait: moving them takes a step each, so a request that leaves
	// costs at most this number of steps.
	maxUnserved = 32
)

// tenantQueues are the tenants of one level.
type tenantQueues struct {
	credit uint64        // virtual time that a tenant may have been idle for, and is served for later
	clock  uint64        // start of the request that ran last
	shares []tenantShare // by number of the tenant
	active []int         // tenants with waiting items
}

// A tenantShare is what one tenant has waiting in a level.
type tenantShare struct {
	next        uint64 // when its next request starts, in virtual time
	waiting     uint64 // virtual time of its waiting items
	unserved    uint64 // virtual time of items that left without running, still in the starts of those behind them
	requests    int
	bytes       int64
	first, last *Item // its waiting items, in the order of arrival
	slot        int   // its position in active, from 1; 0 means none
}

// virtual returns the virtual time that an item takes.
func (it *Item) virtual() uint64 { return uint64(it.Rows) * tagUnit / uint64(max(it.Weight, 1)) }

// tenantOf returns the tenant of an item. If results are delivered in the order of arrival,
// all requests have the same one: running one before the other would not answer it earlier.
func (c *Core) tenantOf(it *Item) int {
	if c.cfg.KeepOrder {
		return 0
	}
	return it.Tenant
}

// compete reports whether an item of the given tenant competes with another tenant's.
func (q *tenantQueues) compete(tenant int) bool {
	return len(q.active) > 1 || len(q.active) == 1 && q.active[0] != tenant
}

// earliest returns when a tenant that was idle starts at the earliest, in virtual time.
func (q *tenantQueues) earliest() uint64 { return q.clock - min(q.clock, q.credit) }

// start returns when the next item of a tenant starts, in virtual time.
func (q *tenantQueues) start(tenant int) uint64 {
	switch {
	case tenant >= len(q.shares):
		return q.earliest()
	case q.shares[tenant].slot == 0:
		return max(q.shares[tenant].next, q.earliest())
	}
	return q.shares[tenant].next
}

// add sets the start of an item that is queued, which is not in its lane yet.
func (q *tenantQueues) add(it *Item, tenant int) {
	for len(q.shares) <= tenant {
		q.shares = append(q.shares, tenantShare{})
	}
	s := &q.shares[tenant]
	if s.slot == 0 {
		s.next = max(s.next, q.earliest())
		q.active = append(q.active, tenant)
		s.slot = len(q.active)
		if s.slot == 2 {
			q.settle(&q.shares[q.active[0]]) // while it was the only one, the starts did not matter
		}
	}
	it.tenant, it.start = tenant, s.next
	v := it.virtual()
	s.next += v
	s.waiting += v
	s.requests++
	s.bytes += it.Bytes
	it.tenantPrev, it.tenantNext = s.last, nil
	if s.last == nil {
		s.first = it
	} else {
		s.last.tenantNext = it
	}
	s.last = it
}

// remove removes an item that runs now, or that leaves without running.
func (q *tenantQueues) remove(it *Item, runs bool) {
	s := &q.shares[it.tenant]
	v := it.virtual()
	s.waiting -= v
	s.requests--
	s.bytes -= it.Bytes
	last := it.tenantNext == nil
	if last {
		s.last = it.tenantPrev
	} else {
		it.tenantNext.tenantPrev = it.tenantPrev
	}
	if it.tenantPrev == nil {
		s.first = it.tenantNext
	} else {
		it.tenantPrev.tenantNext = it.tenantNext
	}
	it.tenantPrev, it.tenantNext = nil, nil
	switch {
	case runs:
		q.clock = max(q.clock, it.start-min(it.start, s.unserved))
	case last && s.next == it.start+v:
		s.next = it.start
	default:
		s.unserved += v
	}
	switch {
	case s.requests == 0:
		s.next -= s.unserved
		s.unserved = 0
		q.deactivate(s)
	case !runs && len(q.active) > 1:
		q.settle(s)
	}
}

func (q *tenantQueues) deactivate(s *tenantShare) {
	moved := q.active[len(q.active)-1]
	q.active[s.slot-1] = moved
	q.shares[moved].slot = s.slot
	q.active = q.active[:len(q.active)-1]
	s.slot = 0
}

// settle gives the items of a tenant new starts, if many before them left without running.
func (q *tenantQueues) settle(s *tenantShare) {
	if s.unserved*maxUnserved <= s.waiting {
		return
	}
	start := s.next - s.unserved - s.waiting
	for it := s.first; it != nil; it = it.tenantNext {
		l := it.lane.listOf(it)
		l.remove(it)
		it.start = start
		start += it.virtual()
		l.insert(it)
	}
	s.next, s.unserved = start, 0
}

// displaced returns the item that leaves a full queue so that another tenant's can be queued:
// the last one of the tenant that has the most there, relative to its weight, in all levels
// that share the queue. It returns nil if no tenant has more than that of the new item, or if
// the new one would still not fit.
func (c *Core) displaced(level *Level, it *Item) *Item {
	tenant := c.tenantOf(it)
	byBytes := level.UseSharedBound && (c.cfg.Shared.Requests == 0 || c.shared.Requests < c.cfg.Shared.Requests)
	part := func(requests int, bytes int64, weight int) float64 {
		n := float64(requests)
		if byBytes {
			n = float64(bytes)
		}
		return n / float64(max(weight, 1))
	}
	inQueue := func(i int) bool { return i == it.level || level.UseSharedBound && c.cfg.Levels[i].UseSharedBound }
	total := func(tenant int) (requests int, bytes int64) {
		for i := range c.tenants {
			if shares := c.tenants[i].shares; inQueue(i) && tenant < len(shares) {
				requests += shares[tenant].requests
				bytes += shares[tenant].bytes
			}
		}
		return requests, bytes
	}
	requests, bytes := total(tenant)
	requests, bytes = requests+1, bytes+it.Bytes
	var victim *Item
	most := 0.0
	for i := range c.tenants {
		if !inQueue(i) {
			continue
		}
		for _, t := range c.tenants[i].active {
			s := &c.tenants[i].shares[t]
			if t == tenant || byBytes && s.bytes == 0 {
				continue
			}
			n, size := total(t)
			if p := part(n, size, s.last.Weight); p > most || victim != nil && p == most && runsBefore(victim, s.last) {
				victim, most = s.last, p
			}
		}
	}
	if victim == nil || most <= part(requests, bytes, it.Weight) {
		return nil
	}
	if b := c.cfg.Shared.Bytes; level.UseSharedBound && b > 0 && c.shared.Requests > 1 && c.shared.Bytes-victim.Bytes+it.Bytes > b {
		return nil
	}
	return victim
}

// startBefore returns how many requests of a level start by the given virtual time, and how
// many rows they have. It does not count those that timed out and wait behind the others.
func (c *Core) startBefore(level int, start uint64) (items, rows int) {
	for _, l := range c.lanes {
		for it := l.levels[level].onTime.first; it != nil && it.start <= start; it = it.next {
			items++
			rows += it.Rows
		}
	}
	return items, rows
}
