package placement

import "slices"

// noteFailures takes note of the nodes that could not load models.
func (b *builder) noteFailures() {
	if !slices.ContainsFunc(b.nodes, func(n Node) bool { return len(n.Avoided)+len(n.Failed) > 0 }) {
		return
	}
	b.avoided, b.failed = make([][]int32, len(b.models)), make([]int, len(b.models))
	index := b.index()
	for n := range b.nodes {
		for _, name := range b.nodes[n].Avoided {
			if m, wanted := index[name]; wanted {
				b.avoided[m] = append(b.avoided[m], int32(n))
			}
		}
		for _, name := range b.nodes[n].Failed {
			if m, wanted := index[name]; wanted {
				b.failed[m]++
			}
		}
	}
}

// avoids reports whether a node could not load a model.
func (b *builder) avoids(m int, n int32) bool {
	return b.avoided != nil && slices.Contains(b.avoided[m], n)
}

// leaveFailed moves copies of a model away from nodes that could not load it, to others that have
// the memory: a full disk concerns one node. They displace only models that are not in use: two
// models that displaced each other would never come to rest. If several nodes could not load it a
// moment ago, it is more likely the model, and the copies stay for now: otherwise one model would
// visit all nodes at once.
func (b *builder) leaveFailed(m int) {
	if b.failed[m] >= manyFailed {
		return
	}
	for _, from := range b.avoided[m] {
		i := b.at(m, from)
		if i < 0 {
			continue
		}
		active := b.places[m][i].active
		b.countZones(slices.Delete(slices.Clone(b.places[m]), i, i+1))
		to := b.chooseByZone(m, active, classes, false)
		if to < 0 && b.wants[m].InUse {
			to = b.chooseByZone(m, active, spare, false)
		}
		if to < 0 {
			return
		}
		b.displace(to, b.models[m].Bytes, spare)
		b.update(m, func(places []place) []place {
			places[b.at(m, from)].node = to
			return places
		})
	}
}
