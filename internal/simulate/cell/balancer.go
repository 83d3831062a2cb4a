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
	lost        bool // its node was killed
}

const (
	// spillFactor is Envoy's overprovisioning factor: spare copies get requests once the
	// healthy share of the active ones falls below its inverse.
	spillFactor = 1.4
	// loadBound is by how much the load of a copy may exceed the mean in a ring hash, Envoy's
	// hash_balance_factor.
	loadBound = 1.25
	// downFor is for how long a proxy sends no requests to a node after a connection failed.
	downFor = Time(5e9)
)

// pick returns the copy that the proxy of a request sends it to, but not to one that it has
// tried. It returns nil if there is none.
func (c *cell) pick(r *request) *copyOf {
	route := &c.routes[r.model]
	among := route.active
	if len(route.spare) > 0 {
		switch {
		case r.tries == 1:
			among = route.spare // Envoy's first retry has another priority, and the second one any
		case c.anyDown && c.chance.Float64() >= spillFactor*c.healthy(r, among):
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
	return !slices.Contains(r.tried[:r.tries], to) && (!c.anyDown || c.downUntil[int(to.node)*c.cfg.Proxies+int(r.proxy)] <= c.now)
}

// healthy returns the share of copies that are usable, as far as the request's proxy knows.
func (c *cell) healthy(r *request, all []*copyOf) float64 {
	n := 0
	for _, to := range all {
		if c.usable(r, to) {
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
