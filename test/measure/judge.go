package measure

import (
	"fmt"
	"math"

	"github.com/shoal-serving/shoal/internal/bench"
)

// MinSamples is the fewest samples of a figure that can be judged. It is the smallest odd
// number with which the median has a 95 % interval at all.
const MinSamples = 7

// A Bound is what a figure must keep to, both ends included. An infinite end
// promises nothing.
type Bound struct{ Low, High float64 }

// AtLeast returns the bound of a figure that must not be lower.
func AtLeast(low float64) Bound { return Bound{low, math.Inf(1)} }

// AtMost returns the bound of a figure that must not be higher.
func AtMost(high float64) Bound { return Bound{math.Inf(-1), high} }

// Between returns the bound of a figure that must be neither lower nor higher.
func Between(low, high float64) Bound { return Bound{low, high} }

// Nothing returns the bound of a figure that is reported and not promised.
func Nothing() Bound { return Bound{math.Inf(-1), math.Inf(1)} }

// Promises reports whether the bound excludes anything.
func (b Bound) Promises() bool { return !math.IsInf(b.Low, 0) || !math.IsInf(b.High, 0) }

// String returns the bound in words, such as "at least 0.95".
func (b Bound) String() string {
	switch low, high := !math.IsInf(b.Low, 0), !math.IsInf(b.High, 0); {
	case low && high:
		return fmt.Sprintf("%.4g to %.4g", b.Low, b.High)
	case low:
		return fmt.Sprintf("at least %.4g", b.Low)
	case high:
		return fmt.Sprintf("at most %.4g", b.High)
	}
	return "no promise"
}

// Miss returns by how much a value misses the bound, as a share of the end that it
// misses (of 1 if that is 0), and 0 if it keeps to it. What is not a number misses every bound.
func (b Bound) Miss(value float64) float64 {
	beyond := func(by, end float64) float64 {
		if end == 0 {
			return by
		}
		return by / math.Abs(end)
	}
	switch {
	case math.IsNaN(value):
		return math.Inf(1)
	case value < b.Low:
		return beyond(b.Low-value, b.Low)
	case value > b.High:
		return beyond(value-b.High, b.High)
	}
	return 0
}

// A Verdict is what came of one gate: a figure, and the bound that it must keep to.
type Verdict struct {
	Gate    string // its name, which is unique among all measurements
	Bound   Bound
	Median  float64
	Low     float64 // of the 95 % interval of the median, by rank
	High    float64
	Samples int
}

// Judge holds the median of samples against a bound. Fewer than [MinSamples], and values
// that are not finite, are an error: neither has a verdict.
func Judge(gate string, bound Bound, samples []float64) (Verdict, error) {
	if len(samples) < MinSamples {
		return Verdict{}, fmt.Errorf("%s: %d samples, want at least %d", gate, len(samples), MinSamples)
	}
	for i, v := range samples {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return Verdict{}, fmt.Errorf("%s: sample %d is %v", gate, i+1, v)
		}
	}
	v := Verdict{Gate: gate, Bound: bound, Samples: len(samples)}
	v.Median, v.Low, v.High = bench.Median(samples)
	return v, nil
}

// Met reports whether the median keeps to the bound.
func (v Verdict) Met() bool { return v.Bound.Miss(v.Median) == 0 }

// OnlyInterval reports whether the interval reaches the bound although the median
// does not. Such a figure is missed.
func (v Verdict) OnlyInterval() bool {
	return !v.Met() && v.High >= v.Bound.Low && v.Low <= v.Bound.High
}

// Outcome returns "met" or "missed by n %", and nothing if nothing is promised.
func (v Verdict) Outcome() string {
	switch {
	case !v.Bound.Promises():
		return ""
	case v.Met():
		return "met"
	}
	return fmt.Sprintf("missed by %.1f %%", 100*v.Bound.Miss(v.Median))
}

// String returns the verdict as a sentence, with the interval.
func (v Verdict) String() string {
	text := fmt.Sprintf("%s: %.4g [%.4g, %.4g]", v.Gate, v.Median, v.Low, v.High)
	if !v.Bound.Promises() {
		return text
	}
	return fmt.Sprintf("%s, want %v: %s", text, v.Bound, v.Outcome())
}

// Row returns the verdict as a row of a Markdown table: gate, figure, bound, outcome.
func (v Verdict) Row() string {
	bound := v.Bound.String()
	if !v.Bound.Promises() {
		bound = ""
	}
	return fmt.Sprintf("| %s | %.4g [%.4g, %.4g] | %s | %s |", v.Gate, v.Median, v.Low, v.High, bound, v.Outcome())
}
