package simulate

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// shapesOn returns a run of the automatic policy with the given traffic, each entry with a
// shape of its own, on a device where a batch costs far more than a row.
func shapesOn(t *testing.T, calibrated bool, traffic ...Traffic) *Run {
	t.Helper()
	for i := range traffic {
		traffic[i].Shape, traffic[i].Rows, traffic[i].Seed, traffic[i].Duration = uint64(i+1), []int{1}, uint64(i+1), 5*time.Second
	}
	s := Scenario{Settings: []Setting{{
		Models: []ModelSetting{{
			Config:    batching.Config{MaxRows: 8, OvertakeOtherShapes: true},
			Curve:     device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300 * time.Nanosecond},
			Instances: 1, Automatic: true, Calibrated: calibrated,
		}},
		Traffic: traffic,
	}}}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return report.Runs[0]
}

// clientsOf returns a closed loop of the given number of clients.
func clientsOf(n int) Traffic {
	return Traffic{Clients: []int{n}, Think: []Span{{From: 100 * time.Microsecond, To: 300 * time.Microsecond}}}
}

// A batch holds the clients of one shape only. Of six shapes, each has more clients than a
// batch holds; of 16 it has 4 or 5, and of 64 about one: then the bound is what batches of
// that size can do.
func TestClientsOfDifferentShapesFillTheirBatches(t *testing.T) {
	for _, test := range []struct {
		shapes int
		least  float64 // rows per second
	}{{1, 3300}, {2, 3300}, {6, 3300}, {16, 1850}, {64, 505}} {
		for _, calibrated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d shapes, calibrated %t", test.shapes, calibrated), func(t *testing.T) {
				var traffic []Traffic
				for i := range test.shapes {
					traffic = append(traffic, clientsOf(66*(i+1)/test.shapes-66*i/test.shapes))
				}
				run := shapesOn(t, calibrated, traffic...)
				if got := run.Total.RowsPerSecond; got < test.least {
					t.Errorf("%.0f rows/s, want at least %.0f", got, test.least)
				}
			})
		}
	}
}

func TestRequestsOfSixShapesAreAllAnswered(t *testing.T) {
	one := shapesOn(t, true, Traffic{Rate: []float64{1800}})
	var traffic []Traffic
	for range 6 {
		traffic = append(traffic, Traffic{Rate: []float64{300}})
	}
	six := shapesOn(t, true, traffic...)
	if six.Total.Answered != six.Total.Sent || six.Total.Latency.P50 > 3*one.Total.Latency.P50 {
		t.Errorf("%d of %d answered, p50 %v; want all, and at most three times the %v of one shape", six.Total.Answered, six.Total.Sent, six.Total.Latency.P50, one.Total.Latency.P50)
	}
}

func TestNoShapeStarves(t *testing.T) {
	one := shapesOn(t, true, clientsOf(66)).Total.Latency
	for _, rare := range []int{1, 2, 5} {
		mixed := shapesOn(t, true, clientsOf(66-rare), clientsOf(rare)).Total.Latency
		if mixed.Max > 2*one.Max {
			t.Errorf("%d clients of another shape: some request took %v, want at most twice the %v of one shape", rare, mixed.Max, one.Max)
		}
	}
}

// A request of a rare shape finds two instances that requests of another shape keep busy. It
// waits for those that are queued before it, and is passed by two batches at most.
func TestARareShapeIsPassedByTwoBatches(t *testing.T) {
	curve := device.Curve{Fixed: 2 * time.Millisecond, PerRow: time.Millisecond}
	slowdown := []float64{1, 1.3}
	full := time.Duration(slowdown[1] * float64(curve.Takes(8)))
	for _, load := range []float64{0.9, 1.2} {
		s := Scenario{Settings: []Setting{{
			Slowdown: slowdown,
			Models: []ModelSetting{{
				Config: batching.Config{
					MaxRows: 8, OvertakeOtherShapes: true, Shared: batching.Bound{Requests: 16}, Levels: []batching.Level{{UseSharedBound: true}}, DefaultLevel: 1,
				},
				Curve: curve, Instances: 2, Automatic: true, Calibrated: true,
			}},
			Traffic: []Traffic{{Shape: 1, Rows: []int{1}, Rate: []float64{load * 2 * 8 / full.Seconds()}, Seed: 1, Duration: 5 * time.Second}},
		}}}
		for i := range 25 {
			s.Arrivals = append(s.Arrivals, Arrival{At: time.Duration(i) * 200 * time.Millisecond, ID: "rare", Rows: 1, Shape: 2})
		}
		report, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		answered := 0
		for _, r := range report.Runs[0].Requests {
			if r.ID != "rare" || r.Refusal != "" {
				continue
			}
			answered++
			if took := r.Ended - r.Arrived; took > 4*full {
				t.Errorf("at %.0f %% load a rare request took %v, want at most four batches of %v", 100*load, took, full)
			}
		}
		if load < 1 && answered < 20 {
			t.Errorf("at %.0f %% load %d of 25 rare requests were answered", 100*load, answered)
		}
	}
}
