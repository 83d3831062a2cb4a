package automatic

import "math"

// drift finds out when the model has become slower or faster than it was, by the
// test of Page and Hinkley on the logarithm of measured over expected: what goes
// beyond a tolerance is added up in both directions, and a sum that has grown too
// large means that the speed is another one. One batch that is far off is not
// enough for that. Where batches differ much, the sum has to grow larger: chance adds
// up to a sum of s once in about exp(2·tolerance·s/noise) times that it begins.
type drift struct {
	slower, faster cusum
	noise          float64 // the mean square of the logarithm
	n              float64 // batches that it is of; old ones count less
	count          uint64  // times that it was found
	factor         float64 // how many times longer batches took from then on
}

// An excess is how far batches have been off in one direction, since they last
// were not.
type cusum struct {
	sum   float64 // the tolerance, summed up
	total float64 // without the tolerance
	n     float64
}

const (
	driftTolerance  = 0.10 // of the logarithm: a model may be off by so much for ever
	minDriftSum     = 2.5  // of the sum: 5 batches at twice the time, 20 at a quarter more
	maxLogRatio     = 1.0  // of the logarithm; what is further counts as that
	minDriftBatches = 4    // batches that it takes at least
	noiseWindow     = 64   // batches that tell the noise
	driftConfidence = 8    // of the exponent: chance alone does it once in 3,000 times
)

// measured returns by which factor the model has changed its speed; 1 if it has
// not.
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
