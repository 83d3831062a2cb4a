package cell

import (
	"math"
	"slices"
)

// A route is where the requests of a model go.
type route struct {
	active, spare []*copyOf
	home          int32 // node that loads the model on demand; -1 if copies are ready
}

// A copyOf is a copy of a model on a node.
type copyOf struct {
	model, node int32
	served      served
	inFlight    []uint16 // by proxy
	readyAt     Time
	lost        bool     // its node was killed
	health      []health // by proxy; nil while no connection has failed
}

// health is what a proxy knows of a copy. As in Envoy, it knows nothing of other models of the node.
type health struct {
	failures int  // in a row
	until    Time // it sends no requests here
}

// observe adds the outcome of a request to what its proxy knows, and reports whether the proxy
// ejects the copy for that.
func (to *copyOf) observe(r *request, now Time) bool {
	if to.health == nil {
		if r.outcome != broken {
			return false
		}
		to.health = make([]health, len(to.inFlight))
	}
	h := &to.health[r.proxy]
	if h.failures++; r.outcome != broken {
		h.failures = 0
	}
	if h.failures < ejectAfter {
		return false
	}
	*h = health{until: now + ejectFor}
	return true
}

// ejected reports whether a proxy sends no requests to a copy.
func (to *copyOf) ejected(proxy int16, now Time) bool {
	return to.health != nil && to.health[proxy].until > now
}

const (
	// spillFactor is Envoy's overprovisioning factor: spare copies get requests once the
	// healthy share of the active ones falls below its inverse.
	spillFactor = 1.4
	// loadBound is by how much the load of a copy may exceed the mean in a ring hash, Envoy's
	// hash_balance_factor.
	loadBound = 1.25
	// A proxy sends no requests to a copy for ejectFor after ejectAfter failures in a row. That is what
	// a cell sets in Envoy (internal/cell/xds) for connections that fail, without what it sets for
	// answers that are late: a share of failures, and longer times for later ejections.
	ejectAfter = 3
	ejectFor   = Time(5e9)
)

// pick returns the copy that the proxy of a request sends it to: one that was not tried, if there
// is one. It returns nil if no copy is usable.
func (c *cell) pick(r *request) *copyOf {
	if to := c.pickFresh(r); to != nil || r.tries == 0 {
		return to
	}
	all := *r
	all.tried = [maxRetries]*copyOf{}
	return c.pickFresh(&all)
}

func (c *cell) pickFresh(r *request) *copyOf {
	route := &c.routes[r.model]
	among := route.active
	if len(route.spare) > 0 {
		switch {
		case r.tries == 1:
			among = route.spare // Envoy's first retry has another priority, and the second one any
		case c.ejects && c.chance.Float64() >= spillFactor*c.healthy(r.proxy, among):
			among = route.spare
		}
	}
	if picked := c.balance(r, among); picked != nil {
		return picked
	}
	for _, all := range [...][]*copyOf{among, route.active, route.spare} {
		for _, to := range all {
			if c.usable(r, to) {
				return to
			}
		}
	}
	return nil
}

// usable reports whether the proxy of a request may send it to a copy.
func (c *cell) usable(r *request, to *copyOf) bool {
	return !slices.Contains(r.tried[:r.tries], to) && !to.ejected(r.proxy, c.now)
}

// healthy returns the share of copies that a proxy has not ejected.
func (c *cell) healthy(proxy int16, all []*copyOf) float64 {
	n := 0
	for _, to := range all {
		if !to.ejected(proxy, c.now) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(all)))
}

func (c *cell) balance(r *request, among []*copyOf) *copyOf {
	if len(among) == 0 {
		return nil
	}
	switch c.cfg.Balancer {
	case RoundRobin:
		return c.roundRobin(r, among)
	case RingHash:
		return c.ringHash(r, among)
	}
	return c.leastRequest(r, among)
}

// leastRequest draws two copies, and returns that with fewer requests in flight.
func (c *cell) leastRequest(r *request, among []*copyOf) (best *copyOf) {
	for range 2 {
		to := among[c.chance.IntN(len(among))]
		if c.usable(r, to) && (best == nil || to.inFlight[r.proxy] < best.inFlight[r.proxy]) {
			best = to
		}
	}
	return best
}

func (c *cell) roundRobin(r *request, among []*copyOf) *copyOf {
	turn := &c.turns[int(r.model)*c.cfg.Proxies+int(r.proxy)]
	for range among {
		*turn++
		if to := among[int(*turn)%len(among)]; c.usable(r, to) {
			return to
		}
	}
	return nil
}

// ringHash returns the first copy in an order that all proxies share, unless that has more
// than its share of the requests in flight.
func (c *cell) ringHash(r *request, among []*copyOf) *copyOf {
	total := 1
	for _, to := range among {
		total += int(to.inFlight[r.proxy])
	}
	bound := uint16(math.Ceil(loadBound * float64(total) / float64(len(among))))
	for _, to := range among {
		if to.inFlight[r.proxy] < bound && c.usable(r, to) {
			return to
		}
	}
	return nil
}
