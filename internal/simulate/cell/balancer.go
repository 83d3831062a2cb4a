package cell

import "math"

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

// pick returns the copy that the proxy sends a request of the model to, but not to the given
// one, which may be nil: it has refused the request already. It returns nil if there is none.
func (c *cell) pick(proxy int16, model int32, not *copyOf) *copyOf {
	r := &c.routes[model]
	among := r.active
	if len(r.spare) > 0 {
		switch {
		case not != nil:
			among = r.spare // a retry goes to copies that were not tried yet
		case c.anyDown && c.chance.Float64() >= spillFactor*c.healthy(proxy, among):
			among = r.spare
		}
	}
	if picked := c.balance(proxy, model, among, not); picked != nil {
		return picked
	}
	for _, all := range [...][]*copyOf{r.active, r.spare} {
		for _, to := range all {
			if c.usable(proxy, to, not) {
				return to
			}
		}
	}
	return nil
}

// usable reports whether the proxy may send a request to a copy.
func (c *cell) usable(proxy int16, to, not *copyOf) bool {
	return to != not && (!c.anyDown || c.downUntil[int(to.node)*c.cfg.Proxies+int(proxy)] <= c.now)
}

// healthy returns the share of copies whose node is up, as far as the proxy knows.
func (c *cell) healthy(proxy int16, all []*copyOf) float64 {
	n := 0
	for _, to := range all {
		if c.usable(proxy, to, nil) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(all)))
}

func (c *cell) balance(proxy int16, model int32, among []*copyOf, not *copyOf) *copyOf {
	if len(among) == 0 {
		return nil
	}
	switch c.cfg.Balancer {
	case RoundRobin:
		return c.roundRobin(proxy, model, among, not)
	case RingHash:
		return c.ringHash(proxy, among, not)
	}
	return c.leastRequest(proxy, among, not)
}

// leastRequest draws two copies, and returns that with fewer requests in flight.
func (c *cell) leastRequest(proxy int16, among []*copyOf, not *copyOf) (best *copyOf) {
	for range 2 {
		to := among[c.chance.IntN(len(among))]
		if c.usable(proxy, to, not) && (best == nil || to.inFlight[proxy] < best.inFlight[proxy]) {
			best = to
		}
	}
	return best
}

func (c *cell) roundRobin(proxy int16, model int32, among []*copyOf, not *copyOf) *copyOf {
	turn := &c.turns[int(model)*c.cfg.Proxies+int(proxy)]
	for range among {
		*turn++
		if to := among[int(*turn)%len(among)]; c.usable(proxy, to, not) {
			return to
		}
	}
	return nil
}

// ringHash returns the first copy in an order that all proxies share, unless that has more
// than its share of the requests in flight.
func (c *cell) ringHash(proxy int16, among []*copyOf, not *copyOf) *copyOf {
	total := 1
	for _, to := range among {
		total += int(to.inFlight[proxy])
	}
	bound := uint16(math.Ceil(loadBound * float64(total) / float64(len(among))))
	for _, to := range among {
		if to.inFlight[proxy] < bound && c.usable(proxy, to, not) {
			return to
		}
	}
	return nil
}
