package automatic

// lengthShare estimates which share of the time of a size class's batches grows with the
// number of elements of a row: 0 if a batch takes as long with any, and 1 if its time is
// proportional to them. Rows of a class differ by up to a factor of two, which is as much as
// padding costs. The curve has the times at the reference; others are scaled.
type lengthShare struct {
	reference float64 // elements of a row
	share     float64

	// Weighted sums of x, the elements relative to the reference, and y, the time relative to
	// that of the curve.
	weight, x, y, xx, xy float64
}

const (
	lengthDecay      = 0.98 // factor of the sums with each batch
	minLengthWeight  = 6    // batches until the share is estimated
	minLengthSpread  = 0.01 // variance of x below which it is not estimated
	maxRelativeTimes = 3    // limit of y, so that an outlier weighs no more
)

// scale returns the factor on the times of the curve for rows with the given number of
// elements.
func (l *lengthShare) scale(elements int64) float64 {
	if l.share == 0 {
		return 1
	}
	return 1 + l.share*(float64(elements)/l.reference-1)
}

// record adds a batch that took the given multiple of the time of the curve, and estimates
// the share by linear regression.
func (l *lengthShare) record(elements int64, times float64) {
	x, y := float64(elements)/l.reference, min(times, maxRelativeTimes)
	l.weight = l.weight*lengthDecay + 1
	l.x = l.x*lengthDecay + x
	l.y = l.y*lengthDecay + y
	l.xx = l.xx*lengthDecay + x*x
	l.xy = l.xy*lengthDecay + x*y
	mx, my := l.x/l.weight, l.y/l.weight
	spread := l.xx/l.weight - mx*mx
	if l.weight < minLengthWeight || spread < minLengthSpread {
		return
	}
	slope := (l.xy/l.weight - mx*my) / spread
	if atReference := my + slope*(1-mx); atReference > 0 {
		l.share = max(0, min(1, slope/atReference))
	}
}
