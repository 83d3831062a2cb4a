package batching

import "time"

// A Profile is what calibration measured of a model: how long batches take. The
// zero Profile says that nothing was measured.
type Profile struct {
	Sizes []Timing // ascending by Rows
	// Slowdown[n-1] is how many times longer a batch takes while n run; empty if that
	// was not measured. Slowdown[0] is less than 1 if one that is alone has more to run
	// on, and 1 otherwise.
	Slowdown []float64
}

// A Timing is one measured size.
type Timing struct {
	Rows int
	Took time.Duration // the median
	Slow time.Duration // the 95th percentile; 0 if it is not known
	Runs int           // that were measured
}

// SizeAfter returns the size that is worth measuring next, behind one: every one up
// to 6, and then fewer and fewer. The one behind a power of two is always among
// them, because that is where a step is, if there is one.
func SizeAfter(rows int) int {
	small := []int{1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16}
	for _, n := range small {
		if n > rows {
			return n
		}
	}
	for p := 16; ; p *= 2 {
		for _, n := range []int{p + 1, p + p/4, p + p/2, p + p*3/4, 2 * p} {
			if n > rows {
				return n
			}
		}
	}
}
