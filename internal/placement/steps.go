package placement

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	loadsPerNode   = 2   // copies that a node loads at the same time
	movesPerSecond = 200 // of the whole cell
)

// A Step is an order to a node.
type Step struct {
	Node, Model string
	Unload      bool // it loads the model otherwise
}

// Steps returns what the nodes must do next to get closer to the plan, in order. since is
// the time since the last call: it limits the number of steps. The nodes' reports must be
// newer than the steps that were returned before.
//
// A copy is loaded before the one that it replaces is unloaded, as far as memory allows. The
// last ready copy of a model in use is never unloaded, unless its tenant is over its quota.
func Steps(plan *Plan, nodes []Node, models []Model, since time.Duration) []Step {
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
	return s.steps[:min(len(s.steps), int(movesPerSecond*since.Seconds()))]
}

// A stepper collects steps.
type stepper struct {
	nodes  []Node
	rooms  []room           // by node
	models []held           // by the plan's models
	byName map[string]*held // a search would take longer
	loads  []load
	steps  []Step
}

// held is what the nodes hold of one model.
type held struct {
	*Placement
	bytes   int64
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
	s := &stepper{nodes: byName(nodes, func(n *Node) string { return n.Name }), models: make([]held, len(plan.Models)), rooms: make([]room, len(nodes)), byName: make(map[string]*held, len(plan.Models))}
	models = byName(models, func(m *Model) string { return m.Name })
	for i := range plan.Models {
		s.models[i].Placement = &plan.Models[i]
		s.byName[plan.Models[i].Model] = &s.models[i]
		if m := find(models, plan.Models[i].Model, func(m *Model) string { return m.Name }); m != nil {
			s.models[i].bytes = m.Bytes
		}
	}
	for i := range s.nodes {
		s.rooms[i].free = s.nodes[i].Bytes
		for _, c := range s.nodes[i].Copies {
			s.rooms[i].free -= c.Bytes
			s.rooms[i].loading += btoi(!c.Ready)
			if h := s.byName[c.Model]; h != nil {
				h.holders = append(h.holders, int32(i))
				h.ready += btoi(c.Ready)
				h.good += btoi(c.Ready && h.plannedAt(s.nodes[i].Name))
			}
		}
	}
	return s
}

func (h *held) plannedAt(node string) bool {
	return find(h.Copies, node, func(c *Copy) string { return c.Node }) != nil
}

// planLoads lists the planned copies of a model that no node holds or loads.
func (s *stepper) planLoads(m int) {
	h := &s.models[m]
	for _, c := range h.Copies {
		n, reports := slices.BinarySearchFunc(s.nodes, c.Node, func(n Node, name string) int { return strings.Compare(n.Name, name) })
		if !reports || slices.Contains(h.holders, int32(n)) || slices.Contains(s.nodes[n].Failed, h.Model) {
			continue
		}
		s.rooms[n].wanted += h.bytes
		urgency := 3
		switch {
		case h.InUse && h.ready == 0:
			urgency = 0
		case h.InUse && c.Active:
			urgency = 1
		case h.InUse:
			urgency = 2
		}
		s.loads = append(s.loads, load{Step{Node: c.Node, Model: h.Model}, urgency, m, n})
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
		for _, c := range n.Copies {
			h := s.byName[c.Model]
			if h != nil && (h.plannedAt(n.Name) || !h.mayUnload(n.Name, c.Ready, short)) {
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
// copy at the model's home was loaded for a client, and the next plan may have it.
func (h *held) mayUnload(node string, ready, short bool) bool {
	switch {
	case h.Home == node && (!ready || !short):
		return false
	case !ready || h.OverQuota || !h.InUse && (short || h.good == len(h.Copies)):
		return true
	case h.good == len(h.Copies):
		return h.good > 0 || h.ready > 1
	}
	return short && h.ready > 1
}
