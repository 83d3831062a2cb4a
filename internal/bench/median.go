package bench

import (
	"math/rand/v2"
	"slices"
)

// Median returns the median of one or more values, and its 95 % confidence interval by
// rank. Fewer than six values have no such interval: it then returns the smallest and the
// largest value.
func Median(values []float64) (mid, low, high float64) {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	out := outside(n)
	return middle(v), v[out], v[n-1-out]
}

// middle returns the median of sorted values.
func middle(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// outside returns how many of n sorted values can be dropped at either end so that the rest
// encloses the true median with a probability of 95 %. Each value is above or below the
// median with equal probability.
func outside(n int) int {
	chance, sum := 1.0, 0.0 // of exactly k values below, and of up to k, in units of 2^-n
	limit := 0.025
	for range n {
		limit *= 2
	}
	for k := range n {
		if sum += chance; sum > limit {
			return max(0, k-1)
		}
		chance *= float64(n-k) / float64(k+1)
	}
	return 0
}

// resamples is the number of bootstrap samples, which is enough for an interval whose first
// two digits do not depend on the seed.
const resamples = 4000

// ratioOfMedians returns the ratio of the median of b to that of a, and its bootstrap 95 %
// confidence interval. The seed is fixed, so that the result is reproducible.
func ratioOfMedians(a, b []float64) (mid, low, high float64) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(from []float64) float64 {
		v := make([]float64, len(from))
		for i := range v {
			v[i] = from[random.IntN(len(from))]
		}
		slices.Sort(v)
		return middle(v)
	}
	ratios := make([]float64, resamples)
	for i := range ratios {
		ratios[i] = draw(b) / draw(a)
	}
	slices.Sort(ratios)
	of := func(v []float64) float64 { return middle(slices.Sorted(slices.Values(v))) }
	return of(b) / of(a), ratios[resamples/40], ratios[resamples-1-resamples/40]
}
