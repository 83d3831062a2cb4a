package automatic

import "time"

// enough is the part of the best rows in a time that makes a size efficient. The
// last hundredth would cost latency and bring nothing that is seen.
const efficientShare = 0.99

// sizes are the ones that the curve marks out. They change only with the curve.
type sizes struct {
	efficient int // the smallest at which the model does nearly the most rows in its time
	peak      int // at which it does the most
	max       int // the largest that may be
}

// sizesOf returns them. While nothing is known the largest batch is as good as any
// other: that is greedy.
func sizesOf(c *curve, objective time.Duration) sizes {
	if !c.known() {
		return sizes{c.max(), c.max(), c.max()}
	}
	most := c.max()
	for objective > 0 && most > 1 && 2*c.p95(most) > float64(objective) {
		// A request that just misses a batch waits for it, and then takes part in the
		// next: both have to fit.
		most--
	}
	s := sizes{peak: 1, max: most}
	best := 0.0
	for rows := 1; rows <= most; rows++ {
		// A size that is hardly better is not worth to be larger.
		if speed := float64(rows) / c.smooth(rows); speed > 1.003*best {
			best, s.peak = speed, rows
		}
	}
	for s.efficient = 1; float64(s.efficient)/c.smooth(s.efficient) < efficientShare*best; s.efficient++ {
	}
	return s
}
