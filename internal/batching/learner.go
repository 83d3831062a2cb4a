package batching

import "time"

// A Learner is a [Predictor] that learns from the batches that the core reports. It fits
// a line to the durations by rows, and tracks the p95 relative to the line, separately
// for each number of parallel batches. The zero Learner has no samples. It is for
// policies that let batches overlap freely; see docs/adr/0015-two-predictors.md.
type Learner struct {
	trends [maxParallel]trend
	total  uint64 // batches ever reported
}

const (
	maxParallel   = 8   // numbers of parallel batches with a trend of their own
	minSamples    = 5   // batches before a trend is used
	trendMemory   = 32  // time constant of the decay, in batches
	maxTrendAge   = 256 // batches after which an unused trend is discarded
	outlierFactor = 2   // longer times count as this multiple of the estimate
)

var trendP95 = Quantile{P: 0.95, Step: 0.03, Min: 1, Max: 1000} // of the duration, relative to the line

// trend is a line through durations by rows, in nanoseconds, fitted by least squares with
// exponentially decaying weights.
type trend struct {
	weight, x, y, xx, xy float64
	p95                  float64 // p95 of the duration, relative to the line
	count                int
	last                 uint64 // value of Learner.total at the last sample
}

// Predict implements [Predictor].
func (l *Learner) Predict(size Size, running int) time.Duration {
	s := &l.trends[min(running, maxParallel)-1]
	if s.count < minSamples || l.total-s.last > maxTrendAge {
		return 0
	}
	return time.Duration(s.estimate(float64(size.Rows)) * s.p95)
}

// Record adds the duration of a batch of the given rows. running is the number of batches
// that ran meanwhile, including this one.
func (l *Learner) Record(rows, running int, took time.Duration) {
	l.total++
	s := &l.trends[min(running, maxParallel)-1]
	if l.total-s.last > maxTrendAge {
		*s = trend{}
	}
	s.last = l.total
	s.add(float64(rows), float64(took))
}

func (s *trend) add(rows, took float64) {
	switch s.count++; s.count {
	case 1:
		return // the first batch of an engine takes longer
	case 2:
		s.p95 = 1
	default:
		expected := s.estimate(rows)
		s.p95 = trendP95.Next(s.p95, took > expected*s.p95+1) // above by more than the resolution of the clock
		took = min(took, outlierFactor*expected)
	}
	const keep = 1 - 1.0/trendMemory
	s.weight = s.weight*keep + 1
	s.x = s.x*keep + rows
	s.y = s.y*keep + took
	s.xx = s.xx*keep + rows*rows
	s.xy = s.xy*keep + rows*took
}

// estimate returns the duration on the line. If all sizes were about the same there is no
// slope: then smaller batches are assumed to take as long, and larger ones proportionally
// longer.
func (s *trend) estimate(rows float64) float64 {
	x, y := s.x/s.weight, s.y/s.weight
	spread := s.xx/s.weight - x*x
	if spread < x*x/100 {
		return y * max(1, rows/x)
	}
	slope := max(0, (s.xy/s.weight-x*y)/spread)
	slope = min(slope, y/x) // keeps the duration of 0 rows from being negative
	return y + slope*(rows-x)
}
