package calibrate

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Bounds are how far a model is measured.
type Bounds struct {
	MaxRows   int // of the largest batch, at least 1
	Instances int // that may run at once, at least 1
}

// Findings are what has been measured so far.
type Findings struct {
	Profile batching.Profile

	// Ended says why larger sizes are not measured; "" if they may be.
	Ended string `json:",omitempty"`

	// Disturbed says that others used the cores meanwhile: it is the best that is
	// known for now, and not worth keeping.
	Disturbed bool `json:",omitempty"`
}

// A Step is what is measured next: a batch of so many rows, on so many instances at
// once, so many times on each. One run more, before them, does not count: in it
// memory is taken, and code made ready, for the first batch of its size.
type Step struct {
	Rows      int
	Instances int
	Runs      int
}

// How much is measured.
const (
	sizeRuns     = 5                      // of each size
	instanceRuns = 3                      // of each number of instances, and of what is long
	long         = 100 * time.Millisecond // takes what is run that few times
	mostRuns     = 64                     // of a batch that is so short that a few say little
	enough       = 10 * time.Millisecond  // of which so much is measured
	sure         = 100 * time.Millisecond // the same of what threads and instances are chosen by
	sureRuns     = 10                     // the least, unless it is long
	slow         = time.Second            // what takes longer is the last size

	// A size that is so many times that at which the model does the most, and so many
	// rows, is the last as well: nobody would want a larger one.
	beyond, least = 4, 16

	// A step that is in doubt is measured so many times at the most.
	attempts = 3
	// So many times is what runs may differ by that nobody disturbed.
	apart = 1.25
	// Others disturb if one part in so many of the time went by with somebody waiting
	// for a core.
	busy = 8
)

// Next returns what to measure next, and false if all has been. First one instance
// runs each size by itself, then as many at once as may, at the size at which the
// model does the most. That size is measured once more before: the best of many that
// were measured a few times is rather the luckiest of them.
func Next(b Bounds, f Findings) (Step, bool) {
	sizes := f.Profile.Sizes
	if len(sizes) == 0 {
		return Step{Rows: 1, Instances: 1, Runs: sizeRuns}, true
	}
	last := sizes[len(sizes)-1]
	if last.Rows == 1 && !settled(last) {
		return again(last), true // nobody knew before how short it is
	}
	past := last.Rows >= max(least, beyond*Efficient(f.Profile).Rows)
	if f.Ended == "" && last.Took <= slow && !past {
		if last.Rows < b.MaxRows {
			rows := min(b.MaxRows, batching.SizeAfter(last.Rows))
			return Step{Rows: rows, Instances: 1, Runs: runs(sizeRuns, enough, last.Took)}, true
		}
	}
	best := Efficient(f.Profile)
	if len(f.Profile.Slowdown) == 0 && !settled(best) {
		return again(best), true
	}
	if n := len(f.Profile.Slowdown); n < b.Instances && b.Instances > 1 {
		return Step{Rows: best.Rows, Instances: max(2, n+1), Runs: runs(instanceRuns, sure, best.Took)}, true
	}
	return Step{}, false
}

// again measures a size once more, as often as it takes to be sure.
func again(t batching.Timing) Step {
	return Step{Rows: t.Rows, Instances: 1, Runs: runs(sureRuns, sure, t.Took)}
}

// settled reports whether that has been done, or is not worth it.
func settled(t batching.Timing) bool { return t.Runs >= sureRuns || t.Took > long }

// runs returns how often a batch is run that takes about so long, and of which so
// much is enough.
func runs(usual int, enough, takes time.Duration) int {
	if takes > long {
		return instanceRuns
	}
	return max(usual, min(mostRuns, int(enough/max(takes, 1))))
}

// doubts reports whether somebody else seems to have used the cores meanwhile, of
// whom only the time that batches take can tell: half of the runs took much longer
// than the fastest, or batches that ran at once took longer than they would have one
// after the other. took is not empty.
func (f Findings) doubts(s Step, took []time.Duration) bool {
	middle := float64(middleOf(took))
	if middle > apart*float64(slices.Min(took)) {
		return true
	}
	return s.Instances > 1 && middle > apart*float64(s.Instances)*float64(timeOf(f.Profile, s.Rows))
}

func middleOf[T cmp.Ordered](all []T) T {
	return slices.Sorted(slices.Values(all))[(len(all)-1)/2]
}

// Add returns the findings with what a step took, of which the first run of each
// instance has been left out. took is not empty.
func (f Findings) Add(s Step, took []time.Duration) Findings {
	took = slices.Sorted(slices.Values(took))
	middle := middleOf(took)
	p := f.Profile
	if s.Instances == 1 {
		sizes := slices.DeleteFunc(slices.Clone(p.Sizes), func(t batching.Timing) bool { return t.Rows == s.Rows })
		sizes = append(sizes, batching.Timing{Rows: s.Rows, Took: middle, Slow: took[(len(took)-1)*95/100], Runs: len(took)})
		slices.SortFunc(sizes, func(a, b batching.Timing) int { return cmp.Compare(a.Rows, b.Rows) })
		p.Sizes = sizes
	} else {
		alone := timeOf(p, s.Rows)
		// Others at work do not make a batch faster. What looks like it is chance.
		slower := max(1, float64(middle)/float64(max(alone, 1)))
		p.Slowdown = append(slices.Clone(p.Slowdown), slower)
		if s.Instances == 2 {
			p.Slowdown = []float64{1, slower}
		}
	}
	f.Profile = p
	return f
}

func timeOf(p batching.Profile, rows int) time.Duration {
	for _, t := range p.Sizes {
		if t.Rows == rows {
			return t.Took
		}
	}
	return 0
}

// Efficient returns the smallest size at which the model does nearly as many rows
// in a time as at any. The zero Timing means that nothing was measured.
func Efficient(p batching.Profile) batching.Timing {
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

// rate returns rows in a second.
func rate(t batching.Timing) float64 {
	return float64(t.Rows) / max(t.Took, 1).Seconds()
}
