package automatic

import "math"

// drift finds out when the model has become slower or faster than it was, by the
// test of Page and Hinkley on the logarithm of measured over expected: what goes
// beyond a tolerance is added up in both directions, and a sum that has grown too
// large means that the speed is another one. One batch that is far off is not
// enough for that. Where batches differ much, the sum has to grow larger: chance adds
// up to a sum of s once in about exp(2·tolerance·s/noise) times that it begins.
type drift struct {
	slower, faster excess
	noise          float64 // the mean square of the logarithm
	n              float64 // batches that it is of; old ones count less
	seen           uint64  // times that it was found
	last           float64 // how many times longer batches took from then on
}

// An excess is how far batches have been off in one direction, since they last
// were not.
type excess struct {
	beyond float64 // the tolerance, summed up
	all    float64 // without the tolerance
	n      float64
}

const (
	tolerance = 0.10 // of the logarithm: a model may be off by so much for ever
	tooMuch   = 2.5  // of the sum: 5 batches at twice the time, 20 at a quarter more
	farOff    = 1.0  // of the logarithm; what is further counts as that
	evidence  = 4    // batches that it takes at least
	noiseOf   = 64   // batches that tell the noise
	surely    = 8    // of the exponent: chance alone does it once in 3,000 times
)

// measured returns by which factor the model has changed its speed; 1 if it has
// not.
func (d *drift) measured(ratio float64) float64 {
	x := max(-farOff, min(farOff, math.Log(ratio)))
	d.slower.add(x)
	d.faster.add(-x)
	limit := max(tooMuch, surely*d.noise/(2*tolerance))
	d.n = min(d.n+1, noiseOf)
	d.noise += (x*x - d.noise) / d.n
	by := 0.0
	switch {
	case d.slower.reaches(limit):
		by = d.slower.all / d.slower.n
	case d.faster.reaches(limit):
		by = -d.faster.all / d.faster.n
	}
	if by == 0 {
		return 1
	}
	*d = drift{noise: d.noise, n: d.n, seen: d.seen + 1, last: math.Exp(by)}
	return d.last
}

func (e *excess) add(x float64) {
	e.beyond += x - tolerance
	e.all += x
	e.n++
	if e.beyond <= 0 {
		*e = excess{}
	}
}

func (e *excess) reaches(limit float64) bool { return e.beyond > limit && e.n >= evidence }
