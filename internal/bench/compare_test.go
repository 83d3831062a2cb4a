package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheMedianHasItsIntervalByRank(t *testing.T) {
	upTo := func(n int) (v []float64) {
		for i := n; i > 0; i-- {
			v = append(v, float64(i))
		}
		return v
	}
	for _, c := range []struct {
		n              int
		mid, low, high float64
	}{
		{1, 1, 1, 1},
		{2, 1.5, 1, 2},
		{6, 3.5, 1, 6},
		{7, 4, 1, 7},
		{8, 4.5, 1, 8},
		{9, 5, 2, 8},
		{11, 6, 2, 10},
		{12, 6.5, 3, 10},
		{20, 10.5, 6, 15},
		{100, 50.5, 40, 61},
	} {
		mid, low, high := Median(upTo(c.n))
		if mid != c.mid || low != c.low || high != c.high {
			t.Errorf("1 to %d: got %v [%v, %v], want %v [%v, %v]", c.n, mid, low, high, c.mid, c.low, c.high)
		}
	}
}

func TestTheBootstrapGivesTheSameIntervalEachTime(t *testing.T) {
	a, b := []float64{10, 11, 9, 10, 10, 12, 8}, []float64{20, 21, 19, 20, 20, 22, 18, 20}
	mid, low, high := ratioOfMedians(a, b)
	if again, l, h := ratioOfMedians(a, b); again != mid || l != low || h != high {
		t.Errorf("got %v [%v, %v], then %v [%v, %v]", mid, low, high, again, l, h)
	}
	if mid != 2 || low < 1.6 || low >= 2 || high <= 2 || high > 2.4 {
		t.Errorf("got %v [%v, %v]", mid, low, high)
	}
}

// report returns one of a load of 4, measured once for each latency. Throughput
// goes down as latency goes up, and all percentiles are the same.
func report(latencies ...time.Duration) *Report {
	r := &Report{Model: "m", Protocol: "HTTP", Rows: 1, Interval: time.Second}
	for i, d := range latencies {
		l := Level{Concurrency: 4, Stable: true, Repeat: i + 1, Client: Summary{Requests: 100, InfersPerSecond: 4 / d.Seconds(), Mean: d}}
		for _, p := range []float64{50, 95, 99} {
			l.Client.Percentiles = append(l.Client.Percentiles, Percentile{p, d})
		}
		r.Levels = append(r.Levels, l)
	}
	return r
}

// ms returns latencies in milliseconds.
func ms(values ...float64) (all []time.Duration) {
	for _, v := range values {
		all = append(all, time.Duration(math.Round(v*float64(time.Millisecond))))
	}
	return all
}

func TestComparedSidesAreBetterWorseOrTheSame(t *testing.T) {
	noisy := ms(10, 14, 8, 12, 9, 11, 16)
	times := func(f float64) (all []time.Duration) {
		for _, d := range noisy {
			all = append(all, time.Duration(float64(d)*f))
		}
		return all
	}
	for _, c := range []struct {
		name             string
		base, other      []time.Duration
		throughput, mean Verdict
		paired           bool
	}{
		// Pairs are what makes a tenth visible in so much noise.
		{"a tenth longer", noisy, times(1.1), Worse, Worse, true},
		{"a tenth shorter", noisy, times(0.9), Better, Better, true},
		{"alike", ms(10, 10, 10, 10, 10, 10, 10), ms(10.1, 9.9, 10, 10.2, 9.8, 10, 10), Same, Same, true},
		{"noise", noisy, ms(12, 9, 16, 8, 11, 10, 14), Unclear, Unclear, true},
		{"six repeats", noisy[:6], times(3)[:6], TooFew, TooFew, true},
		{"more on one side", noisy, append(times(3), 30*time.Millisecond), Worse, Worse, false},
		{"too few on one side", noisy, times(3)[:5], TooFew, TooFew, false},
	} {
		got, err := Compare([]Side{{"a", []*Report{report(c.base...)}}, {"b", []*Report{report(c.other...)}}})
		if err != nil {
			t.Fatal(err)
		}
		m := got.Loads[0].Measures
		throughput, mean := m[0].Of[1].Against, m[1].Of[1].Against
		if throughput.Verdict != c.throughput || mean.Verdict != c.mean || mean.Paired != c.paired {
			t.Errorf("%s: got %+v and %+v", c.name, *throughput, *mean)
		}
		if m[0].Of[0].Against != nil {
			t.Errorf("%s: the first side is held against itself", c.name)
		}
	}
}

func TestARatioIsTheMedianOfPairs(t *testing.T) {
	got := against([]float64{10, 20, 10, 20, 10, 20, 10}, []float64{11, 24, 13, 28, 15, 32, 17}, false)
	if want := (Ratio{Ratio: 1.4, Low: 1.1, High: 1.7, Paired: true, Verdict: Worse}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	// Without enough pairs there is a ratio, and no interval.
	few := against([]float64{10, 10}, []float64{15, 15}, false)
	if want := (Ratio{Ratio: 1.5, Paired: true, Verdict: TooFew}); *few != want {
		t.Errorf("got %+v, want %+v", *few, want)
	}
}

func TestRepeatsMayBeInSeveralFiles(t *testing.T) {
	one := report(ms(1, 2, 3)...)
	side := func(label string) Side { return Side{label, []*Report{one, report(ms(4, 5, 6, 7)...)}} }
	got, err := Compare([]Side{side("a"), side("b")})
	if err != nil || got.Loads[0].Measures[2].Of[1].Repeats != 7 || got.Loads[0].Measures[2].Of[1].Median != 4e6 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAComparisonSaysWhatToKnowBefore(t *testing.T) {
	a, b := report(ms(1, 2)...), report(ms(1, 2)...)
	a.Levels[0].Stable, a.Levels[1].Client.Failed = false, 3
	b.Levels[0].Client.Late, b.Rows = 50, 2
	b.Levels = append(b.Levels, Level{Rate: 100, Client: Summary{Requests: 1}, Stable: true}, Level{Concurrency: 4, Interrupted: true, Client: Summary{Requests: 1}})
	got, err := Compare([]Side{{"a", []*Report{a}}, {"b", []*Report{b}}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a: 1 of 2 measurements did not become stable.",
		"a: 1 of 2 measurements had requests that failed.",
		"b: 1 of 3 measurements were sent late: the machine that measured could not keep up.",
		"Not all was measured in the same way: a has model m over HTTP, requests of 1 row, windows of 1s; b has model m over HTTP, requests of 2 rows, windows of 1s.",
		"b: not compared, since not all have it: Request Rate: 100.",
	}
	if !slices.Equal(got.Notes, want) {
		t.Errorf("got  %q\nwant %q", got.Notes, want)
	}
}

func TestWithoutASharedLoadThereIsNoComparison(t *testing.T) {
	other := report(ms(1)...)
	other.Levels[0].Concurrency = 8
	for want, sides := range map[string][]Side{
		"a and b have no load in common": {{"a", []*Report{report(ms(1)...)}}, {"b", []*Report{other}}},
		"needs at least two sides":       {{"a", []*Report{other}}},
	} {
		if _, err := Compare(sides); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestAComparisonAsTextAndJSON(t *testing.T) {
	base := ms(10, 10, 10, 10, 10, 10, 10)
	c, err := Compare([]Side{{"base", []*Report{report(base...)}}, {"new", []*Report{report(ms(20, 20, 20, 20, 20, 20, 20)...)}}, {"few", []*Report{report(ms(5)...)}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	want := `Concurrency: 4
              side  repeats  median         ratio  95 % interval   
  throughput  base  7        400.0 infer/s                         
              new   7        200.0 infer/s  0.500  0.500 to 0.500  worse
              few   1        800.0 infer/s  2.000  –               not enough repeats to say
  mean        base  7        10.0 ms                               
              new   7        20.0 ms        2.000  2.000 to 2.000  worse
              few   1        5.00 ms        0.500  –               not enough repeats to say
`
	if got := out.String(); !strings.HasPrefix(got, want) ||
		!strings.HasSuffix(got, "\nnew, compared with base: worse in 5 of 5 figures.\nfew, compared with base: not enough repeats to say in 5 of 5 figures.\n") {
		t.Errorf("got\n%s", got)
	}
	if got := fmt.Sprint(c.Worse()); got != "[new: throughput at Concurrency: 4 new: mean at Concurrency: 4 new: p50 at Concurrency: 4 new: p95 at Concurrency: 4 new: p99 at Concurrency: 4]" {
		t.Errorf("got %s", got)
	}
	out.Reset()
	var back Comparison
	if err := c.WriteJSON(&out); err != nil || json.Unmarshal(out.Bytes(), &back) != nil || *back.Loads[0].Measures[4].Of[1].Against != (Ratio{2, 2, 2, true, Worse}) {
		t.Errorf("got %v: %s", err, out.String())
	}
}
