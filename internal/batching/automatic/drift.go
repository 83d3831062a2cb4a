package automatic

import "math"

// drift detects when the model has become slower or faster, with the Page–Hinkley test on
// the logarithm of measured over expected time: it sums what exceeds a tolerance in
// either direction, and reports a change when a sum exceeds a limit. A single outlier is
// not enough. The limit grows with the noise: by chance, a sum reaches s about once in
// exp(2·tolerance·s/noise) attempts.
type drift struct {
	slower, faster cusum
	noise          float64 // mean square of the logarithm
	n              float64 // batches behind noise, up to noiseWindow
	count          uint64  // number of detected changes
	factor         float64 // of the last change: how many times longer batches take since
}

// A cusum is the cumulative sum of deviations in one direction, since it was last zero.
type cusum struct {
	sum   float64 // of what exceeds the tolerance
	total float64 // of the deviations themselves
	n     float64
}

const (
	driftTolerance  = 0.10 // of the logarithm; a deviation up to this is never reported
	minDriftSum     = 2.5  // 5 batches at twice the time reach it, or 20 at 1.25 times
	maxLogRatio     = 1.0  // limit of a single deviation
	minDriftBatches = 4    // minimum number of batches in a sum
	noiseWindow     = 64   // batches over which noise is averaged
	driftConfidence = 8    // exponent of the limit: a false alarm once in about 3,000 attempts
)

// record adds the ratio of measured to expected time. It returns the factor of a detected
// change of speed, or 1.
func (d *drift) record(ratio float64) float64 {
	x := max(-maxLogRatio, min(maxLogRatio, math.Log(ratio)))
	d.slower.add(x)
	d.faster.add(-x)
	limit := max(minDriftSum, driftConfidence*d.noise/(2*driftTolerance))
	d.n = min(d.n+1, noiseWindow)
	d.noise += (x*x - d.noise) / d.n
	by := 0.0
	switch {
	case d.slower.exceeds(limit):
		by = d.slower.total / d.slower.n
	case d.faster.exceeds(limit):
		by = -d.faster.total / d.faster.n
	}
	if by == 0 {
		return 1
	}
	*d = drift{noise: d.noise, n: d.n, count: d.count + 1, factor: math.Exp(by)}
	return d.factor
}

func (e *cusum) add(x float64) {
	e.sum += x - driftTolerance
	e.total += x
	e.n++
	if e.sum <= 0 {
		*e = cusum{}
	}
}

func (e *cusum) exceeds(limit float64) bool { return e.sum > limit && e.n >= minDriftBatches }
