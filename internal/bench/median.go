package bench

import (
	"math/rand/v2"
	"slices"
)

// Median returns the median of values, of which there is at least one, and its 95 %
// interval by rank. Of fewer than six values there is no such interval: it reaches
// from the smallest to the largest.
func Median(values []float64) (mid, low, high float64) {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	out := outside(n)
	return middle(v), v[out], v[n-1-out]
}

// middle returns the median of values that are sorted.
func middle(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// outside returns how many of n sorted values may be left out at either end so that
// those left hold the true median between them with a probability of 95 %: each
// value is as likely to be below it as above.
func outside(n int) int {
	chance, sum := 1.0, 0.0 // of just k below, and of up to k, in units of one half to the n
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

// resamples is how often the bootstrap draws: enough that its interval is the
// same to two digits, whatever the seed.
const resamples = 4000

// ratioOfMedians returns the median of b in units of that of a, and its 95 % interval
// by the bootstrap. The seed is fixed: the same values give the same interval.
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
