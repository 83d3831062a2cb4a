package placement

import (
	"cmp"
	"slices"
)

// demoteSurplus makes surplus active copies spare ones, and puts the active ones first.
func (b *builder) demoteSurplus(m int) {
	b.sortPlaces(m)
	for i := range b.places[m] {
		b.places[m][i].active = b.places[m][i].active && i < b.wants[m].Active
	}
	b.sortPlaces(m)
}

// promote makes spare copies active if too few are: in the zone with the fewest active
// copies, and there at the least busy node.
func (b *builder) promote(m int) {
	for active := b.activeCopies(m); active < min(b.wants[m].Active, len(b.places[m])); active++ {
		b.countZones(m)
		best := active
		for i := active + 1; i < len(b.places[m]); i++ {
			x, y := b.places[m][i].node, b.places[m][best].node
			byZone := cmp.Compare(b.active[b.states[x].zone], b.active[b.states[y].zone])
			if cmp.Or(byZone, cmp.Compare(b.fullness(x), b.fullness(y))) < 0 {
				best = i
			}
		}
		b.update(m, func(places []place) []place {
			places[best].active = true
			return places
		})
	}
}

// useTwoZones exchanges an active copy for a spare one if all active ones are in one zone.
func (b *builder) useTwoZones(m int) {
	b.countZones(m)
	zone := slices.IndexFunc(b.active, func(n int) bool { return n > 0 })
	if zone < 0 || b.active[zone] < b.activeCopies(m) || b.wants[m].Active < 2 {
		return
	}
	other := slices.IndexFunc(b.places[m], func(p place) bool { return !p.active && b.states[p.node].zone != zone })
	if other >= 0 {
		b.exchangeRoles(m, b.activeCopies(m)-1, other)
	}
}

// activeCopies returns how many copies of a model are active.
func (b *builder) activeCopies(m int) (n int) {
	for _, p := range b.places[m] {
		n += btoi(p.active)
	}
	return n
}

// sortPlaces puts active copies first, and orders by rank otherwise.
func (b *builder) sortPlaces(m int) {
	slices.SortFunc(b.places[m], func(x, y place) int {
		if x.active != y.active {
			if x.active {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(rank(b.states[y.node].hash, b.hashes[m]), rank(b.states[x.node].hash, b.hashes[m])), cmp.Compare(x.node, y.node))
	})
}

// dropSurplus drops spare copies that are not needed, first from zones with the most copies.
func (b *builder) dropSurplus(m int) {
	total := b.wants[m].Active + b.wants[m].Spare
	for len(b.places[m]) > total {
		b.countZones(m)
		drop := len(b.places[m]) - 1
		for i, p := range b.places[m] {
			if !p.active && b.inZone[b.states[p.node].zone] > b.inZone[b.states[b.places[m][drop].node].zone] {
				drop = i
			}
		}
		b.places[m] = slices.Delete(b.places[m], drop, drop+1)
	}
}

// countZones counts the copies of a model by zone.
func (b *builder) countZones(m int) {
	clear(b.inZone)
	clear(b.active)
	for _, p := range b.places[m] {
		zone := b.states[p.node].zone
		b.inZone[zone]++
		if p.active {
			b.active[zone]++
		}
	}
}

// A candidate is a node for a new copy.
type candidate struct {
	node   int32
	zone   int  // copies of the model in its zone; first the active ones, if the copy is active
	holds  bool // it holds the model already
	fits   bool // its device has the time
	cached bool
	busy   float64
	rank   uint64
}

// better reports whether c is the better place: in a zone with fewer copies, with the model
// in memory, with enough device time, with the files on its disk, and then by rank. If no
// device has the time, the least busy one is best.
func (c *candidate) better(o *candidate) bool {
	switch {
	case c.zone != o.zone:
		return c.zone < o.zone
	case c.holds != o.holds:
		return c.holds
	case c.fits != o.fits:
		return c.fits
	case !c.fits && c.busy != o.busy:
		return c.busy < o.busy
	case c.cached != o.cached:
		return c.cached
	}
	return c.rank > o.rank
}

// choose returns the best node for one more copy of a model; -1 if none has the memory.
// Memory of copies above the class below counts as free: pass classes to displace nothing.
func (b *builder) choose(m int, active bool, below class) int32 {
	if b.models[m].Bytes > b.roomiest(below) {
		return -1
	}
	b.search++
	b.countZones(m)
	for _, p := range b.places[m] {
		b.stamp[p.node] = b.search
	}
	for _, n := range b.cached[b.models[m].Digest] {
		b.hasFiles[n] = b.search
	}
	for _, n := range b.holders[m] {
		b.holds[n] = b.search
	}
	model, best, found := &b.models[m], candidate{}, false
	for n := range b.nodes {
		s := &b.states[n]
		if b.stamp[n] == b.search || b.room(n, below) < model.Bytes || b.nodes[n].Draining {
			continue
		}
		c := candidate{node: int32(n), zone: b.inZone[s.zone], rank: rank(s.hash, b.hashes[m]), fits: true}
		if active {
			c.zone += len(b.nodes) * b.active[s.zone]
			c.fits, c.busy = b.fits(int32(n), b.share[m]), b.fullness(int32(n))
		}
		c.holds = b.holds[n] == b.search
		c.cached = b.hasFiles[n] == b.search
		if !found || c.better(&best) {
			best, found = c, true
		}
	}
	if !found {
		return -1
	}
	return best.node
}

// room returns the memory of a node that is free, or used by copies above the class below.
func (b *builder) room(n int, below class) int64 {
	free := b.nodes[n].Bytes - b.states[n].used
	for c := below + 1; c < classes; c++ {
		free += b.states[n].reclaimable[c]
	}
	return free
}

// roomiest returns the largest room of all nodes. It makes the search for memory that does
// not exist quick.
func (b *builder) roomiest(below class) int64 {
	if !b.roomKnown[below] {
		b.roomKnown[below], b.largestRoom[below] = true, 0
		for n := range b.nodes {
			b.largestRoom[below] = max(b.largestRoom[below], b.room(n, below))
		}
	}
	return b.largestRoom[below]
}
