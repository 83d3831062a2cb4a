package calibrate

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Bounds limit what is measured.
type Bounds struct {
	MaxRows   int // rows of the largest batch, at least 1
	Instances int // instances that run at once, at least 1
}

// Findings are the measurements so far.
type Findings struct {
	Profile batching.Profile

	// StopReason is why larger sizes cannot be measured; "" if they can.
	StopReason string `json:"Ended,omitempty"`

	// Disturbed means that other work used the cores during a measurement. The findings
	// are the best available, but must not be stored.
	Disturbed bool `json:",omitempty"`
}

// A Step is one measurement: a batch of Rows rows, on Instances instances at once, Runs
// times on each. An additional first run does not count, because the first batch of a size
// allocates memory and warms up code.
type Step struct {
	Rows      int
	Instances int
	Runs      int
}

// How much is measured. A step has a minimum number of runs. Short batches are run more
// often, until the runs take a minimum time in total, but at most maxRuns times.
const (
	sizeRuns     = 5                      // minimum runs per size
	sizeTime     = 10 * time.Millisecond  // minimum time per size
	instanceRuns = 3                      // minimum runs per number of instances
	decisiveRuns = 10                     // minimum runs of a size that a choice depends on
	decisiveTime = 100 * time.Millisecond // minimum time of a measurement that a choice depends on
	maxRuns      = 64
	longBatch    = 100 * time.Millisecond // longer batches are run only instanceRuns times
	maxBatchTime = time.Second            // no sizes are measured beyond one that takes longer

	// Nor beyond one with at least pastMinRows rows and pastBestFactor times the rows of
	// the most efficient size: larger batches have no use.
	pastBestFactor, pastMinRows = 4, 16

	// maxAttempts bounds how often a doubtful step is measured.
	maxAttempts = 3
	// maxSpread is the factor by which undisturbed runs may differ.
	maxSpread = 1.25
	// A step is disturbed if threads waited for a core for more than
	// 1/contentionDivisor of its time.
	contentionDivisor = 8
)

// Next returns what to measure next, or false if everything has been measured. First one
// instance runs each size by itself; then 2, 3, … instances run at once, up to the bound,
// at the most efficient size. Before that, this size is measured again: the best of many
// sizes that were measured a few times is likely to be the luckiest one.
func Next(b Bounds, f Findings) (Step, bool) {
	sizes := f.Profile.Sizes
	if len(sizes) == 0 {
		return Step{Rows: 1, Instances: 1, Runs: sizeRuns}, true
	}
	last := sizes[len(sizes)-1]
	if last.Rows == 1 && !measuredEnough(last) {
		return measureAgain(last), true // the first step could not know how short it is
	}
	pastBest := last.Rows >= max(pastMinRows, pastBestFactor*mostEfficient(f.Profile).Rows)
	if f.StopReason == "" && last.Median <= maxBatchTime && !pastBest {
		if last.Rows < b.MaxRows {
			rows := min(b.MaxRows, batching.NextSize(last.Rows))
			return Step{Rows: rows, Instances: 1, Runs: runsFor(sizeRuns, sizeTime, last.Median)}, true
		}
	}
	best := mostEfficient(f.Profile)
	if len(f.Profile.Slowdown) == 0 && !measuredEnough(best) {
		return measureAgain(best), true
	}
	if n := len(f.Profile.Slowdown); n < b.Instances && b.Instances > 1 {
		return Step{Rows: best.Rows, Instances: max(2, n+1), Runs: runsFor(instanceRuns, decisiveTime, best.Median)}, true
	}
	return Step{}, false
}

// measureAgain returns the step that measures a size again, often enough to base a choice
// on it.
func measureAgain(t batching.Timing) Step {
	return Step{Rows: t.Rows, Instances: 1, Runs: runsFor(decisiveRuns, decisiveTime, t.Median)}
}

// measuredEnough reports whether a choice can be based on t, or measuring it again would
// take too long.
func measuredEnough(t batching.Timing) bool { return t.Runs >= decisiveRuns || t.Median > longBatch }

// runsFor returns how often to run a batch that takes about the given time.
func runsFor(minRuns int, minTime, takes time.Duration) int {
	if takes > longBatch {
		return instanceRuns
	}
	return max(minRuns, min(maxRuns, int(minTime/max(takes, 1))))
}

// doubtful reports whether the times of a step suggest that other work used the cores:
// half of the runs took much longer than the fastest, or batches that ran at once took
// longer than they would have one after the other. took must not be empty.
func (f Findings) doubtful(s Step, took []time.Duration) bool {
	mid := float64(median(took))
	if mid > maxSpread*float64(slices.Min(took)) {
		return true
	}
	return s.Instances > 1 && mid > maxSpread*float64(s.Instances)*float64(timeOf(f.Profile, s.Rows))
}

func median[T cmp.Ordered](all []T) T {
	return slices.Sorted(slices.Values(all))[(len(all)-1)/2]
}

// add returns the findings with the times of a step, without the first run of each
// instance. took must not be empty.
func (f Findings) add(s Step, took []time.Duration) Findings {
	took = slices.Sorted(slices.Values(took))
	mid := median(took)
	p := f.Profile
	if s.Instances == 1 {
		sizes := slices.DeleteFunc(slices.Clone(p.Sizes), func(t batching.Timing) bool { return t.Rows == s.Rows })
		sizes = append(sizes, batching.Timing{Rows: s.Rows, Median: mid, P95: took[(len(took)-1)*95/100], Runs: len(took)})
		slices.SortFunc(sizes, func(a, b batching.Timing) int { return cmp.Compare(a.Rows, b.Rows) })
		p.Sizes = sizes
	} else {
		alone := timeOf(p, s.Rows)
		// Concurrent batches do not make a batch faster; a ratio below 1 is noise.
		slower := max(1, float64(mid)/float64(max(alone, 1)))
		p.Slowdown = append(slices.Clone(p.Slowdown), slower)
		if s.Instances == 2 {
			p.Slowdown = []float64{1, slower}
		}
	}
	f.Profile = p
	return f
}

// timeOf returns the measured time of a batch size, or 0 if it was not measured.
func timeOf(p batching.Profile, rows int) time.Duration {
	for _, t := range p.Sizes {
		if t.Rows == rows {
			return t.Median
		}
	}
	return 0
}

// mostEfficient returns the smallest size whose throughput is within 1 % of the best. It returns
// the zero Timing if nothing was measured.
func mostEfficient(p batching.Profile) batching.Timing {
	const nearly = 0.99
	most := 0.0
	for _, t := range p.Sizes {
		most = max(most, rate(t))
	}
	for _, t := range p.Sizes {
		if rate(t) >= nearly*most {
			return t
		}
	}
	return batching.Timing{}
}

// rate returns the throughput in rows per second.
func rate(t batching.Timing) float64 {
	return float64(t.Rows) / max(t.Median, 1).Seconds()
}
