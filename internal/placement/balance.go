package placement

import (
	"cmp"
	"math"
	"slices"
)

// maxMoveTries is how many models of an overloaded node are tried to move. If none of the
// heaviest has a place elsewhere, memory is short, and each try is a search of all nodes.
const maxMoveTries = 4

// balance lowers the device time of overloaded nodes. Exchanging an active copy for a spare
// one costs nothing and is tried first; then copies move to other nodes. A change may make
// room for others, so it goes on until a pass over all nodes changes nothing.
func (b *builder) balance() {
	for changed := true; changed; {
		changed = false
		overloaded, room := b.overloaded()
		for _, full := range overloaded {
			changed = b.relieve(full, room) || changed
		}
	}
}

// relieve lowers the device time of one node, unless that is below the limit. room is the
// largest device time that any node had left. It reports whether it changed anything.
func (b *builder) relieve(full int32, room float64) (changed bool) {
	for b.fullness(full) > overloadLimit*b.mean {
		models := b.activeAt(full, room)
		if !slices.ContainsFunc(models, func(m int32) bool { return b.exchange(int(m), full) }) &&
			!slices.ContainsFunc(models[:min(len(models), maxMoveTries)], func(m int32) bool { return b.move(int(m), full) }) {
			break
		}
		changed = true
	}
	return changed
}

// overloaded returns the overloaded nodes, the fullest first, and the largest device time that
// any node has left.
func (b *builder) overloaded() (nodes []int32, room float64) {
	limit := math.Ceil(fillLimit * b.mean)
	for n := range b.nodes {
		busy := b.fullness(int32(n))
		if busy > overloadLimit*b.mean {
			nodes = append(nodes, int32(n))
		}
		room = max(room, (limit-busy)*b.states[n].speed)
	}
	slices.SortStableFunc(nodes, func(x, y int32) int { return cmp.Compare(b.fullness(y), b.fullness(x)) })
	return nodes, room
}

// activeAt returns the models with an active copy at a node that some other node has the
// device time for, those that need the most first.
func (b *builder) activeAt(n int32, room float64) (models []int32) {
	for _, m := range b.states[n].copies {
		if i := b.at(int(m), n); b.places[m][i].active && b.share[m] > 0 && float64(b.share[m]) <= room {
			models = append(models, m)
		}
	}
	slices.SortFunc(models, func(x, y int32) int { return cmp.Or(cmp.Compare(b.share[y], b.share[x]), cmp.Compare(x, y)) })
	return models
}

// at returns the index of a model's copy at a node.
func (b *builder) at(m int, n int32) int {
	return slices.IndexFunc(b.places[m], func(p place) bool { return p.node == n })
}

// exchange makes a spare copy of the model active instead of the one at the full node, if
// the device of the spare has the time, and the active copies stay in two zones.
func (b *builder) exchange(m int, full int32) bool {
	b.countZones(b.places[m])
	from := b.at(m, full)
	for to, p := range b.places[m] {
		if p.active || !b.fits(p.node, b.share[m]) || !b.keepsZones(full, p.node) {
			continue
		}
		b.exchangeRoles(m, from, to)
		return true
	}
	return false
}

// exchangeRoles makes one copy spare and another one active.
func (b *builder) exchangeRoles(m, from, to int) {
	b.update(m, func(places []place) []place {
		places[from].active, places[to].active = false, true
		return places
	})
}

// keepsZones reports whether the active copies of a model are in as many zones as before, if
// one moves. It uses the counts of countZones.
func (b *builder) keepsZones(from, to int32) bool {
	x, y := b.states[from].zone, b.states[to].zone
	return x == y || b.active[x] > 1 || b.active[y] == 0
}

// move moves the copy of a model at the full node to one whose device has the time.
func (b *builder) move(m int, full int32) bool {
	n := b.choose(m, true, classes)
	if n < 0 || b.avoids(m, n) || !b.fits(n, b.share[m]) || !b.keepsZones(full, n) {
		return false
	}
	b.update(m, func(places []place) []place {
		places[b.at(m, full)].node = n
		return places
	})
	return true
}
