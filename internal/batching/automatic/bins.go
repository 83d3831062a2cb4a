package automatic

import "math"

// Times are kept in bins of half an octave. The smallest is a part of what one
// row takes, so that a model that is slower by a factor sees the same bins.
const (
	bins        = 28
	unitsPerRow = 512 // a batch of one row has so many of the smallest bin
)

// edges[k] is where bin k begins, in units of the smallest.
var edges = func() (e [bins + 1]float64) {
	for k := 1; k <= bins; k += 2 {
		e[k], e[k+1] = math.Ldexp(1, k/2), math.Ldexp(math.Sqrt2, k/2)
	}
	return e
}()

// binOf returns the bin of a time in units; bins if it is beyond the last. It
// reads the logarithm off the bits of the number.
func binOf(units float64) int {
	if units < 1 {
		return 0
	}
	bits := math.Float64bits(units)
	k := 1 + 2*(int(bits>>52)-1023)
	if bits&(1<<52-1) >= 0x6a09e667f3bcd { // the mantissa of the square root of 2
		k++
	}
	return min(k, bins)
}
