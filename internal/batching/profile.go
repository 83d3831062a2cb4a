package batching

import "time"

// A Profile is the result of calibration: how long batches of a model take. The zero
// Profile has no measurements.
type Profile struct {
	Sizes    []Timing // ascending by Rows
	Elements int64    `json:"-"` // of each measured row; see [Item]
	// Slowdown[n-1] is how many times longer a batch takes while n batches run; empty if it
	// was not measured. Slowdown[0] is below 1 if exclusive batches have more threads, and
	// 1 otherwise.
	Slowdown []float64
}

// A Timing is one measured size. Calibration stores it in files, under the names in the
// tags.
type Timing struct {
	Rows   int
	Median time.Duration `json:"Took"` // of the duration
	P95    time.Duration `json:"Slow"` // of the duration; 0 if unknown
	Runs   int           // number of measured runs
}

// NextSize returns the size to measure after the given one: every size up to 6, and then
// increasingly few. The successor of each power of two is always among them, because
// steps in the curve occur there.
func NextSize(rows int) int {
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
