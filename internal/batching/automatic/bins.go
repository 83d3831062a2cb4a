package automatic

import "math"

// Times are counted in bins of half an octave. The width of the smallest bin, the unit,
// is a fraction of the time of one row, so that the bins do not depend on the speed of
// the model.
const (
	bins        = 28
	unitsPerRow = 512 // the time of a batch of one row, in units
)

// edges[k] is the lower edge of bin k, in units.
var edges = func() (e [bins + 1]float64) {
	for k := 1; k <= bins; k += 2 {
		e[k], e[k+1] = math.Ldexp(1, k/2), math.Ldexp(math.Sqrt2, k/2)
	}
	return e
}()

// binOf returns the bin of a time in units, or bins if it is beyond the last. It reads
// the logarithm from the bits of the number.
func binOf(units float64) int {
	if units < 1 {
		return 0
	}
	bits := math.Float64bits(units)
	k := 1 + 2*(int(bits>>52)-1023)
	if bits&(1<<52-1) >= 0x6a09e667f3bcd { // mantissa of the square root of 2
		k++
	}
	return min(k, bins)
}
