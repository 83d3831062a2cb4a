package calibrate

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching/automatic"
)

// Bounds are how far a model is measured.
type Bounds struct {
	MaxRows   int // of the largest batch, at least 1
	Instances int // that may run at once, at least 1
}

// Findings are what has been measured so far.
type Findings struct {
	Profile automatic.Profile

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
			rows := min(b.MaxRows, automatic.SizeAfter(last.Rows))
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
func again(t automatic.Timing) Step {
	return Step{Rows: t.Rows, Instances: 1, Runs: runs(sureRuns, sure, t.Took)}
}

// settled reports whether that has been done, or is not worth it.
func settled(t automatic.Timing) bool { return t.Runs >= sureRuns || t.Took > long }

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

func middleOf(took []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(took))[(len(took)-1)/2]
}

// Add returns the findings with what a step took, of which the first run of each
// instance has been left out. took is not empty.
func (f Findings) Add(s Step, took []time.Duration) Findings {
	took = slices.Sorted(slices.Values(took))
	middle := middleOf(took)
	p := f.Profile
	if s.Instances == 1 {
		sizes := slices.DeleteFunc(slices.Clone(p.Sizes), func(t automatic.Timing) bool { return t.Rows == s.Rows })
		sizes = append(sizes, automatic.Timing{Rows: s.Rows, Took: middle, Slow: took[(len(took)-1)*95/100], Runs: len(took)})
		slices.SortFunc(sizes, func(a, b automatic.Timing) int { return cmp.Compare(a.Rows, b.Rows) })
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

func timeOf(p automatic.Profile, rows int) time.Duration {
	for _, t := range p.Sizes {
		if t.Rows == rows {
			return t.Took
		}
	}
	return 0
}

// Efficient returns the smallest size at which the model does nearly as many rows
// in a time as at any. The zero Timing means that nothing was measured.
func Efficient(p automatic.Profile) automatic.Timing {
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
	return automatic.Timing{}
}

// rate returns rows in a second.
func rate(t automatic.Timing) float64 {
	return float64(t.Rows) / max(t.Took, 1).Seconds()
}

// A Setting is a number of threads with what was measured with so many.
type Setting struct {
	Threads int
	Found   Findings
}

// A Choice is how a model computes the most.
type Choice struct {
	Threads   int // for one batch
	Lone      int // for one that begins while no other runs, if that is more; 0 if not
	Instances int // at once
	Rows      int // of the size at which it does
	PerSecond float64
	Alone     time.Duration // what one row takes by itself
}

const (
	// near is how much better a setting must be to be worth more instances or threads.
	near = 1.03

	// crowded is the part that is left of what a batch on several threads does, once
	// there are clients: it waits for whichever of its threads waits for a core. The
	// text recogniser does 0.84 and 0.69 of it with 32 and 64 clients on two cores.
	crowded = 0.8

	// lonely is how many times as fast more threads must answer a small batch that is
	// alone to be worth having the model in memory twice.
	lonely = 1.1
)

// Choose returns the best of some settings, of which there is at least one: the one
// that does the most rows in a second while there are clients. Models are measured
// while there are none. Then several threads for one batch look as good as one
// thread for each of several; but under load the server itself wants the cores, too,
// which costs the former more. Settings within three percent are equal; then fewer
// instances are better, and then fewer threads. A batch that begins while no other
// runs may have more threads than those that are chosen for load.
func Choose(settings []Setting) Choice {
	all := Choices(settings)
	best := 0.0
	for i := range all {
		best = max(best, all[i].score())
	}
	var chosen *Choice
	for i := range all {
		c := &all[i]
		if c.score()*near < best {
			continue
		}
		if chosen == nil || c.Instances < chosen.Instances || c.Instances == chosen.Instances && c.Threads < chosen.Threads {
			chosen = c
		}
	}
	return *chosen
}

// Choices returns what there is to choose from: each setting with each number of
// instances that it was measured with.
func Choices(settings []Setting) (all []Choice) {
	for _, s := range settings {
		for n := range max(1, len(s.Found.Profile.Slowdown)) {
			c := choiceOf(s, n+1)
			c.addLone(settings)
			all = append(all, c)
		}
	}
	return all
}

func choiceOf(s Setting, instances int) Choice {
	p := s.Found.Profile
	best := Efficient(p)
	slower := 1.0
	if len(p.Slowdown) >= instances {
		slower = p.Slowdown[instances-1]
	}
	return Choice{
		Threads: s.Threads, Instances: instances, Rows: best.Rows,
		PerSecond: rate(best) * float64(instances) / slower, Alone: timeOf(p, 1),
	}
}

// addLone gives batches that are alone the number of threads that answers them
// soonest. Where no two ever run at once all are alone, and the number for all of
// them is the one to choose.
func (c *Choice) addLone(settings []Setting) {
	usual, least := profileOf(settings, c.Threads), lonely
	if len(usual.Slowdown) < 2 {
		return
	}
	for _, s := range settings {
		if s.Threads <= c.Threads {
			continue
		}
		if times := sooner(usual, s.Found.Profile); times >= least {
			least = times
			c.Lone, c.Alone = s.Threads, timeOf(s.Found.Profile, 1)
		}
	}
}

// sooner returns how many times as fast small batches are by one profile as by
// another: the middle of several sizes, of which some may have been disturbed. It is
// 0 if one row is slower.
func sooner(usual, lone automatic.Profile) float64 {
	const small = 16
	if timeOf(lone, 1) > timeOf(usual, 1) {
		return 0
	}
	var times []float64
	for _, t := range lone.Sizes {
		if took := timeOf(usual, t.Rows); t.Rows <= small && took > 0 {
			times = append(times, float64(took)/float64(t.Took))
		}
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[(len(times)-1)/2]
}

// Profile returns what is known of a model that runs as was chosen from some
// settings. It is empty if that has not been measured. How long batches take is that
// of the usual number of threads, by which sizes are chosen under load; lone ones are
// faster.
func (c *Choice) Profile(settings []Setting) automatic.Profile {
	p, lone := profileOf(settings, c.Threads), profileOf(settings, c.Lone)
	if c.Lone == 0 || len(p.Slowdown) == 0 || len(lone.Sizes) == 0 {
		return p
	}
	p.Slowdown = slices.Clone(p.Slowdown)
	p.Slowdown[0] = min(1, rate(Efficient(p))/(crowded*rate(Efficient(lone))))
	return p
}

func profileOf(settings []Setting, threads int) automatic.Profile {
	for _, s := range settings {
		if s.Threads == threads {
			return s.Found.Profile
		}
	}
	return automatic.Profile{}
}

// score returns about how many rows a second are done while there are clients.
func (c *Choice) score() float64 {
	if c.Threads > 1 {
		return crowded * c.PerSecond
	}
	return c.PerSecond
}

// Threads returns the numbers of threads that are tried within some cores: powers
// of two, and all.
func Threads(cores int) []int {
	var all []int
	for n := 1; n < cores; n *= 2 {
		all = append(all, n)
	}
	return append(all, max(1, cores))
}
