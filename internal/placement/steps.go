package placement

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const loadsPerNode = 2 // copies that a node loads at the same time

// Moves returns how many steps of a cell may begin in a time. The caller knows which have begun.
func Moves(since time.Duration) int { return int(200 * since.Seconds()) }

// A Step is an order to a node.
type Step struct {
	Node, Model string
	Unload      bool // it loads the model otherwise
}

// Steps returns what the nodes must do next to get closer to the plan, in order. The nodes'
// reports must be newer than the steps that were returned before.
//
// A copy is loaded before the one that it replaces is unloaded, as far as memory allows. The
// last ready copy of a model in use is never unloaded, unless its tenant is over its quota.
func Steps(plan *Plan, nodes []Node, models []Model) []Step {
	if plan.Frozen != "" {
		return nil
	}
	s := newStepper(plan, nodes, models)
	for m := range s.models {
		s.planLoads(m)
	}
	slices.SortFunc(s.loads, func(x, y load) int {
		return cmp.Or(cmp.Compare(x.urgency, y.urgency), strings.Compare(x.Model, y.Model), strings.Compare(x.Node, y.Node))
	})
	s.startLoads()
	s.unloadSurplus()
	return s.steps
}

// A stepper collects steps.
type stepper struct {
	nodes  []Node
	rooms  []room    // by node
	models []held    // by the plan's models
	held   [][]*held // by node: the models of its copies; nil for one that the plan does not have
	loads  []load
	steps  []Step
}

// held is what the nodes hold of one model.
type held struct {
	*Placement
	bytes   int64
	planned []int32 // nodes of the planned copies; -1 for one that does not report
	holders []int32 // nodes that hold or load it
	ready   int     // copies that are ready
	good    int     // ready copies that the plan has
}

type room struct {
	free    int64
	loading int
	wanted  int64 // bytes of planned copies that it does not hold yet
}

type load struct {
	Step
	urgency     int
	model, node int
}

func newStepper(plan *Plan, nodes []Node, models []Model) *stepper {
	s := &stepper{nodes: byName(nodes, func(n *Node) string { return n.Name }), models: make([]held, len(plan.Models)), rooms: make([]room, len(nodes)), held: make([][]*held, len(nodes))}
	index := make(map[string]int32, len(nodes)) // searches would take longer
	for i := range s.nodes {
		index[s.nodes[i].Name] = int32(i)
	}
	models = byName(models, func(m *Model) string { return m.Name })
	named := make(map[string]*held, len(plan.Models))
	for i := range plan.Models {
		h := &s.models[i]
		h.Placement = &plan.Models[i]
		named[h.Model] = h
		if m := find(models, h.Model, func(m *Model) string { return m.Name }); m != nil {
			h.bytes = m.Bytes
		}
		h.planned = make([]int32, len(h.Copies))
		for c := range h.Copies {
			h.planned[c] = -1
			if n, reports := index[h.Copies[c].Node]; reports {
				h.planned[c] = n
			}
		}
	}
	for i := range s.nodes {
		s.rooms[i].free = s.nodes[i].Bytes
		s.held[i] = make([]*held, len(s.nodes[i].Copies))
		for j := range s.nodes[i].Copies {
			c := &s.nodes[i].Copies[j]
			s.rooms[i].free -= c.Bytes
			s.rooms[i].loading += btoi(!c.Ready)
			if h := named[c.Model]; h != nil {
				s.held[i][j] = h
				h.holders = append(h.holders, int32(i))
				h.ready += btoi(c.Ready)
				h.good += btoi(c.Ready && h.plannedAt(i))
			}
		}
	}
	return s
}

func (h *held) plannedAt(node int) bool { return slices.Contains(h.planned, int32(node)) }

// planLoads lists the planned copies of a model that no node holds or loads.
func (s *stepper) planLoads(m int) {
	h := &s.models[m]
	for i, n := range h.planned {
		if n < 0 || slices.Contains(h.holders, n) || slices.Contains(s.nodes[n].Failed, h.Model) {
			continue
		}
		s.rooms[n].wanted += h.bytes
		urgency := 3
		switch {
		case h.InUse && h.ready == 0:
			urgency = 0
		case h.InUse && h.Copies[i].Active:
			urgency = 1
		case h.InUse:
			urgency = 2
		}
		s.loads = append(s.loads, load{Step{Node: h.Copies[i].Node, Model: h.Model}, urgency, m, int(n)})
	}
}

// startLoads loads copies on nodes that have the memory now.
func (s *stepper) startLoads() {
	for _, l := range s.loads {
		r, bytes := &s.rooms[l.node], s.models[l.model].bytes
		if r.loading >= loadsPerNode || r.free < bytes {
			continue
		}
		r.free, r.wanted = r.free-bytes, r.wanted-bytes
		r.loading++
		s.steps = append(s.steps, l.Step)
	}
}

// unloadSurplus unloads copies that are not planned: if the plan's copies are ready, or if
// their memory is needed and it is not the last ready copy.
func (s *stepper) unloadSurplus() {
	for i := range s.nodes {
		n, short := &s.nodes[i], s.rooms[i].free < s.rooms[i].wanted
		for j := range n.Copies {
			c, h := &n.Copies[j], s.held[i][j]
			if h != nil && (h.plannedAt(i) || !h.mayUnload(n.Name, c, short)) {
				continue
			}
			if h != nil && c.Ready {
				h.ready--
			}
			s.steps = append(s.steps, Step{Node: n.Name, Model: c.Model, Unload: true})
		}
	}
}

// mayUnload reports whether an unplanned copy may go. short says that its memory is needed. The
// copy at the model's home was loaded for a client, and the next plan may have it. A node that gets
// requests for a model which it does not hold loads it again: such as those of a stream that was
// routed for another model.
func (h *held) mayUnload(node string, c *Loaded, short bool) bool {
	ready := c.Ready
	switch {
	case h.Home == node && (!ready || !short), c.Rate > 0 && ready && !short && !h.OverQuota:
		return false
	case !ready || h.OverQuota || !h.InUse && (short || h.good == len(h.Copies)):
		return true
	case h.good == len(h.Copies):
		return h.good > 0 || h.ready > 1
	}
	return short && h.ready > 1
}
