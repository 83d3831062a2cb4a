package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	vanishedDivisor = 3                // a plan freezes if at least this part of the nodes vanishes at once
	vanishedFor     = 10 * time.Second // at once is within this time: nodes are noticed one by one
	frozenFor       = 10 * time.Minute

	manyFailed = 3 // a model that this many nodes could not load a moment ago does not go to others yet
)

// Plan returns the next plan. previous may be nil: then the plan is rebuilt from what the
// nodes hold. The arguments are not changed.
//
// Copies stay where they are unless they are surplus, their node drains, is gone or could not
// load them, their node's device is overloaded, or a copy that matters more needs their memory.
func (c Config) Plan(previous *Plan, nodes []Node, models []Model, now Time) *Plan {
	nodes = byName(nodes, func(n *Node) string { return n.Name })
	models = byName(models, func(m *Model) string { return m.Name })
	vanished := missing(previous, nodes, now)
	if reason, since := freeze(previous, len(nodes), len(vanished), now); reason != "" {
		frozen := *previous
		frozen.At, frozen.Frozen, frozen.FrozenAt, frozen.Vanished = now, reason, since, vanished
		return &frozen
	}
	b := newBuilder(nodes, models)
	b.need(previous)
	b.applyQuotas(c.Quotas)
	b.keep()
	b.settle()
	p := b.plan(now)
	for name, since := range vanished {
		if now-since < vanishedFor {
			p.Nodes, p.Vanished = append(p.Nodes, name), vanished
		}
	}
	slices.Sort(p.Nodes)
	return p
}

// missing returns the nodes of the previous plan that do not report, and since when.
func missing(previous *Plan, nodes []Node, now Time) map[string]Time {
	if previous == nil {
		return nil
	}
	all := map[string]Time{}
	for _, name := range previous.Nodes {
		if find(nodes, name, func(n *Node) string { return n.Name }) == nil {
			all[name] = cmp.Or(previous.Vanished[name], now)
		}
	}
	return all
}

// ManyLost reports whether the loss of nodes is a mass failure: more likely of the network than of
// the machines. One node never is one, even if it is a third of the cell.
func ManyLost(lost, all int) bool { return lost >= 2 && lost*vanishedDivisor >= all }

// freeze returns why the previous plan must be repeated, and since when it is; or nothing.
// What is missing for ten minutes counts as lost, unless everything is.
func freeze(previous *Plan, nodes, vanished int, now Time) (reason string, since Time) {
	if previous == nil || nodes > 0 && !ManyLost(vanished, len(previous.Nodes)) {
		return "", 0
	}
	since = now
	if previous.Frozen != "" {
		since = previous.FrozenAt
	}
	if nodes == 0 {
		return "no node reports: the plan is frozen until some do", since
	}
	if now-since >= frozenFor {
		return "", 0
	}
	return fmt.Sprintf("%d of %d nodes vanished at once: the plan is frozen until they return, or for %v", vanished, len(previous.Nodes), frozenFor), since
}

// A builder makes one plan. Nodes and models are referred to by their index.
type builder struct {
	nodes    []Node
	models   []Model
	previous []*Placement // by model; nil for a new one
	wants    []Placement  // by model; their copies are in places
	places   [][]place    // by model
	share    []int64      // by model: device time of an active copy
	hashes   []uint64     // by model

	states      []nodeState
	order       []int32 // see byDeviceTime
	zones       int
	inZones     [][]int32 // nodes by zone
	byCopies    []int32   // scratch: zones, those with the fewest copies of a model first
	mean        float64   // device time that all active copies need, per unit of speed
	queue       [classes][]int32
	largestRoom [classes + 1]int64 // see roomiest
	roomKnown   [classes + 1]bool
	changed     bool               // a copy was placed, or got another role
	cached      map[string][]int32 // nodes by the digest of files on their disks
	holders     [][]int32          // by model: nodes that hold or load it
	avoided     [][]int32          // by model: nodes that could not load it; nil if all could load all
	failed      []int              // by model: nodes that could not load it a moment ago; nil as well
	marks       []mark             // scratch: by node
	inZone      []int              // scratch: copies of a model by zone
	active      []int              // scratch: active copies of a model by zone
	touched     []int32            // scratch: nodes of an update
	scratch     []place
}

// A mark is what a node has of one model.
type mark struct {
	placed, holds, files, avoided bool // a place, a copy in memory, the files, or a load that failed
}

// A place is a copy at a node.
type place struct {
	node   int32
	active bool
}

type nodeState struct {
	hash        uint64
	zone        int
	speed       float64
	bytes       int64 // for models
	draining    bool
	used        int64 // bytes of planned copies
	busy        int64 // device time of active copies
	reclaimable [classes]int64
	copies      []int32 // models, in no order
}

// A class is how much a copy matters. If memory is short, a copy of a lower class displaces
// one of a higher class.
type class int

const (
	firstActive class = iota // the first active copy of a model in use
	moreActive
	spare
	notInUse
	classes
)

func newBuilder(nodes []Node, models []Model) *builder {
	b := &builder{
		nodes: nodes, models: models,
		previous: make([]*Placement, len(models)), wants: make([]Placement, len(models)), places: make([][]place, len(models)), share: make([]int64, len(models)), hashes: make([]uint64, len(models)),
		states: make([]nodeState, len(nodes)), marks: make([]mark, len(nodes)), cached: map[string][]int32{},
	}
	for i := range models {
		b.hashes[i] = hashOf(models[i].Name)
	}
	names := []string{}
	for i, n := range nodes {
		b.states[i] = nodeState{hash: hashOf(n.Name), speed: cmp.Or(n.Speed, 1), bytes: n.Bytes, draining: n.Draining}
		names = append(names, n.Zone)
		for _, digest := range n.Cached {
			b.cached[digest] = append(b.cached[digest], int32(i))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	b.zones, b.inZones = len(names), make([][]int32, len(names))
	for i, n := range nodes {
		zone, _ := slices.BinarySearch(names, n.Zone)
		b.states[i].zone, b.inZones[zone] = zone, append(b.inZones[zone], int32(i))
	}
	for zone := range b.inZones {
		b.byCopies = append(b.byCopies, int32(zone))
	}
	b.inZone, b.active = make([]int, b.zones), make([]int, b.zones)
	return b
}

// need computes how many copies each model needs, and the device time of each.
func (b *builder) need(previous *Plan) {
	if previous == nil {
		previous = b.rebuild()
	}
	for i := range b.models {
		b.previous[i] = previous.Find(b.models[i].Name)
		b.wants[i] = b.models[i].need(b.previous[i], b.zones)
	}
}

// keep takes over the copies of the previous plan that are still needed.
func (b *builder) keep() {
	index := make(map[string]int32, len(b.nodes))
	for i, n := range b.nodes {
		index[n.Name] = int32(i)
	}
	var speed float64
	var busy int64
	for i := range b.states {
		speed += b.states[i].speed
	}
	for m := range b.models {
		b.share[m] = b.models[m].deviceTime(b.wants[m].Active)
		if b.wants[m].OverQuota {
			continue
		}
		busy += b.share[m] * int64(b.wants[m].Active)
		if p := b.previous[m]; p != nil {
			for _, c := range p.Copies {
				if n, known := index[c.Node]; known && !b.nodes[n].Draining {
					b.places[m] = append(b.places[m], place{n, c.Active})
				}
			}
		}
	}
	b.mean = float64(busy) / max(speed, 1)
	b.holders = make([][]int32, len(b.models))
	b.eachHeld(func(m, n int, _ *Loaded) { b.holders[m] = append(b.holders[m], int32(n)) })
	b.noteFailures()
	// Copies are added in the order of their class, so that memory that has become short is
	// left to those that matter most.
	for m := range b.models {
		b.demoteSurplus(m)
		b.dropSurplus(m)
	}
	for c := range classes {
		for m := range b.models {
			b.dropUnfit(m, c)
		}
	}
}

// dropUnfit drops the copies of one class that do not fit any more, and accounts for the others.
func (b *builder) dropUnfit(m int, of class) {
	kept := make([]place, 0, len(b.places[m]))
	for _, p := range b.places[m] {
		if b.classOf(m, len(kept), p.active) == of { // the first that is kept has the first class
			if b.states[p.node].used+b.models[m].Bytes > b.nodes[p.node].Bytes {
				continue
			}
			b.account(m, p, of)
		}
		kept = append(kept, p)
	}
	b.places[m] = kept
}

// classAt returns the class of a model's copy. Active copies come first in places, and are
// ordered by rank, so that planning again finds the same classes.
func (b *builder) classAt(m, i int) class { return b.classOf(m, i, b.places[m][i].active) }

func (b *builder) classOf(m, i int, active bool) class {
	switch {
	case !b.wants[m].InUse:
		return notInUse
	case i == 0:
		return firstActive
	case active:
		return moreActive
	}
	return spare
}

// update changes the copies of a model, and keeps the accounts of the nodes.
func (b *builder) update(m int, change func(places []place) []place) {
	b.changed = true
	b.touched = b.touched[:0]
	for i, p := range b.places[m] {
		b.discount(m, p, b.classAt(m, i))
		b.touched = append(b.touched, p.node)
	}
	b.places[m] = change(b.places[m])
	b.sortByRank(b.places[m], m)
	for i, p := range b.places[m] {
		b.account(m, p, b.classAt(m, i))
	}
	for _, n := range b.touched {
		b.widen(n)
	}
}

func (b *builder) account(m int, p place, of class) {
	s := &b.states[p.node]
	s.used += b.models[m].Bytes
	s.reclaimable[of] += b.models[m].Bytes
	s.copies = append(s.copies, int32(m))
	if p.active {
		s.busy += b.share[m]
	}
}

func (b *builder) discount(m int, p place, of class) {
	s := &b.states[p.node]
	s.used -= b.models[m].Bytes
	s.reclaimable[of] -= b.models[m].Bytes
	i := slices.Index(s.copies, int32(m))
	s.copies[i] = s.copies[len(s.copies)-1]
	s.copies = s.copies[:len(s.copies)-1]
	if p.active {
		s.busy -= b.share[m]
	}
}

// settle places missing copies and lowers overloads until nothing changes, so that planning
// again would change nothing. More than two rounds are rare: only if memory is short, a move
// makes room for a copy that had none.
func (b *builder) settle() {
	const rounds = 32
	for range rounds {
		b.changed = false
		b.fill()
		b.balance()
		if !b.changed {
			return
		}
	}
}

// plan returns the result.
func (b *builder) plan(now Time) *Plan {
	p := &Plan{At: now, Models: b.wants}
	for i := range b.nodes {
		p.Nodes = append(p.Nodes, b.nodes[i].Name)
	}
	for m := range b.wants {
		w := &b.wants[m]
		w.Copies = make([]Copy, len(b.places[m]))
		for i, at := range b.places[m] {
			w.Copies[i] = Copy{b.nodes[at.node].Name, at.active}
		}
		slices.SortFunc(w.Copies, func(x, y Copy) int { return strings.Compare(x.Node, y.Node) })
		if len(w.Copies) == 0 && !w.OverQuota {
			w.Home = b.home(m)
		}
	}
	return p
}

// home returns the node that loads the model when a client asks for it: one that has the memory and
// could load it, if there are such nodes. Otherwise any node: it may have less memory than usual because
// its models have grown, and room for a single one; and its refusal says why, other than no route.
func (b *builder) home(m int) (name string) {
	const fits, loads = 2, 1
	best, suits := uint64(0), 0
	for n := range b.nodes {
		if b.nodes[n].Draining {
			continue
		}
		s := 0
		if b.models[m].Bytes <= b.nodes[n].Bytes {
			s += fits
		}
		if !b.avoids(m, int32(n)) {
			s += loads
		}
		r := rank(b.states[n].hash, b.hashes[m])
		if name == "" || s > suits || s == suits && r > best {
			name, best, suits = b.nodes[n].Name, r, s
		}
	}
	return name
}

// fullness returns the device time of a node relative to its speed.
func (b *builder) fullness(n int32) float64 { return float64(b.states[n].busy) / b.states[n].speed }

// fits reports whether a node's device has time for one more active copy of a model.
func (b *builder) fits(n int32, share int64) bool {
	return float64(b.states[n].busy+share) <= math.Ceil(fillLimit*b.mean)*b.states[n].speed
}
