package automatic

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestOnlyWhatWasMeasuredIsPredicted(t *testing.T) {
	const ms = time.Millisecond
	p := New(Options{MaxRows: 8, Instances: 2})
	if got := p.Predict(batching.Size{Rows: 8}, 1); got != 0 {
		t.Errorf("a policy that knows nothing predicts %v", got)
	}
	sizes := []batching.Timing{{Rows: 1, Median: 10 * ms, P95: 10 * ms, Runs: 5}, {Rows: 8, Median: 80 * ms, P95: 80 * ms, Runs: 5}}
	p.Calibrated(batching.Profile{Sizes: sizes})
	if got := p.Predict(batching.Size{Rows: 8}, 1); got.Round(ms) != 80*ms {
		t.Errorf("8 rows are predicted to take %v, want 80ms", got)
	}
	if got := p.Predict(batching.Size{Rows: 8}, 2); got != 0 {
		t.Errorf("two batches never ran at once, but are predicted to take %v", got)
	}
	p.Calibrated(batching.Profile{Sizes: sizes, Slowdown: []float64{1, 1.5}})
	if got := p.Predict(batching.Size{Rows: 8}, 2); got.Round(ms) != 120*ms {
		t.Errorf("8 rows beside another batch are predicted to take %v, want 120ms", got)
	}
}
