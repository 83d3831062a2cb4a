package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// overload runs requests of one row at a multiple of the throughput of full batches, and
// returns the summary and that throughput. Batch times vary randomly by 3 %.
func overload(t *testing.T, set ModelSetting, times float64, within time.Duration) (Summary, float64) {
	t.Helper()
	const slow = 105 // p95 of batch times, in percent of the mean
	largest := 1
	for n := 1; n <= set.Config.MaxRows && 2*slow*set.Curve.Takes(n)/100 <= set.Objective; n++ {
		largest = n
	}
	capacity := float64(largest) / set.Curve.Takes(largest).Seconds()
	tr := newTrial(Setting{})
	set.Config.Policy, set.Instances = batching.Triton{MaxRows: set.Config.MaxRows}, 1
	tr.add(set)
	chance := rand.New(rand.NewPCG(1, 2))
	exactly := tr.models[0].Takes
	tr.models[0].Takes = func(items []*batching.Item) time.Duration {
		return time.Duration(float64(exactly(items)) * math.Exp(0.03*chance.NormFloat64()))
	}
	tr.send(Traffic{Rate: []float64{times * capacity}, Rows: []int{1}, Within: within, Duration: 40 * time.Second, Seed: 5}, 0)
	run, err := tr.finish()
	if err != nil {
		t.Fatal(err)
	}
	return run.Total, capacity
}

var overloaded = map[string]ModelSetting{
	"mid":    {Curve: device.Curve{Fixed: 5 * ms, PerRow: ms / 2}, Objective: 50 * ms, Config: batching.Config{MaxRows: 64}},
	"flat":   {Curve: device.Curve{Fixed: 5 * ms, PerRow: ms / 20}, Objective: 20 * ms, Config: batching.Config{MaxRows: 64}},
	"linear": {Curve: device.Curve{Fixed: ms, PerRow: ms}, Objective: 50 * ms, Config: batching.Config{MaxRows: 64}},
	"seed":   {Curve: device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300}, Objective: 20 * ms, Config: batching.Config{MaxRows: 8}},
}

func TestOverloadCostsNoGoodput(t *testing.T) {
	for name, set := range overloaded {
		set.Admission = true
		for _, times := range []float64{0.95, 1.2, 2, 4} {
			t.Run(fmt.Sprintf("%s, %g times", name, times), func(t *testing.T) { holdGoodput(t, set, times) })
		}
		set.Automatic, set.Calibrated = true, true
		for _, times := range []float64{1.2, 4} {
			t.Run(fmt.Sprintf("%s by itself, %g times", name, times), func(t *testing.T) { holdGoodput(t, set, times) })
		}
	}
}

func percent(part, of int) float64 { return 100 * float64(part) / float64(max(1, of)) }

func holdGoodput(t *testing.T, set ModelSetting, times float64) {
	t.Helper()
	got, capacity := overload(t, set, times, 0)
	t.Logf("%.1f %% of %.0f a second in time, %.2f %% late, refused after %v, p99 %v", 100*got.Goodput/capacity/min(1, times), capacity, percent(got.Late, got.Answered), got.Refusal.Mean, got.Refusal.P99)
	if least := min(0.97, 0.95*times) * capacity; got.Goodput < least { // below its capacity, bursts make it refuse some
		t.Errorf("%.0f a second are answered in time, want %.0f", got.Goodput, least)
	}
	if late := percent(got.Late, got.Answered); late > 0.5 {
		t.Errorf("%.2f %% are late, want 0.5", late)
	}
	if most := set.Objective * 3 / 10; times >= 2 && got.Refusal.Mean > most {
		t.Errorf("requests are refused after %v, want %v", got.Refusal.Mean, most)
	}
}

// Where two batches at once are slower than one after the other, the second instance is idle. A
// request that arrives beside a batch runs after it, and not beside it: it is answered at 20 ms.
func TestARequestIsPredictedToWaitForTheBatchesThatThePolicyAllows(t *testing.T) {
	s := Scenario{
		Arrivals: []Arrival{{At: 0, ID: "a", Rows: 1}, {At: 9 * ms, ID: "b", Rows: 1}},
		Settings: []Setting{{
			Slowdown: []float64{1, 2.6},
			Models: []ModelSetting{{
				Config: batching.Config{MaxRows: 2, OvertakeOtherShapes: true}, Curve: device.Curve{PerRow: 10 * ms}, Instances: 2,
				Automatic: true, Calibrated: true, Admission: true, Objective: 25 * ms,
			}},
		}},
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []batching.Time{10 * ms, 20 * ms} {
		if r := report.Runs[0].Requests[i]; r.Answered != want || r.Refusal != "" {
			t.Errorf("%s is answered at %v, refused %q; want %v", r.ID, r.Answered, r.Refusal, want)
		}
	}
}

// Without admission control, an instance takes requests whose deadline it cannot meet, and
// meets hardly any.
func TestOverloadWithDeadlinesCollapsesWithoutAdmission(t *testing.T) {
	set := overloaded["mid"]
	before, capacity := overload(t, set, 1.2, set.Objective)
	set.Admission = true
	after, _ := overload(t, set, 1.2, set.Objective)
	if before.Goodput > 0.3*capacity || after.Goodput < 0.97*capacity {
		t.Errorf("of %.0f a second %.0f are answered without admission, and %.0f with it", capacity, before.Goodput, after.Goodput)
	}
}
