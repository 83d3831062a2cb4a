package bench

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// windowOf returns a second in which requests were answered after these times.
func windowOf(latencies ...time.Duration) *Window {
	w := newWindow()
	w.Took = time.Second
	for _, l := range latencies {
		w.Answer(l)
	}
	return w
}

// upTo returns 1, 2, …, n.
func upTo(n time.Duration) (all []time.Duration) {
	for l := range n {
		all = append(all, l+1)
	}
	return all
}

func TestPercentilesAreOfWhatWasAnswered(t *testing.T) {
	w := windowOf(upTo(1000)...)
	w.Took = 4 * time.Second
	w.Rows = 2000
	w.Fail(errors.New("first"))
	w.Fail(errors.New("second"))
	got := w.Summarize(42)
	want := []Percentile{{42, 420}, {50, 500}, {75, 750}, {90, 900}, {95, 950}, {99, 990}, {99.9, 999}, {100, 1000}}
	if !slices.Equal(got.Percentiles, want) {
		t.Errorf("got %v, want %v", got.Percentiles, want)
	}
	if got.Requests != 1000 || got.Failed != 2 || got.Error != "first" || got.InfersPerSecond != 500 || got.Mean != 500 || got.Deviation != 289 {
		t.Errorf("got %+v", got)
	}
	if got.latency(99.9) != 999 || got.latency(0) != 500 {
		t.Errorf("got %v and %v", got.latency(99.9), got.latency(0))
	}
}

func TestLongLatenciesKeepThreeDigits(t *testing.T) {
	for _, l := range []time.Duration{3 * time.Millisecond, 12345 * time.Microsecond, 59 * time.Minute} {
		if got := windowOf(l).Latency(99); math.Abs(float64(got-l)) > float64(l)/1000 {
			t.Errorf("got %v, want %v", got, l)
		}
	}
	if got := windowOf(24 * time.Hour).Latency(0); got != time.Hour {
		t.Errorf("a day counts as %v, want an hour", got)
	}
}

func TestATimelineHasASecondWithoutAnswers(t *testing.T) {
	var l timeline
	l.at(100 * time.Millisecond).Answer(7)
	l.at(2 * time.Second).Answer(9)
	l.at(2 * time.Second).Fail(errors.New("gone"))
	want := []Second{{0, 1, 0, 7, 7, 7}, {time.Second, 0, 0, 0, 0, 0}, {2 * time.Second, 1, 1, 9, 9, 9}}
	if got := l.end(2 * time.Second); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := (&timeline{}).end(2 * time.Second); len(got) != 2 {
		t.Errorf("of two seconds without answers: %v", got)
	}
}

func TestAnEmptyWindowHasZeroes(t *testing.T) {
	got := newWindow().Summarize(0)
	if got.InfersPerSecond != 0 || got.Mean != 0 || got.Deviation != 0 || got.latency(99) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestMergedWindowsAreOne(t *testing.T) {
	a, b := windowOf(100, 200), windowOf(300)
	b.Fail(errors.New("b"))
	b.Late = 3
	a.Rows, b.Rows = 2, 1
	got := merge([]*Window{a, b}).Summarize(0)
	if got.Took != 2*time.Second || got.Requests != 3 || got.Failed != 1 || got.Late != 3 || got.Error != "b" || got.Mean != 200 || got.InfersPerSecond != 1.5 {
		t.Errorf("got %+v", got)
	}
}

func TestThreeWindowsThatAgreeAreStable(t *testing.T) {
	// n answers after l each.
	w := func(n int, l time.Duration) *Window { return windowOf(slices.Repeat([]time.Duration{l}, n)...) }
	tail := windowOf(append(slices.Repeat([]time.Duration{100}, 99), 1000)...)
	for _, c := range []struct {
		name    string
		rule    Rule
		windows []*Window
		want    bool
	}{
		{"two are too few", Rule{Percent: 10}, []*Window{w(100, 100), w(100, 100)}, false},
		{"the same", Rule{Percent: 10}, []*Window{w(100, 100), w(100, 100), w(100, 100)}, true},
		{"just within", Rule{Percent: 10}, []*Window{w(100, 100), w(110, 110), w(105, 105)}, true},
		{"throughput differs", Rule{Percent: 10}, []*Window{w(100, 100), w(111, 100), w(100, 100)}, false},
		{"latency differs", Rule{Percent: 10}, []*Window{w(100, 100), w(100, 111), w(100, 100)}, false},
		{"an older one differs", Rule{Percent: 10}, []*Window{w(5, 5), w(100, 100), w(100, 100), w(100, 100)}, true},
		{"an empty one", Rule{Percent: 10}, []*Window{w(0, 0), w(0, 0), w(0, 0)}, false},
		{"the median does not see the tail", Rule{Percent: 8, Percentile: 50}, []*Window{w(100, 100), tail, w(100, 100)}, true},
		{"the mean does", Rule{Percent: 8}, []*Window{w(100, 100), tail, w(100, 100)}, false},
	} {
		if got := c.rule.Stable(c.windows); got != c.want {
			t.Errorf("%s: stable is %v", c.name, got)
		}
	}
}

func take(s Schedule, n int) (all []time.Duration) {
	for at := range s {
		if all = append(all, at); len(all) == n {
			break
		}
	}
	return all
}

func TestAConstantRateDoesNotDrift(t *testing.T) {
	got := take(constant(3), 3_000_001)
	if got[0] != 0 || got[1] != 333333333 || got[2] != 666666666 || got[3] != time.Second || got[3_000_000] != 1_000_000*time.Second {
		t.Errorf("got %v … %v", got[:4], got[3_000_000])
	}
}

func TestPoissonArrivalsComeFromTheirSeed(t *testing.T) {
	a, b, other := take(Poisson(1000, 7), 10_000), take(Poisson(1000, 7), 10_000), take(Poisson(1000, 8), 10_000)
	if !slices.Equal(a, b) {
		t.Error("the same seed gave other times")
	}
	if slices.Equal(a, other) {
		t.Error("another seed gave the same times")
	}
	if !slices.IsSorted(a) {
		t.Error("times are not in order")
	}
	// Distances are as long on average as they deviate: 1 ms, to some percent.
	var sum, squares float64
	for i := 1; i < len(a); i++ {
		d := (a[i] - a[i-1]).Seconds()
		sum, squares = sum+d, squares+d*d
	}
	n := float64(len(a) - 1)
	mean := sum / n
	if dev := math.Sqrt(squares/n - mean*mean); math.Abs(mean-0.001) > 0.00005 || math.Abs(dev-0.001) > 0.00005 {
		t.Errorf("distances of %v s ± %v s, want 0.001 ± 0.001", mean, dev)
	}
}

func TestBurstsAndDistancesKeepTheirRate(t *testing.T) {
	const ms = time.Millisecond
	if got, want := take(Load{Rate: 300, Burst: 3}.schedule(), 7), []time.Duration{0, 0, 0, 10 * ms, 10 * ms, 10 * ms, 20 * ms}; !slices.Equal(got, want) {
		t.Errorf("bursts at %v, want %v", got, want)
	}
	single := take(Poisson(100, 7), 2)
	if got, want := take(Load{Rate: 300, Burst: 3, Poisson: true, Seed: 7}.schedule(), 4), []time.Duration{single[0], single[0], single[0], single[1]}; !slices.Equal(got, want) {
		t.Errorf("bursts at %v, want %v", got, want)
	}
	if got, want := take(Load{Intervals: []time.Duration{ms, 3 * ms}}.schedule(), 5), []time.Duration{0, ms, 4 * ms, 5 * ms, 8 * ms}; !slices.Equal(got, want) {
		t.Errorf("distances gave %v, want %v", got, want)
	}
}

func TestStatisticsAreOfTheTimeBetween(t *testing.T) {
	before := Statistics{
		Inferences: 10, Executions: 5, Requests: 5, Total: 500, Queue: 100, Input: 50, Infer: 200, Output: 50,
		BatchSizes: map[int]int{1: 3, 2: 1}, Closed: map[string]int{"full": 4},
	}
	after := Statistics{
		Inferences: 30, Executions: 10, Requests: 15, Total: 2500, Queue: 600, Input: 150, Infer: 1200, Output: 100,
		BatchSizes: map[int]int{1: 3, 2: 2, 8: 1}, Closed: map[string]int{"full": 5, "waited": 2},
	}
	got := after.Since(before)
	want := Statistics{20, 5, 10, 2000, 500, 100, 1000, 50, map[int]int{2: 1, 8: 1}, map[string]int{"full": 1, "waited": 2}}
	if !reflect.DeepEqual(got, want) || got.BatchRows() != 5 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := got.Each(), (Parts{Total: 200, Overhead: 35, Queue: 50, Input: 10, Infer: 100, Output: 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (Statistics{}).Each(); got != (Parts{}) {
		t.Errorf("of no requests: %+v", got)
	}
}
