package placement

import (
	"cmp"
	"slices"
)

// Limits of the device time of a node, relative to the mean of all nodes. Nodes are filled evenly,
// because the fullest ones are late first; and an overload is far above that, so that changes of
// rates move little.
const (
	fillLimit     = 1.02
	overloadLimit = 1.25
)

// fill places the copies that are missing, those that matter most first.
func (b *builder) fill() {
	b.listMissing()
	for m := range b.avoided {
		b.leaveFailed(m)
	}
	for c := range b.queue {
		for i := 0; i < len(b.queue[c]); i++ { // displaced copies are appended
			b.add(int(b.queue[c][i]))
		}
	}
	for m := range b.models {
		b.useTwoZones(m)
	}
}

// listMissing queues the model of each missing copy: first the active ones, then the spare
// ones, and then those of models that are not in use. The first active copies of models do not
// come before the others, because only the order by device time fills devices evenly: they
// displace others if no memory is left.
func (b *builder) listMissing() {
	for c := range b.queue {
		b.queue[c] = b.queue[c][:0]
	}
	for _, m := range b.byDeviceTime() {
		if !b.wants[m].OverQuota {
			b.promote(int(m))
			for n := len(b.places[m]); n < b.wants[m].Active+b.wants[m].Spare; n++ {
				b.enqueue(int(m), n)
			}
		}
	}
}

// enqueue queues the copy of a model that follows n others.
func (b *builder) enqueue(m, n int) {
	c := max(b.classOf(m, n, n < b.wants[m].Active), moreActive)
	b.queue[c] = append(b.queue[c], int32(m))
}

// byDeviceTime returns the models whose copies need the most device time first, then the
// largest: small ones fit into what is left.
func (b *builder) byDeviceTime() []int32 {
	if b.order == nil {
		b.order = b.sorted(func(x, y *Model, i, j int32) int {
			return cmp.Or(cmp.Compare(b.share[j], b.share[i]), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(i, j))
		})
	}
	return b.order
}

// sorted returns the indexes of the models in an order.
func (b *builder) sorted(compare func(x, y *Model, i, j int32) int) []int32 {
	order := make([]int32, len(b.models))
	for m := range order {
		order[m] = int32(m)
	}
	slices.SortFunc(order, func(i, j int32) int { return compare(&b.models[i], &b.models[j], i, j) })
	return order
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// add places one copy of a model, and displaces others if memory is short.
func (b *builder) add(m int) {
	c := b.classOf(m, len(b.places[m]), len(b.places[m]) < b.wants[m].Active)
	active := countActive(b.places[m]) < b.wants[m].Active
	n := b.choose(m, active, classes)
	if n < 0 {
		if n = b.choose(m, active, c); n < 0 {
			return
		}
		b.displace(n, b.models[m].Bytes, c)
	}
	b.update(m, func(places []place) []place { return append(places, place{n, active}) })
}

// displace drops copies of higher classes from a node until it has room: first the highest
// class, and in it the models with the fewest requests.
func (b *builder) displace(n int32, bytes int64, below class) {
	s := &b.states[n]
	for c := classes - 1; c > below; c-- {
		for s.reclaimable[c] > 0 && b.nodes[n].Bytes-s.used < bytes {
			m := b.coldest(n, c)
			i := b.at(m, n)
			b.update(m, func(places []place) []place { return slices.Delete(places, i, i+1) })
			b.promote(m)
			b.enqueue(m, len(b.places[m]))
		}
	}
}

// coldest returns the model with the fewest requests that has a copy of the class at a node.
func (b *builder) coldest(n int32, c class) int {
	best := -1
	for _, m := range b.states[n].copies {
		if b.classAt(int(m), b.at(int(m), n)) != c {
			continue
		}
		if best < 0 || compareUse(&b.models[m], &b.models[best]) < 0 {
			best = int(m)
		}
	}
	return best
}

// compareUse orders models by how many requests they get, the coldest first.
func compareUse(x, y *Model) int {
	return cmp.Or(cmp.Compare(x.Rate, y.Rate), btoi(x.Asked)-btoi(y.Asked), cmp.Compare(x.Name, y.Name))
}
