package automatic

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

var _ batching.Predictor = (*Policy)(nil)

var _ batching.Tunable = (*Policy)(nil)

// minPredictSamples is the number of batches that must be measured, by calibration or
// under traffic, before requests are rejected because of a prediction.
const minPredictSamples = 5

// Predict implements [batching.Predictor].
func (p *Policy) Predict(size batching.Size, running int) time.Duration {
	p.selectClass(size.Elements)
	if p.curve.soloBatches < minPredictSamples || running > 1 && p.contention.samples[min(running, maxParallel)] < minTrusted {
		return 0
	}
	return time.Duration(p.length.scale(size.Elements) * p.curve.p95(size.Rows) * p.contention.slowdown(running))
}

// Backlog returns how the policy works off a long queue of rows with the given number of
// elements: the batch size in rows, and the number of parallel batches.
func (p *Policy) Backlog(elements int64) (rows, running int) {
	p.selectClass(elements)
	return p.sizes.peak, p.instancesFor(max(p.contention.useful, p.contention.backlog, p.estimatedParallel(p.waitingRows)))
}
