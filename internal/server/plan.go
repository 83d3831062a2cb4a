package server

import (
	"cmp"
	"slices"

	"github.com/shoal-serving/shoal/internal/servable"
)

// A change is what becomes of a model's versions, all ascending.
type change struct {
	keep []int64 // they serve, and nothing about them has changed
	load []int64 // they are new, or have changed
	drop []int64 // they serve, and are not wanted any more, or will be replaced
}

// plan compares the versions that serve with those that are wanted.
func plan(have []*servable.Version, want []servable.Source) change {
	var c change
	fingerprints := map[int64]uint64{}
	for _, src := range slices.SortedFunc(slices.Values(want), func(a, b servable.Source) int { return cmp.Compare(a.Number, b.Number) }) {
		fingerprints[src.Number] = src.Fingerprint
		if slices.ContainsFunc(have, func(v *servable.Version) bool {
			return v.Number() == src.Number && v.Source.Fingerprint == src.Fingerprint
		}) {
			c.keep = append(c.keep, src.Number)
		} else {
			c.load = append(c.load, src.Number)
		}
	}
	for _, v := range have {
		if fingerprint, ok := fingerprints[v.Number()]; !ok || fingerprint != v.Source.Fingerprint {
			c.drop = append(c.drop, v.Number())
		}
	}
	return c
}
