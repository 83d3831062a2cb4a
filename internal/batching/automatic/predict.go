package automatic

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

var _ batching.Predictor = (*Policy)(nil)

var _ batching.Tunable = (*Policy)(nil)

// foreseen is how many batches have to be measured, by calibration or since, before
// requests are turned away because of them.
const minPredictSamples = 5

// Predict implements [batching.Predictor].
func (p *Policy) Predict(rows, running int) time.Duration {
	if p.curve.solo < minPredictSamples || running > 1 && p.contention.samples[min(running, maxParallel)] < minTrusted {
		return 0
	}
	return time.Duration(p.curve.p95(rows) * p.contention.slowdown(running))
}

// Backlog says what the policy makes of a long queue: how many rows go together, and
// how many batches run at once.
func (p *Policy) Backlog() (rows, running int) {
	return p.sizes.peak, max(p.contention.useful, p.contention.backlog)
}
