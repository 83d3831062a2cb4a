package placement

import (
	"hash/fnv"
	"slices"
	"sort"
	"strings"
)

// hashOf returns the hash of a name.
func hashOf(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// rank returns the rendezvous hash of a node for a model: the nodes of a model, ordered by
// it, are the same whatever other nodes exist.
func rank(node, model uint64) uint64 {
	x := node ^ model*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// find returns the element with the given name of a sorted slice; nil if there is none.
func find[T any](sorted []T, name string, nameOf func(*T) string) *T {
	i := sort.Search(len(sorted), func(i int) bool { return nameOf(&sorted[i]) >= name })
	if i == len(sorted) || nameOf(&sorted[i]) != name {
		return nil
	}
	return &sorted[i]
}

// byName returns the elements sorted by name. It copies them only if they are not sorted.
func byName[T any](all []T, nameOf func(*T) string) []T {
	for i := 1; i < len(all); i++ {
		if nameOf(&all[i-1]) > nameOf(&all[i]) {
			all = slices.Clone(all)
			slices.SortFunc(all, func(a, b T) int { return strings.Compare(nameOf(&a), nameOf(&b)) })
			break
		}
	}
	return all
}
