package automatic

import "math"

// maxParallel is the largest number of parallel batches that has its own estimate. Larger
// numbers count as maxParallel.
const maxParallel = 16

// A contention estimates how much parallel batches slow each other down, and derives from
// that how many should run in parallel. Index n of the arrays stands for n parallel
// batches; index 0 is not used.
type contention struct {
	factor        [maxParallel + 1]float64 // slowdown while n batches run; factor[1] is below 1 if exclusive batches have more threads
	samples       [maxParallel + 1]float64 // number of batches behind factor
	recentSamples [maxParallel + 1]float64 // the same since the last allowRetry
	retried       [maxParallel + 1]float64 // samples at the last allowRetry, or calibration during traffic
	retriedFactor [maxParallel + 1]float64 // factor then
	calibrated    [maxParallel + 1]float64 // calibrated value of factor; 0 if there is none
	restored      [maxParallel + 1]bool    // the calibrated value was restored, and is an upper limit of speedup until minRestored batches
	useful        int                      // number of parallel batches with the best latency
	backlog       int                      // the same while there is a backlog
	flood         int                      // the same while the backlog exceeds one efficient batch for each instance
	probe         int                      // number of parallel batches to probe next; 0 if there is none
}

const (
	minGain        = 1.10 // minimum factor in throughput to run one more batch in parallel
	keepGain       = 1.04 // minimum factor in throughput to keep it
	enoughGain     = 0.5  // share of a batch's own throughput that is always enough: with many in parallel it is a small part of all
	minBacklogGain = 1.05 // minimum factor in throughput to run one more during a backlog; less may be noise
	minTrusted     = 8    // batches after which a measured slowdown counts
	minRestored    = 16   // batches after which a measured slowdown may be smaller than a calibrated one that was restored
	minSettled     = 64   // batches after which a slowdown is not expected to change
	besideNoise    = 0.2  // square of the share of a batch's time that must be beside others for it to count about half
	retrySamples   = 2    // number of samples that allowRetry keeps
	retryFaster    = 0.9  // share of a slowdown below which a retry has shown that it is wrong
)

func newContention(instances int) contention {
	// Until they are measured, assume that parallel batches gain nothing. That loses at
	// most an improvement that was never measured.
	c := contention{useful: 1, backlog: min(instances, maxParallel), flood: min(instances, maxParallel)}
	for n := range c.factor {
		c.factor[n] = max(1, float64(n))
	}
	c.probe = c.nextProbe(instances)
	return c
}

// calibrate sets the calibrated slowdowns. slowdown[i] is that of i+1 parallel batches.
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

// slowdown returns how many times longer a batch takes while n batches run.
func (c *contention) slowdown(n int) float64 { return c.factor[max(1, min(n, maxParallel))] }

// speedup returns the throughput of n parallel batches, relative to a single batch that
// is not exclusive.
func (c *contention) speedup(n int) float64 {
	slowdown := c.slowdown(n)
	if i := max(1, min(n, maxParallel)); c.restored[i] {
		slowdown = max(slowdown, c.calibrated[i])
	}
	return float64(n) / slowdown
}

// record adds a batch that would have taken solo nanoseconds without parallel batches, and
// that ran for ran[n] nanoseconds while n batches ran. Work progresses at the rate
// 1/factor[n], so solo is the sum of ran[n]/factor[n]. The error is distributed over the
// rates in proportion to their share of the time (normalized least mean squares). The smaller
// the share that the batch ran beside others, the less it counts, as in a Kalman filter: its time
// differs by chance, and all of that would be put down to a short moment.
func (c *contention) record(solo float64, ran *[maxParallel + 1]float64, instances int) {
	missing, all, sum := solo-ran[1]/c.factor[1], ran[1], 0.0
	for n := 2; n <= maxParallel; n++ {
		missing -= ran[n] / c.factor[n]
		all += ran[n]
		sum += ran[n] * ran[n]
	}
	if sum == 0 {
		return
	}
	missing = max(-solo/2, min(solo/2, missing))
	beside := (1 - ran[1]/all) * (1 - ran[1]/all)
	trust := (1 + besideNoise) * beside / (besideNoise + beside)
	for n := 2; n <= maxParallel; n++ {
		if ran[n] > 0.05*solo {
			step := trust * max(0.03, 1/(1.5+c.recentSamples[n]))
			rate := 1/c.factor[n] + step*missing*ran[n]/sum
			c.factor[n] = 1 / max(0.05, min(1, rate))
		}
		if ran[n] > 0.3*all {
			c.samples[n]++
			c.recentSamples[n]++
			c.restored[n] = c.restored[n] && c.recentSamples[n] < minRestored
		}
	}
	for n := maxParallel - 1; n > 1; n-- {
		if c.samples[n] < minTrusted || c.samples[n+1] >= minTrusted {
			// What is measured of more batches is an upper limit for fewer: a batch may be
			// slow for other reasons, but not fast.
			c.factor[n] = min(c.factor[n], c.factor[n+1])
		}
	}
	c.choose(instances)
}

// recordExclusive adds an exclusive batch, which took the given multiple of the time that
// it would have taken with the threads of others.
func (c *contention) recordExclusive(times float64, instances int) {
	const weight = 1. / 16 // the factor differs under load, and adapts quickly
	c.factor[1] += weight * (max(0.05, min(1, times)) - c.factor[1])
	c.choose(instances)
}

// soloTime returns how long a batch would have taken without parallel batches, and without
// the additional threads of an exclusive one; 0 if that cannot be derived because a
// slowdown is not measured.
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

// settled reports whether the slowdowns behind a batch's time have so many samples that a
// change shows another speed of the device.
func (c *contention) settled(ran *[maxParallel + 1]float64) bool {
	for n := 2; n <= maxParallel; n++ {
		if ran[n] > 0 && c.recentSamples[n] < minSettled {
			return false
		}
	}
	return true
}

// choose recomputes how many batches should run in parallel. Numbers that are not
// measured are not used, except to work off a backlog.
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

// growWhileFaster increases n while one more parallel batch raises the throughput by the
// given factor over the best of any fewer. An exclusive batch has threads that two at once do not
// have; several may make up for that where two do not.
func growWhileFaster(instances, n int, times float64, speed func(int) float64) int {
	for more := n + 1; more <= instances; more++ {
		faster := speed(more) > min(times, 1+enoughGain/float64(n))*bestSpeedup(n, speed)
		exclusive := n == 1 && speed(1) > 1
		switch {
		case faster:
			n = more
		case !exclusive:
			return n
		}
	}
	return n
}

// bestSpeedup returns the best throughput of up to n parallel batches.
func bestSpeedup(n int, speed func(int) float64) float64 {
	fastest := 0.0
	for ; n > 0; n-- {
		fastest = max(fastest, speed(n))
	}
	return fastest
}

// nextProbe returns the number of parallel batches to probe next: the smallest that is
// not known to pay, if it has no recent samples. It returns 0 if there is none.
func (c *contention) nextProbe(instances int) int {
	n := growWhileFaster(min(instances, measuredUpTo(&c.recentSamples)), 1, minGain, c.speedup) + 1
	if n > min(instances, maxParallel) || c.recentSamples[n] >= minTrusted || c.stillNotWorthIt(n) {
		return 0
	}
	return n
}

// stillNotWorthIt reports whether the samples of a retry confirm that n parallel batches
// do not pay. Two are enough, because each of them costs latency, unless they were faster than
// expected.
func (c *contention) stillNotWorthIt(n int) bool {
	return c.samples[n] >= minTrusted && c.recentSamples[n] >= retrySamples+2 && c.speedup(n) < keepGain*bestSpeedup(n-1, c.speedup) && c.factor[n] > retryFaster*c.retriedFactor[n]
}

// measuredUpTo returns the largest number of parallel batches with enough samples.
// Smaller numbers are no slower.
func measuredUpTo(batches *[maxParallel + 1]float64) int {
	n := maxParallel
	for n > 1 && batches[n] < minTrusted {
		n--
	}
	return n
}

// allowRetry lets larger numbers of parallel batches than inUse be probed again, and
// gives new samples more weight. So it does for smaller numbers that have no new samples since
// the last time: rules that hold requests back because of a slowdown keep it from being measured.
func (c *contention) allowRetry(inUse, instances int) {
	for n := 2; n <= maxParallel; n++ {
		if n > inUse || c.samples[n] == c.retried[n] {
			c.recentSamples[n] = min(c.recentSamples[n], retrySamples)
		}
	}
	c.retried, c.retriedFactor = c.samples, c.factor
	c.probe = c.nextProbe(instances)
}

// restart restores the calibrated slowdowns after a change of speed, because what was
// measured while the expected times were wrong is wrong, too. New samples soon replace
// them, but those of the first batches do not make parallel ones seem faster than calibrated:
// they, too, are measured against times that may be guesses. Where nothing is calibrated, nothing
// is known. It reports whether that of two batches is.
func (c *contention) restart(instances int) (known bool) {
	for n := 2; n <= maxParallel; n++ {
		if c.calibrated[n] > 0 {
			c.factor[n], c.samples[n], c.recentSamples[n], c.restored[n] = c.calibrated[n], minTrusted, retrySamples, true
		} else {
			c.factor[n], c.samples[n], c.recentSamples[n] = float64(n), 0, 0
		}
	}
	c.choose(instances)
	return c.calibrated[2] > 0
}

// optimisticSpeedup returns the speedup of n parallel batches, assuming no slowdown if it
// is not measured: a backlog is the time to measure it.
func (c *contention) optimisticSpeedup(n int) float64 {
	if n > 1 && c.samples[n] < minTrusted {
		return float64(n)
	}
	return c.speedup(n)
}
