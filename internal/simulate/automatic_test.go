package simulate

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

func TestCalibrationMeasuresTheDevice(t *testing.T) {
	got := Calibrated(device.Curve{Fixed: 2 * ms, PerRow: ms}, []float64{1, 1.5}, 10, 3)
	var want []batching.Timing
	for _, rows := range []int{1, 2, 3, 4, 5, 6, 8, 9, 10} {
		took := time.Duration(2+rows) * ms
		want = append(want, batching.Timing{Rows: rows, Median: took, P95: took, Runs: 5})
	}
	if !slices.Equal(got.Sizes, want) {
		t.Errorf("the sizes are %v, want %v", got.Sizes, want)
	}
	if want := []float64{1, 1.5, 1.5}; !slices.Equal(got.Slowdown, want) {
		t.Errorf("the slowdown is %v, want %v", got.Slowdown, want)
	}
}
