package automatic

import "time"

// A Profile is what calibration measured of a model: how long batches take. The
// zero Profile says that nothing was measured.
type Profile struct {
	Sizes    []Timing  // ascending by Rows
	Slowdown []float64 // Slowdown[n-1] is how many times longer a batch takes while n run; empty if that was not measured
}

// A Timing is one measured size.
type Timing struct {
	Rows int
	Took time.Duration // the median
	Slow time.Duration // the 95th percentile; 0 if it is not known
	Runs int           // that were measured
}
