package calibrate

import (
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Setting is a number of threads per batch, and what was measured with it.
type Setting struct {
	Threads  int
	Findings Findings
}

// A Choice is a way to run a model, and its measured performance.
type Choice struct {
	Threads          int // per batch
	ExclusiveThreads int // per exclusive batch, if more than Threads; else 0
	Instances        int
	Rows             int           // batch size with the highest throughput
	PerSecond        float64       // rows per second at that size, on all instances
	SingleLatency    time.Duration // time of a batch of one row on an idle engine
}

const (
	// minGain is the throughput ratio that justifies more instances or threads.
	minGain = 1.03

	// threadedLoadFactor is the part of the throughput measured with several threads per
	// batch that remains under load, when the batch waits for the thread that waits for
	// a core. The text recogniser keeps 0.84 and 0.69 of it with 32 and 64 clients on two
	// cores.
	threadedLoadFactor = 0.8

	// exclusiveGain is the speedup of small exclusive batches that justifies a second
	// copy of the model in memory.
	exclusiveGain = 1.1
)

// Choose returns the choice with the highest throughput under load. settings must not be
// empty.
//
// Models are measured while the server is idle. Then one batch on several threads looks as
// good as several batches on one thread each, but under load the server itself needs the
// cores, too, which costs the former more; see threadedLoadFactor. Choices within three
// percent count as equal; of those, Choose prefers fewer instances, then fewer threads.
// Exclusive batches may get more threads than batches under load.
func Choose(settings []Setting) Choice {
	all := Choices(settings)
	best := 0.0
	for i := range all {
		best = max(best, all[i].score())
	}
	var chosen *Choice
	for i := range all {
		c := &all[i]
		if c.score()*minGain < best {
			continue
		}
		if chosen == nil || c.Instances < chosen.Instances || c.Instances == chosen.Instances && c.Threads < chosen.Threads {
			chosen = c
		}
	}
	return *chosen
}

// Choices returns all choices: each setting with each number of instances that it was
// measured with.
func Choices(settings []Setting) (all []Choice) {
	for _, s := range settings {
		for n := range max(1, len(s.Findings.Profile.Slowdown)) {
			c := choiceOf(s, n+1)
			c.addExclusive(settings)
			all = append(all, c)
		}
	}
	return all
}

func choiceOf(s Setting, instances int) Choice {
	p := s.Findings.Profile
	best := mostEfficient(p)
	slower := 1.0
	if len(p.Slowdown) >= instances {
		slower = p.Slowdown[instances-1]
	}
	return Choice{
		Threads: s.Threads, Instances: instances, Rows: best.Rows,
		PerSecond: rate(best) * float64(instances) / slower, SingleLatency: timeOf(p, 1),
	}
}

// addExclusive sets the number of threads that is fastest for exclusive batches, if it is
// worth a second copy of the model. It does nothing if batches never overlap: then all are
// exclusive, and Threads applies to them.
func (c *Choice) addExclusive(settings []Setting) {
	shared, best := profileOf(settings, c.Threads), exclusiveGain
	if len(shared.Slowdown) < 2 {
		return
	}
	for _, s := range settings {
		if s.Threads <= c.Threads {
			continue
		}
		if times := speedup(shared, s.Findings.Profile); times >= best {
			best = times
			c.ExclusiveThreads, c.SingleLatency = s.Threads, timeOf(s.Findings.Profile, 1)
		}
	}
}

// speedup returns how many times as fast small batches are by the exclusive profile as by
// the shared one: the median over several sizes, since some measurements may have been
// disturbed. It is 0 if a single row is slower.
func speedup(shared, exclusive batching.Profile) float64 {
	const small = 16
	if timeOf(exclusive, 1) > timeOf(shared, 1) {
		return 0
	}
	var times []float64
	for _, t := range exclusive.Sizes {
		if took := timeOf(shared, t.Rows); t.Rows <= small && took > 0 {
			times = append(times, float64(took)/float64(t.Median))
		}
	}
	if len(times) == 0 {
		return 0
	}
	return median(times)
}

// Profile returns the profile of a model that runs with this choice, from the settings it
// was chosen from. It is empty if they do not include the choice. The times are those of
// batches with Threads threads, which matter for choosing sizes under load; exclusive
// batches are faster, which Slowdown accounts for.
func (c *Choice) Profile(settings []Setting) batching.Profile {
	p, exclusive := profileOf(settings, c.Threads), profileOf(settings, c.ExclusiveThreads)
	if c.ExclusiveThreads == 0 || len(p.Slowdown) == 0 || len(exclusive.Sizes) == 0 {
		return p
	}
	p.Slowdown = slices.Clone(p.Slowdown)
	p.Slowdown[0] = min(1, rate(mostEfficient(p))/(threadedLoadFactor*rate(mostEfficient(exclusive))))
	return p
}

func profileOf(settings []Setting, threads int) batching.Profile {
	for _, s := range settings {
		if s.Threads == threads {
			return s.Findings.Profile
		}
	}
	return batching.Profile{}
}

// score estimates the throughput under load, in rows per second.
func (c *Choice) score() float64 {
	if c.Threads > 1 {
		return threadedLoadFactor * c.PerSecond
	}
	return c.PerSecond
}

// ThreadCounts returns the numbers of threads to measure on the given number of cores: powers of
// two, and the number of cores.
func ThreadCounts(cores int) []int {
	var all []int
	for n := 1; n < cores; n *= 2 {
		all = append(all, n)
	}
	return append(all, max(1, cores))
}
