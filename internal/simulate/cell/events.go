package cell

import (
	"fmt"
	"slices"
	"time"
)

// restartTakes is how long a node is away for an upgrade.
const restartTakes = 20 * time.Second

// planEvents plans what happens to the cell.
func (c *cell) planEvents() error {
	lost := map[int]bool{} // proxies
	for _, e := range c.cfg.Events {
		if e.Kind == ProxyLost {
			lost[e.Number] = true
		}
		if len(lost) == c.cfg.Proxies {
			return fmt.Errorf("event %q at %v: all %d proxies would be lost", e.Kind, e.At, c.cfg.Proxies)
		}
		do, err := c.event(e)
		if err != nil {
			return fmt.Errorf("event %q at %v: %w", e.Kind, e.At, err)
		}
		c.plan(e.At, do)
	}
	return nil
}

func (c *cell) event(e Event) (do func(), err error) {
	node := int32(slices.IndexFunc(c.cfg.Nodes, func(n Node) bool { return n.Name == e.Name }))
	needsNode := e.Kind == NodeLost || e.Kind == SlowNode
	switch {
	case needsNode && node < 0:
		return nil, fmt.Errorf("no node is called %q", e.Name)
	case e.Kind == ZoneLost && !slices.ContainsFunc(c.cfg.Nodes, func(n Node) bool { return n.Zone == e.Name }):
		return nil, fmt.Errorf("no node is in zone %q", e.Name)
	case e.Kind == ProxyLost && (e.Number < 0 || e.Number >= c.cfg.Proxies):
		return nil, fmt.Errorf("proxy %d of %d does not exist", e.Number, c.cfg.Proxies)
	case e.Kind == FlashCrowd && (e.First < 0 || e.Last < e.First || e.Last >= len(c.rates)):
		return nil, fmt.Errorf("models %d to %d of %d do not exist", e.First, e.Last, len(c.rates))
	case (e.Kind == FlashCrowd || e.Kind == SlowNode) && e.Times <= 0:
		return nil, fmt.Errorf("times is %v, and must be positive", e.Times)
	}
	switch e.Kind {
	case NodeLost:
		return func() { c.kill(node) }, nil
	case ZoneLost:
		return func() {
			for i, n := range c.nodes {
				if n.zone == e.Name {
					c.kill(int32(i))
				}
			}
		}, nil
	case ProxyLost:
		return func() { c.proxies = slices.DeleteFunc(c.proxies, func(p int16) bool { return p == int16(e.Number) }) }, nil
	case FlashCrowd:
		return func() {
			for m := e.First; m <= e.Last; m++ {
				c.rates[m] *= e.Times
			}
			c.arrivals = newAlias(c.rates)
			c.nextArrival()
		}, nil
	case ReportsStop:
		return func() { c.control.silent = true }, nil
	case SlowNode:
		return func() { c.nodes[node].slower = e.Times }, nil
	case Upgrade:
		c.planUpgrade(e)
		return func() {}, nil
	}
	return nil, fmt.Errorf("the kind of event is unknown")
}

// planUpgrade plans a rolling upgrade: nodes drain for three reports, restart, and return
// without models. With a balancer that uses all copies they load those that they had.
func (c *cell) planUpgrade(e Event) {
	at, drains := e.At, 3*max(c.cfg.ReportEvery, time.Second)
	for first := 0; first < len(c.nodes); first += max(1, e.Number) {
		batch := c.nodes[first:min(len(c.nodes), first+max(1, e.Number))]
		held := make([][]*copyOf, len(batch))
		c.plan(at, func() {
			for _, n := range batch {
				n.draining = true
			}
		})
		c.plan(at+drains, func() {
			for i, n := range batch {
				held[i] = n.copies
				c.kill(int32(first + i))
			}
		})
		c.plan(at+drains+restartTakes, func() {
			for i, n := range batch {
				fresh := c.newNode(first + i)
				fresh.world.Run(c.now)
				*n = *fresh
				n.world.Trace = c.newTrace(n)
				if c.control.allEqual { // no plan gives it copies
					for _, to := range held[i] {
						c.addCopy(to.model, to.node, c.now+c.cfg.Models[to.model].LoadTime)
					}
				}
			}
			if c.control.allEqual {
				c.routeToAll()
			}
		})
		at += drains + restartTakes
	}
}
