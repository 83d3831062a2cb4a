package simulate

import (
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
)

func TestCalibrationMeasuresTheDevice(t *testing.T) {
	got := Calibrated(device.Curve{Fixed: 2 * ms, PerRow: ms}, []float64{1, 1.5}, 10, 3)
	want := []automatic.Timing{
		{Rows: 1, Took: 3 * ms}, {Rows: 2, Took: 4 * ms}, {Rows: 3, Took: 5 * ms}, {Rows: 4, Took: 6 * ms}, {Rows: 5, Took: 7 * ms},
		{Rows: 6, Took: 8 * ms}, {Rows: 7, Took: 9 * ms}, {Rows: 8, Took: 10 * ms}, {Rows: 9, Took: 11 * ms}, {Rows: 10, Took: 12 * ms},
	}
	for i := range want {
		want[i].Slow, want[i].Runs = want[i].Took, 5
	}
	if !slices.Equal(got.Sizes, want) {
		t.Errorf("the sizes are %v, want %v", got.Sizes, want)
	}
	if want := []float64{1, 1.5, 1.5}; !slices.Equal(got.Slowdown, want) {
		t.Errorf("the slowdown is %v, want %v", got.Slowdown, want)
	}
}

func TestEachRunOfASettingLearnsAnew(t *testing.T) {
	load := func(clients string) *Run {
		s, err := Read("scenario.yaml", []byte("model: {max_batch_size: 8, fixed: 2ms, per_row: 1ms, batching: automatic, calibrated: false}\n"+
			"load: {clients: "+clients+", think: {from: 0.1ms, to: 0.3ms}, requests: 1000}"))
		if err != nil {
			t.Fatal(err)
		}
		report, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		return report.Runs[len(report.Runs)-1]
	}
	if alone, after := load("4"), load("[64, 4]"); alone.Total.Latency != after.Total.Latency {
		t.Errorf("4 clients see %v by themselves, and %v in a run that follows another", alone.Total.Latency, after.Total.Latency)
	}
}
