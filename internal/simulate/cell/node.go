package cell

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// A node is a node of the cell.
type node struct {
	world    *simulate.World
	zone     string
	dead     bool
	silent   bool // it does not report, such as while it restarts
	draining bool
	slower   float64
	copies   []*copyOf
	inFlight map[*request]bool // requests that the node has; nil unless some event kills nodes
}

// served is the model of a copy in its node's world; nil until its first request.
type served = *simulate.Model

func (c *cell) newNode(i int) *node {
	n := &node{world: simulate.NewWorld([]float64{1}, 1), zone: c.cfg.Nodes[i].Zone, slower: 1}
	if c.kills {
		n.inFlight = map[*request]bool{}
	}
	n.world.Trace = c.newTrace(n)
	return n
}

// newTrace returns the function that a node's world reports to.
func (c *cell) newTrace(n *node) func(simulate.Occurrence) {
	return func(o simulate.Occurrence) {
		switch {
		case n.dead || o.Ended:
		case o.Action.Kind == batching.Deliver:
			c.reply(n, o.At, o.Action.Item.Owner.(*request), answered)
		case o.Action.Kind == batching.Reject:
			c.reply(n, o.At, o.Action.Item.Owner.(*request), refused)
		}
	}
}

// serve adds the copy to its node's world.
func (c *cell) serve(to *copyOf) {
	n, m := c.nodes[to.node], &c.cfg.Models[to.model]
	to.served = n.world.Add(m.Name, c.cfg.Core(m), func(items []*batching.Item) time.Duration {
		rows := 0
		for _, it := range items {
			rows += it.Rows
		}
		takes := m.Curve.Takes(rows)
		if n.slower != 1 {
			takes = time.Duration(float64(takes) * n.slower)
		}
		c.figures.batch(n.world.Now(), to.node, rows, takes)
		return takes
	})
	to.served.Up(1)
}

// arrive is called when a request reaches its node.
func (c *cell) arrive(r *request) {
	n := c.nodes[r.to.node]
	if n.dead || r.to.lost { // a proxy may not know that the node was restarted
		c.toProxy.push(c.now+c.cfg.Network, r.with(broken))
		return
	}
	if r.tries == 0 {
		c.asked[r.model] += uint32(r.rows)
	}
	if n.inFlight != nil {
		n.inFlight[r] = true
	}
	if r.to.served == nil {
		c.serve(r.to)
	}
	n.world.Run(c.now)
	r.item = batching.Item{Rows: r.rows, Owner: r}
	if r.tries > 0 {
		// Envoy passes the time that is left on to the second try.
		if m := &c.cfg.Models[r.model]; m.Objective > 0 {
			r.item.Deadline = max(c.now+1, r.sent+m.Objective-c.cfg.Network)
		}
	}
	if r.to.readyAt > c.now {
		n.world.At(r.to.readyAt, func() {
			if !n.dead {
				r.to.served.Arrive(&r.item)
			}
		})
	} else {
		r.to.served.Arrive(&r.item)
	}
	n.world.Run(c.now)
	c.schedule(r.to.node)
}

// reply sends an answer back to the proxy. It is called in a step of the node's world.
func (c *cell) reply(n *node, at Time, r *request, o outcome) {
	if r.replied {
		return // its deadline passed while its batch ran
	}
	r.replied = true
	if n.inFlight != nil {
		delete(n.inFlight, r)
	}
	c.toProxy.push(at+c.cfg.Network, r.with(o))
}

// kill ends a node. Its connections break.
func (c *cell) kill(i int32) {
	n := c.nodes[i]
	if n.dead {
		return
	}
	n.dead, c.control.died = true, true
	c.order.set(i, never)
	broke := make([]*request, 0, len(n.inFlight))
	for r := range n.inFlight {
		broke = append(broke, r)
	}
	sortRequests(broke)
	for _, r := range broke {
		r.replied = true
		c.toProxy.push(c.now+c.cfg.Network, r.with(broken))
	}
	for _, to := range n.copies {
		to.lost = true
	}
	n.copies, n.inFlight = nil, nil
}

// schedule notes when the node must run next.
func (c *cell) schedule(i int32) {
	if n := c.nodes[i]; !n.dead {
		c.order.set(i, n.world.Next())
	}
}
