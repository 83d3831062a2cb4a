package simulate

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// arrivalsOf returns when requests of a load arrive, at a model that answers at once.
func arrivalsOf(t *testing.T, load Traffic) []time.Duration {
	t.Helper()
	load.Rows, load.Seed = []int{1}, 1
	var all []time.Duration
	var s Scenario
	_, err := s.Measure(Setting{
		Models: []ModelSetting{{
			Config: batching.Config{MaxRows: 1}, Curve: device.Curve{Fixed: 1}, Instances: 1,
		}},
		Traffic: []Traffic{load},
	}, func(a Answer) { all = append(all, a.Arrived) })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRatesChangeAsTheLoadSays(t *testing.T) {
	const rate, length = 1_000, 100 * time.Second
	// share returns how many of a thousand requests a second came in a part of each
	// period.
	share := func(all []time.Duration, period, from, to time.Duration) float64 {
		n := 0
		for _, at := range all {
			if in := at % period; in >= from && in < to {
				n++
			}
		}
		return float64(n) / (float64(rate) * length.Seconds() * float64(to-from) / float64(period))
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.03 {
			t.Errorf("%s: %.3f of the rate, want %.2f", what, got, want)
		}
	}
	load := Traffic{Rate: []float64{rate}, Duration: length}

	phases := load
	phases.Phases = []Phase{{0.5, 300 * ms}, {0, 100 * ms}, {2, 100 * ms}}
	all := arrivalsOf(t, phases)
	near("the first phase", share(all, 500*ms, 0, 300*ms), 0.5)
	near("the second", share(all, 500*ms, 300*ms, 400*ms), 0)
	near("the third", share(all, 500*ms, 400*ms, 500*ms), 2)

	phases.Chance = true
	near("phases by chance", share(arrivalsOf(t, phases), length, 0, length), 0.7)

	ramp := load
	ramp.Ramp = Ramp{From: 0.2, To: 1, Period: time.Second}
	all = arrivalsOf(t, ramp)
	near("the foot of a ramp", share(all, time.Second, 0, 50*ms), 0.2)
	near("its top", share(all, time.Second, 475*ms, 525*ms), 1)
	near("all of it", share(all, time.Second, 0, time.Second), 0.6)

	burst := load
	burst.Burst = Burst{Size: 8, Spacing: 10 * time.Microsecond}
	all = arrivalsOf(t, burst)
	near("bursts", share(all, length, 0, length), 1)
	for i := 1; i < len(all); i++ {
		if i%8 != 0 && all[i]-all[i-1] != 10*time.Microsecond {
			t.Fatalf("request %d of a burst came %v after the one before", i%8+1, all[i]-all[i-1])
		}
	}
}

func TestTheRateCountsRequestsHoweverLongBurstsTake(t *testing.T) {
	const size, length = 8, 100 * time.Second
	for name, load := range map[string]Traffic{
		"at random": {},
		"phases":    {Phases: []Phase{{0.5, 100 * ms}, {1.5, 100 * ms}}},
		"a ramp":    {Ramp: Ramp{From: 0.5, To: 1.5, Period: time.Second}},
		"even":      {Even: true},
	} {
		load.Rate, load.Duration, load.Burst = []float64{1_000}, length, Burst{Size: size, Spacing: 500 * time.Microsecond}
		all := arrivalsOf(t, load)
		if rate := float64(len(all)) / length.Seconds(); math.Abs(rate/1_000-1) > 0.03 {
			t.Errorf("%s: %.0f requests per second, want 1000", name, rate)
		}
		for i := 1; i < len(all); i++ {
			if gap := all[i] - all[i-1]; gap < 0 || i%size != 0 && gap != 500*time.Microsecond {
				t.Fatalf("%s: request %d of a burst came %v after the one before", name, i%size+1, gap)
			}
		}
	}
}

// The reader of scenarios refuses such loads; programs can make them.
func TestABurstThatIsTooLongIsFollowedByTheNextAtItsEnd(t *testing.T) {
	all := arrivalsOf(t, Traffic{Rate: []float64{1_000}, Even: true, Requests: 9, Burst: Burst{Size: 3, Spacing: 4 * ms}})
	want := []time.Duration{0, 4 * ms, 8 * ms, 8 * ms, 12 * ms, 16 * ms, 16 * ms, 20 * ms, 24 * ms}
	if !slices.Equal(all, want) {
		t.Errorf("requests come at %v, want %v", all, want)
	}
}

func TestSettingsThatFormTheSameBatchSeeItTakeTheSameTime(t *testing.T) {
	took := func(delay time.Duration) (all []time.Duration) {
		var s Scenario
		_, err := s.Measure(Setting{
			Models: []ModelSetting{{
				Config: batching.Config{MaxRows: 4, Policy: batching.Triton{MaxRows: 4, MaxDelay: delay}}, Instances: 1, Seed: 7,
				Curve: device.Curve{Fixed: ms, PerRow: ms}, Noise: device.Noise{Spread: 0.1}, Lengths: Range{0.5, 1.5},
				Drift: []device.Change{{At: 10 * time.Second, Times: 2}},
			}},
			Traffic: []Traffic{{Rate: []float64{10}, Even: true, Rows: []int{1}, Requests: 200}},
		}, func(a Answer) { all = append(all, a.At-a.Began) })
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	now, later := took(0), took(5*ms) // one request in each batch, held or not
	sum := func(all []time.Duration) (total time.Duration) {
		for _, d := range all {
			total += d
		}
		return total
	}
	if sum(now) != sum(later) {
		t.Errorf("batches take %v in all, and %v if they begin later", sum(now), sum(later))
	}
	if slower := float64(sum(now[100:])) / float64(sum(now[:100])); slower < 1.8 || slower > 2.2 {
		t.Errorf("the second half takes %.2f times as long, want about 2", slower)
	}
}
