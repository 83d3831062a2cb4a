package simulate

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// lengthsOn returns a run of 64 clients on a model. Each client has a length of its own,
// from the given one on in the given steps, and, with pads, may be padded.
func lengthsOn(t *testing.T, model ModelSetting, from, step int, pads bool) *Run {
	t.Helper()
	model.Automatic, model.Instances = true, 1
	model.Config.OvertakeOtherShapes = true
	var traffic []Traffic
	for i := range 64 {
		c := clientsOf(1)
		c.Shape, c.Rows, c.Seed, c.Duration = uint64(i+1), []int{1}, uint64(i+1), 20*time.Second
		if c.Elements = int64(from + i*step); pads {
			c.PadGroup = 1
		}
		traffic = append(traffic, c)
	}
	s := Scenario{Settings: []Setting{{Models: []ModelSetting{model}, Traffic: traffic}}}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return report.Runs[0]
}

// seedDevice returns the device on which a batch costs as much as 32 rows of the given
// length.
func seedDevice(length int) ModelSetting {
	return ModelSetting{
		Config:     batching.Config{MaxRows: 8},
		Curve:      device.Curve{Fixed: 1921 * time.Microsecond},
		PerElement: 59300 * time.Nanosecond / time.Duration(length),
	}
}

func TestPaddingIsUsedWhereABatchCostsMoreThanItsRows(t *testing.T) {
	for _, test := range []struct{ from, step int }{{1, 1}, {65, 1}, {8, 8}, {128, 2}} {
		t.Run(fmt.Sprintf("lengths of %d to %d", test.from, test.from+63*test.step), func(t *testing.T) {
			model := seedDevice(test.from + 32*test.step)
			apart := lengthsOn(t, model, test.from, test.step, false).Total.RowsPerSecond
			padded := lengthsOn(t, model, test.from, test.step, true).Total.RowsPerSecond
			t.Logf("%.0f rows/s apart, %.0f padded", apart, padded)
			if padded < 5*apart {
				t.Errorf("%.0f rows/s with padding, want 5 times the %.0f without", padded, apart)
			}
		})
	}
}

func TestPaddingIsNotUsedWhereOnlyElementsCost(t *testing.T) {
	for _, fixed := range []time.Duration{0, 200 * time.Microsecond} {
		for _, test := range []struct{ from, step int }{{8, 4}, {4, 1}, {65, 1}} {
			t.Run(fmt.Sprintf("%v a batch, lengths of %d to %d", fixed, test.from, test.from+63*test.step), func(t *testing.T) {
				model := ModelSetting{
					Config: batching.Config{MaxRows: 64}, Curve: device.Curve{Fixed: fixed},
					PerElement: 40 * time.Microsecond, Noise: device.Noise{Spread: 0.05}, Seed: 1,
				}
				apart := lengthsOn(t, model, test.from, test.step, false).Total.RowsPerSecond
				padded := lengthsOn(t, model, test.from, test.step, true).Total.RowsPerSecond
				t.Logf("%.1f rows/s apart, %.1f with padding", apart, padded)
				if padded < 0.97*apart {
					t.Errorf("%.1f rows/s with padding, want at least 0.97 of the %.1f without", padded, apart)
				}
			})
		}
	}
}
