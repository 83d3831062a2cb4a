package automatic

import "math"

// most is how many batches at once are told apart. More count as that many.
const most = 16

// A contention is how much longer a batch takes while others run beside it.
type contention struct {
	slow     [most + 1]float64 // how many times longer, while n run; from 1, which is less than 1 if a batch that is alone has more to run on
	measured [most + 1]float64 // batches that it rests on
	lately   [most + 1]float64 // the same, since it was to be tried again
	pinned   [most + 1]float64 // what calibration said of slow; 0 if nothing
	useful   int               // batches at once that are worth it for latency
	backlog  int               // the same while more waits than they can take
	flood    int               // the same while so much waits that all instances together would not take it
	next     int               // batches at once that are to be tried; 0 if none are
}

const (
	worth   = 1.10 // times as much work in the same time makes one more batch at once worth it
	still   = 1.04 // and this keeps it so
	slight  = 1.05 // times as much is worth it while a queue stands; less may be noise
	trusted = 8    // batches from which on a measured slowdown counts
	tired   = 2    // batches that one counts for which is tried again
)

func newContention(instances int) contention {
	// Until something is measured, batches are taken to slow each other down in
	// full: then nothing is lost but what was never proven.
	c := contention{useful: 1, backlog: min(instances, most), flood: min(instances, most)}
	for n := range c.slow {
		c.slow[n] = max(1, float64(n))
	}
	c.next = c.untried(instances)
	return c
}

// pin takes over what was calibrated.
func (c *contention) pin(slowdown []float64, instances int) {
	for i, s := range slowdown {
		switch n := i + 1; {
		case n == 1 && s > 0 && s <= 1:
			c.slow[1] = s
		case n > 1 && n <= most && s >= 1 && !math.IsInf(s, 0):
			c.slow[n], c.measured[n], c.lately[n], c.pinned[n] = s, 30, 30, s
		}
	}
	c.choose(instances)
}

// by returns how many times longer a batch takes while n run.
func (c *contention) by(n int) float64 { return c.slow[max(1, min(n, most))] }

// speed returns how much work gets done while n batches run, relative to one that
// has what all have.
func (c *contention) speed(n int) float64 { return float64(n) / c.by(n) }

// learn takes in a batch that would have taken alone nanoseconds, and that spent
// ran[n] of them while n batches ran. Since work is done at the rate 1/slow[n],
// alone is the sum of ran[n]/slow[n], exactly; what is missing is spread over the
// rates, by how much of the time each had (normalised least mean squares).
func (c *contention) learn(alone float64, ran *[most + 1]float64, instances int) {
	missing, all, sum := alone-ran[1]/c.slow[1], ran[1], 0.0
	for n := 2; n <= most; n++ {
		missing -= ran[n] / c.slow[n]
		all += ran[n]
		sum += ran[n] * ran[n]
	}
	if sum == 0 {
		return
	}
	missing = max(-alone/2, min(alone/2, missing))
	for n := 2; n <= most; n++ {
		if ran[n] > 0.05*alone {
			step := max(0.03, 1/(1.5+c.lately[n]))
			rate := 1/c.slow[n] + step*missing*ran[n]/sum
			c.slow[n] = 1 / max(0.05, min(1, rate))
		}
		if ran[n] > 0.3*all {
			c.measured[n]++
			c.lately[n]++
		}
	}
	for n := most - 1; n > 1; n-- {
		if c.measured[n] < trusted {
			c.slow[n] = min(c.slow[n], c.slow[n+1]) // fewer at once are no slower than more
		}
	}
	c.choose(instances)
}

// exclusive takes in an exclusive batch, which took the given number of times as long
// as it would have with the threads of others.
func (c *contention) exclusive(times float64, instances int) {
	const weight = 1. / 16 // under load it is another one, and soon known
	c.slow[1] += weight * (max(0.05, min(1, times)) - c.slow[1])
	c.choose(instances)
}

// alone returns how long a batch would have taken alone, with what all have; 0 if
// that cannot be said.
func (c *contention) alone(ran *[most + 1]float64) float64 {
	sum := ran[1] / c.slow[1]
	for n := 2; n <= most; n++ {
		if ran[n] > 0 && c.measured[n] < trusted {
			return 0
		}
		sum += ran[n] / c.slow[n]
	}
	return sum
}

// choose settles how many batches are worth running at once. What was not measured
// is not.
func (c *contention) choose(instances int) {
	instances = min(instances, most)
	c.useful = min(c.useful, instances)
	c.useful = upTo(min(instances, proven(&c.measured)), c.useful, worth, c.speed)
	for c.useful > 1 && c.speed(c.useful) < still*best(c.useful-1, c.speed) {
		c.useful--
	}
	c.backlog = upTo(instances, c.useful, slight, c.hoped)
	c.flood = upTo(instances, c.backlog, better, c.hoped)
	c.next = c.untried(instances)
}

// upTo returns how many batches at once are worth it from n on, if one more has to
// get so many times as much done as any fewer.
func upTo(instances, n int, times float64, speed func(int) float64) int {
	for n < instances && speed(n+1) > times*best(n, speed) {
		n++
	}
	return n
}

// best returns the most that gets done by n batches at once, or fewer.
func best(n int, speed func(int) float64) float64 {
	most := 0.0
	for ; n > 0; n-- {
		most = max(most, speed(n))
	}
	return most
}

// untried returns the number of batches at once that is to be tried next: the first
// that is not known to be worth it, if it was not measured lately. It is 0 if there
// is none.
func (c *contention) untried(instances int) int {
	n := upTo(min(instances, proven(&c.lately)), 1, worth, c.speed) + 1
	if n > min(instances, most) || c.lately[n] >= trusted || c.confirmed(n) {
		return 0
	}
	return n
}

// confirmed reports whether what was tried again is as little worth as it was
// before. Two batches are enough for that, and each of them costs.
func (c *contention) confirmed(n int) bool {
	return c.measured[n] >= trusted && c.lately[n] >= tired+2 && c.speed(n) < still*best(n-1, c.speed)
}

// proven returns the most batches at once that enough were measured of. Fewer are no
// slower.
func proven(batches *[most + 1]float64) int {
	n := most
	for n > 1 && batches[n] < trusted {
		n--
	}
	return n
}

// tire lets more at once be tried again than are in use, and be believed sooner.
// Those that are in use run anyway.
func (c *contention) tire(inUse, instances int) {
	for n := inUse + 1; n <= most; n++ {
		c.lately[n] = min(c.lately[n], tired)
	}
	c.next = c.untried(instances)
}

// restart strikes out what batches seemed to cost each other while the model had
// another speed than was known. What was calibrated holds again, until batches tell
// otherwise, which they soon do.
func (c *contention) restart(instances int) {
	for n := 2; n <= most; n++ {
		if c.pinned[n] > 0 {
			c.slow[n], c.measured[n], c.lately[n] = c.pinned[n], trusted, trusted
		}
	}
	c.choose(instances)
}

// hoped returns the speed of n batches at once, which is taken to be the best that
// it can be while it was not measured: a backlog is the time to find out.
func (c *contention) hoped(n int) float64 {
	if n > 1 && c.measured[n] < trusted {
		return float64(n)
	}
	return c.speed(n)
}
