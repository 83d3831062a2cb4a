package automatic

import "math"

// maxCutCost is the share of the cost of one batch that a cut may cost at most, where
// single sizes are compared instead of the line.
const maxCutCost = 0.97

// cutTo returns the number of rows to run now if the rest follows right after: fewer than
// all if several smaller batches answer sooner on average. That is the case where rows
// are expensive, and where the curve has a step or a bend.
//
// In batches of q rows, x rows are answered after (x/q+1)/2 batches on average, and rows
// that arrive later wait for all x/q.
func (p *Policy) cutTo(s *situation) int {
	x, all := float64(p.waitingRows), float64(s.rows)
	arrivingLater := p.busyPeriod.expectedAfter(x)
	cost := func(q float64) float64 { return ((x+q)/2 + arrivingLater) / p.speed(int(q)) }
	best, bestRows := cost(all), s.rows
	if p.curve.nonlinear {
		best *= maxCutCost
	}
	try := func(rows int) {
		if v := cost(float64(rows)); v < best {
			best, bestRows = v, rows
		}
	}
	if p.curve.nonlinear {
		for rows := 1; rows < s.rows; rows += 1 + s.rows/64 {
			try(rows)
		}
	} else if p.curve.perRow > 0 {
		// The minimum of the cost on a line.
		if q := max(1, math.Ceil(math.Sqrt(p.curve.fixed/p.curve.perRow*(x+2*arrivingLater)))); q < all {
			try(int(q))
		}
	}
	return bestRows
}
