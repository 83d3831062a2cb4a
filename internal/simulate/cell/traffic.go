package cell

import (
	"math/rand/v2"
)

// An alias is a table that draws an index with given weights in constant time (Walker's
// alias method).
type alias struct {
	sum   float64
	share []float64 // of the index itself; the rest is the other's
	other []int32
}

func newAlias(weights []float64) alias {
	a := alias{share: make([]float64, len(weights)), other: make([]int32, len(weights))}
	for _, w := range weights {
		a.sum += w
	}
	var small, large []int32
	for i, w := range weights {
		a.share[i] = w / a.sum * float64(len(weights))
		if a.share[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.other[s] = l
		if a.share[l] -= 1 - a.share[s]; a.share[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, i := range append(small, large...) {
		a.share[i] = 1
	}
	return a
}

func (a *alias) draw(chance *rand.Rand) int32 {
	x := chance.Float64() * float64(len(a.share))
	i := int32(x)
	if x-float64(i) < a.share[i] {
		return i
	}
	return a.other[i]
}

// A fifo holds requests that are on the network. It takes the same time for all, so they
// arrive in the order in which they left.
type fifo struct {
	at    []Time
	reqs  []*request
	first int
}

func (f *fifo) push(at Time, r *request) {
	f.at, f.reqs = append(f.at, at), append(f.reqs, r)
}

func (f *fifo) next() Time {
	if f.first == len(f.at) {
		return never
	}
	return f.at[f.first]
}

func (f *fifo) pop() *request {
	r := f.reqs[f.first]
	f.first++
	if f.first >= 1024 && f.first*2 > len(f.at) { // move the rest to the front
		n := copy(f.at, f.at[f.first:])
		copy(f.reqs, f.reqs[f.first:])
		f.at, f.reqs, f.first = f.at[:n], f.reqs[:n], 0
	}
	return r
}
