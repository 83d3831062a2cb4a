package placement

import (
	"cmp"
	"slices"
	"strings"
)

// A Route is where proxies send the requests of a model. Spare nodes get requests if active
// ones fail.
type Route struct {
	Model  string
	Active []string // nodes, sorted
	Spare  []string // nodes, sorted
	Home   string   // node that loads the model on demand; set if no copy is ready
}

// Routes returns a route for each model of the plan: the ready copies, of which as many are
// active as the model needs. While a planned copy loads, a spare one, or one that is to be
// unloaded, is active in its place.
func Routes(plan *Plan, nodes []Node) []Route {
	ready := map[string][]Copy{}
	for _, n := range byName(nodes, func(n *Node) string { return n.Name }) {
		for _, c := range n.Copies {
			if c.Ready {
				ready[c.Model] = append(ready[c.Model], Copy{Node: n.Name})
			}
		}
	}
	routes := make([]Route, len(plan.Models))
	for i := range plan.Models {
		p := &plan.Models[i]
		routes[i] = p.route(ready[p.Model])
	}
	return routes
}

func (p *Placement) route(ready []Copy) Route {
	r := Route{Model: p.Model}
	if len(ready) == 0 {
		r.Home = p.Home
		if len(p.Copies) > 0 {
			r.Home = p.Copies[0].Node
		}
		return r
	}
	preference := func(c Copy) int {
		switch planned := find(p.Copies, c.Node, func(c *Copy) string { return c.Node }); {
		case planned == nil:
			return 2
		case planned.Active:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(ready, func(x, y Copy) int { return cmp.Compare(preference(x), preference(y)) })
	for i, c := range ready {
		if i < max(1, p.Active) {
			r.Active = append(r.Active, c.Node)
		} else {
			r.Spare = append(r.Spare, c.Node)
		}
	}
	slices.SortFunc(r.Active, strings.Compare)
	slices.SortFunc(r.Spare, strings.Compare)
	return r
}
