package automatic

import "math"

// most is how many batches at once are told apart. More count as that many.
const maxParallel = 16

// A contention is how much longer a batch takes while others run beside it.
type contention struct {
	factor        [maxParallel + 1]float64 // how many times longer, while n run; from 1, which is less than 1 if a batch that is alone has more to run on
	samples       [maxParallel + 1]float64 // batches that it rests on
	recentSamples [maxParallel + 1]float64 // the same, since it was to be tried again
	calibrated    [maxParallel + 1]float64 // what calibration said of slow; 0 if nothing
	useful        int                      // batches at once that are worth it for latency
	backlog       int                      // the same while more waits than they can take
	flood         int                      // the same while so much waits that all instances together would not take it
	probe         int                      // batches at once that are to be tried; 0 if none are
}

const (
	minGain        = 1.10 // times as much work in the same time makes one more batch at once worth it
	keepGain       = 1.04 // and this keeps it so
	minBacklogGain = 1.05 // times as much is worth it while a queue stands; less may be noise
	minTrusted     = 8    // batches from which on a measured slowdown counts
	retrySamples   = 2    // batches that one counts for which is tried again
)

func newContention(instances int) contention {
	// Until something is measured, batches are taken to slow each other down in
	// full: then nothing is lost but what was never proven.
	c := contention{useful: 1, backlog: min(instances, maxParallel), flood: min(instances, maxParallel)}
	for n := range c.factor {
		c.factor[n] = max(1, float64(n))
	}
	c.probe = c.nextProbe(instances)
	return c
}

// pin takes over what was calibrated.
func (c *contention) calibrate(slowdown []float64, instances int) {
	for i, s := range slowdown {
		switch n := i + 1; {
		case n == 1 && s > 0 && s <= 1:
			c.factor[1] = s
		case n > 1 && n <= maxParallel && s >= 1 && !math.IsInf(s, 0):
			c.factor[n], c.samples[n], c.recentSamples[n], c.calibrated[n] = s, 30, 30, s
		}
	}
	c.choose(instances)
}

// by returns how many times longer a batch takes while n run.
func (c *contention) slowdown(n int) float64 { return c.factor[max(1, min(n, maxParallel))] }

// speed returns how much work gets done while n batches run, relative to one that
// has what all have.
func (c *contention) speedup(n int) float64 { return float64(n) / c.slowdown(n) }

// learn takes in a batch that would have taken alone nanoseconds, and that spent
// ran[n] of them while n batches ran. Since work is done at the rate 1/slow[n],
// alone is the sum of ran[n]/slow[n], exactly; what is missing is spread over the
// rates, by how much of the time each had (normalised least mean squares).
func (c *contention) record(alone float64, ran *[maxParallel + 1]float64, instances int) {
	missing, all, sum := alone-ran[1]/c.factor[1], ran[1], 0.0
	for n := 2; n <= maxParallel; n++ {
		missing -= ran[n] / c.factor[n]
		all += ran[n]
		sum += ran[n] * ran[n]
	}
	if sum == 0 {
		return
	}
	missing = max(-alone/2, min(alone/2, missing))
	for n := 2; n <= maxParallel; n++ {
		if ran[n] > 0.05*alone {
			step := max(0.03, 1/(1.5+c.recentSamples[n]))
			rate := 1/c.factor[n] + step*missing*ran[n]/sum
			c.factor[n] = 1 / max(0.05, min(1, rate))
		}
		if ran[n] > 0.3*all {
			c.samples[n]++
			c.recentSamples[n]++
		}
	}
	for n := maxParallel - 1; n > 1; n-- {
		if c.samples[n] < minTrusted {
			c.factor[n] = min(c.factor[n], c.factor[n+1]) // fewer at once are no slower than more
		}
	}
	c.choose(instances)
}

// exclusive takes in an exclusive batch, which took the given number of times as long
// as it would have with the threads of others.
func (c *contention) recordExclusive(times float64, instances int) {
	const weight = 1. / 16 // under load it is another one, and soon known
	c.factor[1] += weight * (max(0.05, min(1, times)) - c.factor[1])
	c.choose(instances)
}

// alone returns how long a batch would have taken alone, with what all have; 0 if
// that cannot be said.
func (c *contention) soloTime(ran *[maxParallel + 1]float64) float64 {
	sum := ran[1] / c.factor[1]
	for n := 2; n <= maxParallel; n++ {
		if ran[n] > 0 && c.samples[n] < minTrusted {
			return 0
		}
		sum += ran[n] / c.factor[n]
	}
	return sum
}

// choose settles how many batches are worth running at once. What was not measured
// is not.
func (c *contention) choose(instances int) {
	instances = min(instances, maxParallel)
	c.useful = min(c.useful, instances)
	c.useful = growWhileFaster(min(instances, measuredUpTo(&c.samples)), c.useful, minGain, c.speedup)
	for c.useful > 1 && c.speedup(c.useful) < keepGain*bestSpeedup(c.useful-1, c.speedup) {
		c.useful--
	}
	c.backlog = growWhileFaster(instances, c.useful, minBacklogGain, c.optimisticSpeedup)
	c.flood = growWhileFaster(instances, c.backlog, minSwitchGain, c.optimisticSpeedup)
	c.probe = c.nextProbe(instances)
}

// upTo returns how many batches at once are worth it from n on, if one more has to
// get so many times as much done as any fewer.
func growWhileFaster(instances, n int, times float64, speed func(int) float64) int {
	for n < instances && speed(n+1) > times*bestSpeedup(n, speed) {
		n++
	}
	return n
}

// best returns the most that gets done by n batches at once, or fewer.
func bestSpeedup(n int, speed func(int) float64) float64 {
	most := 0.0
	for ; n > 0; n-- {
		most = max(most, speed(n))
	}
	return most
}

// untried returns the number of batches at once that is to be tried next: the first
// that is not known to be worth it, if it was not measured lately. It is 0 if there
// is none.
func (c *contention) nextProbe(instances int) int {
	n := growWhileFaster(min(instances, measuredUpTo(&c.recentSamples)), 1, minGain, c.speedup) + 1
	if n > min(instances, maxParallel) || c.recentSamples[n] >= minTrusted || c.stillNotWorthIt(n) {
		return 0
	}
	return n
}

// confirmed reports whether what was tried again is as little worth as it was
// before. Two batches are enough for that, and each of them costs.
func (c *contention) stillNotWorthIt(n int) bool {
	return c.samples[n] >= minTrusted && c.recentSamples[n] >= retrySamples+2 && c.speedup(n) < keepGain*bestSpeedup(n-1, c.speedup)
}

// proven returns the most batches at once that enough were measured of. Fewer are no
// slower.
func measuredUpTo(batches *[maxParallel + 1]float64) int {
	n := maxParallel
	for n > 1 && batches[n] < minTrusted {
		n--
	}
	return n
}

// tire lets more at once be tried again than are in use, and be believed sooner.
// Those that are in use run anyway.
func (c *contention) allowRetry(inUse, instances int) {
	for n := inUse + 1; n <= maxParallel; n++ {
		c.recentSamples[n] = min(c.recentSamples[n], retrySamples)
	}
	c.probe = c.nextProbe(instances)
}

// restart strikes out what batches seemed to cost each other while the model had
// another speed than was known. What was calibrated holds again, until batches tell
// otherwise, which they soon do.
func (c *contention) restart(instances int) {
	for n := 2; n <= maxParallel; n++ {
		if c.calibrated[n] > 0 {
			c.factor[n], c.samples[n], c.recentSamples[n] = c.calibrated[n], minTrusted, minTrusted
		}
	}
	c.choose(instances)
}

// hoped returns the speed of n batches at once, which is taken to be the best that
// it can be while it was not measured: a backlog is the time to find out.
func (c *contention) optimisticSpeedup(n int) float64 {
	if n > 1 && c.samples[n] < minTrusted {
		return float64(n)
	}
	return c.speedup(n)
}
