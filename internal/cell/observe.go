package cell

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/placement"
)

// States of models, as pages have them.
const (
	ready       = "READY"
	loading     = "LOADING"
	unavailable = "UNAVAILABLE" // it could not be loaded: pages leave out what was unloaded
)

const never = Time(math.MaxInt64)

// models returns the models of a member's page.
func (m *member) models() []node.Model {
	if m == nil || m.page == nil {
		return nil
	}
	return m.page.Models
}

// holds reports whether a page has a model that is ready or loading.
func holds(p *node.Page, model string) bool {
	return slices.ContainsFunc(p.Models, func(m node.Model) bool { return m.Name == model && present(m.State) })
}

// isCutOff reports whether as many nodes of the plan do not answer as would freeze it. A follower
// may lose its way to nodes that the cell reaches, and a cell that was started has no pages yet.
func (c *Core) isCutOff() bool {
	lost := 0
	for _, name := range c.plan.Nodes {
		if m := c.nodes[name]; m != nil && (m.gone || m.page == nil) {
			lost++
		}
	}
	return placement.ManyLost(lost, len(c.plan.Nodes))
}

// placed returns the nodes as placement sees them, with the orders that their pages do not
// show yet. If all is true, nodes that are gone are as they were, and those that have not answered
// yet as planned. If only is not nil, copies of other models are left out.
func (c *Core) placed(all bool, only map[string]struct{}) (nodes []placement.Node) {
	planned := map[string][]placement.Loaded{} // by node
	for i := 0; all && i < len(c.plan.Models); i++ {
		for _, at := range c.plan.Models[i].Copies {
			planned[at.Node] = append(planned[at.Node], placement.Loaded{Model: c.plan.Models[i].Model, Ready: true})
		}
	}
	for _, w := range c.wanted.Nodes {
		m := c.nodes[w.Name]
		if m.page == nil && planned[w.Name] != nil {
			nodes = append(nodes, placement.Node{Name: m.Name, Copies: planned[w.Name]})
		}
		if m.page == nil || m.gone && !all {
			continue
		}
		n := placement.Node{Name: m.Name, Zone: m.page.Zone, Bytes: cmp.Or(m.page.Memory, math.MaxInt64/2), Draining: m.page.Draining}
		for i := range m.page.Models { // ordered by name: versions of one model are neighbours
			model := &m.page.Models[i]
			if _, concerned := only[model.Name]; only != nil && !concerned {
				continue
			}
			if model.State == unavailable {
				n.Avoided = append(n.Avoided, model.Name)
			}
			if !present(model.State) {
				continue
			}
			if last := len(n.Copies) - 1; last < 0 || n.Copies[last].Model != model.Name {
				n.Copies = append(n.Copies, placement.Loaded{Model: model.Name})
			}
			held := &n.Copies[len(n.Copies)-1]
			held.Bytes, held.Rate, held.Ready = held.Bytes+model.Bytes, held.Rate+model.Rate, held.Ready || model.State == ready
			if model.State == loading { // the page does not have its size yet
				held.Bytes = max(held.Bytes, c.learned[model.Name].Bytes)
			}
		}
		c.expect(m, &n)
		nodes = append(nodes, n)
	}
	return nodes
}

// expect changes the copies of a node to what they will be when it has carried out its orders.
func (c *Core) expect(m *member, n *placement.Node) {
	for model, p := range m.pending {
		held := slices.IndexFunc(n.Copies, func(l placement.Loaded) bool { return l.Model == model })
		switch {
		case p.failed != "" && !p.unload:
			n.Failed = append(n.Failed, model)
		case p.failed != "":
		case p.unload && held >= 0:
			n.Copies = slices.Delete(n.Copies, held, held+1)
		case !p.unload && held < 0:
			n.Copies = append(n.Copies, placement.Loaded{Model: model, Bytes: c.learned[model].Bytes})
		}
	}
	slices.SortFunc(n.Copies, func(a, b placement.Loaded) int { return strings.Compare(a.Model, b.Model) })
	for model := range m.avoided {
		n.Avoided = append(n.Avoided, model)
	}
	slices.Sort(n.Avoided)
	n.Avoided = slices.DeleteFunc(slices.Compact(n.Avoided), func(model string) bool { // it holds another version, or tries again
		return slices.ContainsFunc(n.Copies, func(l placement.Loaded) bool { return l.Model == model })
	})
}

// models returns the wanted models with what the nodes reported about them.
func (c *Core) models() []placement.Model {
	rates, bytes := map[string]float64{}, map[string]int64{} // bytes where a copy has the most
	held := map[string]int64{}                               // of one node: bytes of all versions
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) { // in this order, or rates would differ in their last bits
		m := c.nodes[name]
		if m.gone {
			continue
		}
		clear(held)
		for i := range m.models() {
			model := &m.page.Models[i]
			rates[model.Name] += model.Rate * max(1, model.Rows)
			if model.State == ready {
				held[model.Name] += model.Bytes
				bytes[model.Name] = max(bytes[model.Name], held[model.Name])
			}
		}
	}
	models := make([]placement.Model, 0, len(c.wanted.Models))
	for _, w := range c.wanted.Models {
		l := c.learned[w.Name]
		if n := bytes[w.Name]; n > 0 && n != l.Bytes {
			l.Bytes = n
			c.learned[w.Name] = l
		}
		models = append(models, placement.Model{
			Name: w.Name, Tenant: w.Tenant, Digest: l.Digest, Bytes: l.Bytes, Curve: l.Curve, Efficient: l.Efficient,
			Objective: cmp.Or(w.Objective, l.Objective), Copies: w.Copies,
			Rate: rates[w.Name], Asked: l.Asked, Reported: c.now - c.now%replanEvery,
		})
	}
	return models
}

// currentRoutes returns the routes of the plan by model, and under "" the nodes for requests
// that concern no model. If only is not nil, routes of other models are left out.
//
// Nodes that drain get requests only if they have the last ready copy. While a plan is frozen, or
// this cell is cut off, nodes that vanished keep their routes: more likely the cell cannot reach
// them than clients.
func (c *Core) currentRoutes(only map[string]struct{}) map[string]Route {
	plan := &placement.Plan{Models: c.plan.Models}
	if only != nil {
		plan.Models = nil
		for model := range only {
			if p := c.plan.Find(model); p != nil {
				plan.Models = append(plan.Models, *p)
			}
		}
	}
	var stay, leave []placement.Node
	everything := Route{}
	for _, n := range c.placed(c.plan.Frozen != "" || c.isCutOff(), only) {
		n.Copies = slices.DeleteFunc(n.Copies, func(l placement.Loaded) bool { return c.leaving[target{n.Name, l.Model}] != 0 })
		if n.Draining {
			leave = append(leave, n)
			continue
		}
		stay = append(stay, n)
		everything.Active = append(everything.Active, c.nodes[n.Name].Node)
	}
	routes := map[string]Route{"": everything}
	last := placement.Routes(plan, leave)
	for i, r := range placement.Routes(plan, stay) {
		if len(r.Active) == 0 && len(last[i].Active) > 0 {
			r = last[i]
		}
		route := Route{Model: r.Model, Active: c.addresses(r.Active), Spare: c.addresses(r.Spare)}
		if len(r.Active) == 0 && c.nodes[r.Home] != nil {
			route.Active, route.Home = []Node{c.nodes[r.Home].Node}, true
		}
		if m := c.wanted.find(r.Model); m != nil {
			route.Hedge = m.Hedge
			c.divide(&route, m)
		}
		routes[r.Model] = route
	}
	return routes
}

func (c *Core) addresses(names []string) (nodes []Node) {
	for _, name := range names {
		nodes = append(nodes, c.nodes[name].Node)
	}
	return nodes
}
