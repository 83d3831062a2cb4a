package simulate

import (
	"slices"
	"strings"
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
		want = append(want, batching.Timing{Rows: rows, Took: took, Slow: took, Runs: 5})
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

func TestARunSaysWhatItsPolicyFoundOut(t *testing.T) {
	s, err := Read("scenario.yaml", []byte("model: {max_batch_size: 8, fixed: 2ms, per_row: 1ms}\nsettings:\n- {name: Triton's}\n- {name: Found out, batching: automatic}\n"+
		"load: {clients: 4, think: 0.1ms, requests: 1000}"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := report.WriteText(&text, 100); err != nil {
		t.Fatal(err)
	}
	const want = "Found out: batches filled up to 8 rows; a closed loop of about 4 clients"
	if n := strings.Count(text.String(), "batches filled up to"); n != 1 || !strings.Contains(text.String(), want) {
		t.Errorf("%d times it says what was found out, want once, as %q:\n%s", n, want, &text)
	}
	if p := report.Runs[1].Policies; len(p) != 1 || p[0].Efficient != 8 || len(report.Runs[0].Policies) != 0 {
		t.Errorf("the policies are %+v", p)
	}
}
