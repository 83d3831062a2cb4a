package placement

import (
	"cmp"
	"slices"
)

// demoteSurplus makes surplus active copies spare ones, and puts the active ones first.
func (b *builder) demoteSurplus(m int) {
	b.sortByRank(b.places[m], m)
	surplus := b.places[m][min(b.wants[m].Active, len(b.places[m])):]
	if countActive(surplus) == 0 {
		return
	}
	for i := range surplus {
		surplus[i].active = false
	}
	b.sortByRank(b.places[m], m)
}

// promote makes spare copies active if too few are: in the zone with the fewest active
// copies, and there at nodes whose devices have the time, by rank. A model without requests
// has its active copies by zone and rank, whatever it had before: then a plan that was
// lost is rebuilt with the same ones.
func (b *builder) promote(m int) {
	idle := b.models[m].Rate == 0
	if !idle && countActive(b.places[m]) >= min(b.wants[m].Active, len(b.places[m])) {
		return
	}
	next := append(b.scratch[:0], b.places[m]...)
	b.scratch = next
	for i := range next {
		next[i].active = next[i].active && !idle
	}
	b.sortByRank(next, m)
	b.countZones(next)
	for active := countActive(next); active < min(b.wants[m].Active, len(next)); active++ {
		best := active
		for i := active + 1; i < len(next); i++ {
			if b.betterActive(next[i].node, next[best].node, b.share[m]) {
				best = i
			}
		}
		next[best].active = true
		b.active[b.states[next[best].node].zone]++
		b.sortByRank(next, m)
	}
	if !slices.Equal(next, b.places[m]) {
		b.update(m, func(places []place) []place { return append(places[:0], next...) })
	}
}

// betterActive reports whether a copy that becomes active is better at node x than at y. It uses
// the counts of countZones.
func (b *builder) betterActive(x, y int32, share int64) bool {
	if byZone := cmp.Compare(b.active[b.states[x].zone], b.active[b.states[y].zone]); byZone != 0 || share == 0 {
		return byZone < 0
	}
	xFits, yFits := b.fits(x, share), b.fits(y, share)
	return xFits && !yFits || !xFits && !yFits && b.fullness(x) < b.fullness(y)
}

// useTwoZones exchanges an active copy for a spare one if all active ones are in one zone.
func (b *builder) useTwoZones(m int) {
	b.countZones(b.places[m])
	zone := slices.IndexFunc(b.active, func(n int) bool { return n > 0 })
	if zone < 0 || b.active[zone] < countActive(b.places[m]) || b.wants[m].Active < 2 {
		return
	}
	if other := slices.IndexFunc(b.places[m], func(p place) bool { return !p.active && b.states[p.node].zone != zone }); other >= 0 {
		b.exchangeRoles(m, countActive(b.places[m])-1, other)
	}
}

func countActive(places []place) (n int) {
	for _, p := range places {
		n += btoi(p.active)
	}
	return n
}

// sortByRank puts active copies of a model first, and orders by rank otherwise.
func (b *builder) sortByRank(places []place, m int) {
	slices.SortFunc(places, func(x, y place) int {
		return cmp.Or(btoi(y.active)-btoi(x.active), cmp.Compare(rank(b.states[y.node].hash, b.hashes[m]), rank(b.states[x.node].hash, b.hashes[m])), cmp.Compare(x.node, y.node))
	})
}

// dropSurplus drops spare copies that are not needed, first from zones with the most copies.
func (b *builder) dropSurplus(m int) {
	total := b.wants[m].Active + b.wants[m].Spare
	for len(b.places[m]) > total {
		b.countZones(b.places[m])
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
func (b *builder) countZones(places []place) {
	clear(b.inZone)
	clear(b.active)
	for _, p := range places {
		zone := b.states[p.node].zone
		b.inZone[zone]++
		if p.active {
			b.active[zone]++
		}
	}
}

// A candidate is a node for a new copy.
type candidate struct {
	node int32
	mark
	fits bool // its device has the time
	busy float64
	rank uint64
}

// better reports whether c is the better place of two in zones that are equally good: with the
// model in memory, with enough device time, with the files on its disk, and then by rank. If no
// device has the time, the least busy one is best.
func (c *candidate) better(o *candidate) bool {
	switch {
	case c.holds != o.holds:
		return c.holds
	case c.fits != o.fits:
		return c.fits
	case !c.fits && c.busy != o.busy:
		return c.busy < o.busy
	case c.files != o.files:
		return c.files
	}
	return c.rank > o.rank
}

// choose returns the best node for one more copy of a model; -1 if none has the memory.
// Memory of copies above the class below counts as free: pass classes to displace nothing.
// A node that could not load the model is chosen only if no other one has the memory.
func (b *builder) choose(m int, active bool, below class) int32 {
	b.countZones(b.places[m])
	n := b.chooseByZone(m, active, below, false)
	if n < 0 && b.avoided != nil && len(b.avoided[m]) > 0 {
		n = b.chooseByZone(m, active, below, true)
	}
	return n
}

// chooseByZone uses the counts of countZones. Nodes in the zones with the fewest copies are best,
// so that the others are looked at only if none of these has the memory.
func (b *builder) chooseByZone(m int, active bool, below class, avoided bool) int32 {
	if b.models[m].Bytes > b.roomiest(below) {
		return -1
	}
	copies := func(zone int32) int { // first the active ones, if the copy is active
		if active {
			return b.inZone[zone] + len(b.nodes)*b.active[zone]
		}
		return b.inZone[zone]
	}
	slices.SortFunc(b.byCopies, func(x, y int32) int { return cmp.Or(copies(x)-copies(y), int(x-y)) })
	b.mark(m)
	best := candidate{node: -1}
	for i, zone := range b.byCopies {
		if best.node >= 0 && copies(zone) > copies(b.byCopies[i-1]) {
			break
		}
		b.search(&best, zone, m, active, below, avoided)
	}
	if best.node < 0 {
		b.measureRoom(below) // it was less than supposed
	}
	return best.node
}

// mark takes note of what each node has of a model.
func (b *builder) mark(m int) {
	clear(b.marks)
	for _, p := range b.places[m] {
		b.marks[p.node].placed = true
	}
	for _, n := range b.cached[b.models[m].Digest] {
		b.marks[n].files = true
	}
	for _, n := range b.holders[m] {
		b.marks[n].holds = true
	}
	if b.avoided != nil {
		for _, n := range b.avoided[m] {
			b.marks[n].avoided = true
		}
	}
}

// search looks for a better candidate among the nodes of a zone, without those that could not load
// the model unless avoided is true.
func (b *builder) search(best *candidate, zone int32, m int, active bool, below class, avoided bool) {
	bytes, share, hash := b.models[m].Bytes, b.share[m], b.hashes[m]
	for _, n := range b.inZones[zone] {
		s := &b.states[n]
		if b.marks[n].placed || b.marks[n].avoided && !avoided || s.draining || s.room(below) < bytes {
			continue
		}
		c := candidate{node: n, rank: rank(s.hash, hash), fits: true, mark: b.marks[n]}
		if active {
			c.fits, c.busy = b.fits(n, share), b.fullness(n)
		}
		if best.node < 0 || c.better(best) {
			*best = c
		}
	}
}

// room returns the memory of a node that is free, or used by copies above the class below.
func (s *nodeState) room(below class) int64 {
	free := s.bytes - s.used
	for c := below + 1; c < classes; c++ {
		free += s.reclaimable[c]
	}
	return free
}

// roomiest returns the largest room of all nodes, or more than that if copies were placed since
// it was measured. It makes the search for memory that does not exist quick.
func (b *builder) roomiest(below class) int64 {
	if !b.roomKnown[below] {
		b.measureRoom(below)
	}
	return b.largestRoom[below]
}

func (b *builder) measureRoom(below class) {
	b.roomKnown[below], b.largestRoom[below] = true, 0
	for n := range b.states {
		b.largestRoom[below] = max(b.largestRoom[below], b.states[n].room(below))
	}
}

// widen takes note that a node may have more room than any had.
func (b *builder) widen(n int32) {
	for below := range b.largestRoom {
		b.largestRoom[below] = max(b.largestRoom[below], b.states[n].room(class(below)))
	}
}
