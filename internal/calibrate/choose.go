package calibrate

import (
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Setting is a number of threads with what was measured with so many.
type Setting struct {
	Threads int
	Found   Findings
}

// A Choice is how a model computes the most.
type Choice struct {
	Threads          int // for one batch
	ExclusiveThreads int // for an exclusive batch, if that is more; 0 if not
	Instances        int // at once
	Rows             int // of the size at which it does
	PerSecond        float64
	Alone            time.Duration // what one row takes by itself
}

const (
	// near is how much better a setting must be to be worth more instances or threads.
	near = 1.03

	// crowded is the part that is left of what a batch on several threads does, once
	// there are clients: it waits for whichever of its threads waits for a core. The
	// text recogniser does 0.84 and 0.69 of it with 32 and 64 clients on two cores.
	crowded = 0.8

	// exclusiveGain is how many times as fast more threads must answer a small exclusive
	// batch to be worth having the model in memory twice.
	exclusiveGain = 1.1
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
			c.addExclusive(settings)
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

// addExclusive gives exclusive batches the number of threads that answers them
// soonest. Where no two ever run at once all are exclusive, and the number for all of
// them is the one to choose.
func (c *Choice) addExclusive(settings []Setting) {
	usual, least := profileOf(settings, c.Threads), exclusiveGain
	if len(usual.Slowdown) < 2 {
		return
	}
	for _, s := range settings {
		if s.Threads <= c.Threads {
			continue
		}
		if times := sooner(usual, s.Found.Profile); times >= least {
			least = times
			c.ExclusiveThreads, c.Alone = s.Threads, timeOf(s.Found.Profile, 1)
		}
	}
}

// sooner returns how many times as fast small batches are by one profile as by
// another: the middle of several sizes, of which some may have been disturbed. It is
// 0 if one row is slower.
func sooner(usual, exclusive batching.Profile) float64 {
	const small = 16
	if timeOf(exclusive, 1) > timeOf(usual, 1) {
		return 0
	}
	var times []float64
	for _, t := range exclusive.Sizes {
		if took := timeOf(usual, t.Rows); t.Rows <= small && took > 0 {
			times = append(times, float64(took)/float64(t.Took))
		}
	}
	if len(times) == 0 {
		return 0
	}
	return middleOf(times)
}

// Profile returns what is known of a model that runs as was chosen from some
// settings. It is empty if that has not been measured. How long batches take is that
// of the usual number of threads, by which sizes are chosen under load; exclusive ones are
// faster.
func (c *Choice) Profile(settings []Setting) batching.Profile {
	p, exclusive := profileOf(settings, c.Threads), profileOf(settings, c.ExclusiveThreads)
	if c.ExclusiveThreads == 0 || len(p.Slowdown) == 0 || len(exclusive.Sizes) == 0 {
		return p
	}
	p.Slowdown = slices.Clone(p.Slowdown)
	p.Slowdown[0] = min(1, rate(Efficient(p))/(crowded*rate(Efficient(exclusive))))
	return p
}

func profileOf(settings []Setting, threads int) batching.Profile {
	for _, s := range settings {
		if s.Threads == threads {
			return s.Found.Profile
		}
	}
	return batching.Profile{}
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
