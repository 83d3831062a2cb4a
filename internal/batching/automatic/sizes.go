package automatic

import "time"

// efficientShare is the share of the best throughput at which a size is efficient. The
// last percent would cost latency and bring no visible gain.
const efficientShare = 0.99

// sizes are the batch sizes that follow from the curve. They change only with the curve.
type sizes struct {
	efficient int // smallest size with nearly the best throughput
	peak      int // size with the best throughput
	max       int // largest size that meets the objective
}

// sizesOf computes the sizes of a curve, of those that requests make up. If nothing is known, all of them are the
// maximum, which makes the policy greedy.
func sizesOf(c *curve, r *rate, objective time.Duration) sizes {
	if !c.known() {
		return sizes{c.max(), c.max(), c.max()}
	}
	largest := c.max()
	for objective > 0 && largest > 1 && 2*c.p95(largest) > float64(objective) {
		// A request that just misses a batch waits for it and runs in the next: both must
		// fit.
		largest--
	}
	s := sizes{peak: 1, max: largest}
	best := 0.0
	for rows := 1; rows <= largest; rows++ {
		if !r.possible(rows) {
			continue // it never runs, so that nothing would correct its estimate
		}
		// Ignore improvements below 0.3 %.
		if speed := float64(rows) / c.smooth(rows); speed > 1.003*best {
			best, s.peak = speed, rows
		}
	}
	for s.efficient = 1; s.efficient < s.peak; s.efficient++ {
		if r.possible(s.efficient) && float64(s.efficient)/c.smooth(s.efficient) >= efficientShare*best {
			break
		}
	}
	return s
}
