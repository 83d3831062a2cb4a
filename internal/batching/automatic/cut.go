package automatic

import "math"

// cutGain is the part of what all at once costs that has to remain for a cut, where
// single sizes are compared, and not the line.
const maxCutCost = 0.97

// cutTo returns how many rows to run now if the others follow right after: fewer
// than all, where several batches answer sooner on the whole than one. That is where
// rows cost much, and where the curve has a step or a bend.
//
// In batches of q rows, x rows are answered after (x/q+1)/2 batches on average, and
// those behind them wait for all x/q.
func (p *Policy) cutTo(s *situation) int {
	x, all := float64(p.rows), float64(s.rows)
	behind := p.busyPeriod.expectedAfter(x)
	cost := func(q float64) float64 { return ((x+q)/2 + behind) / p.speed(int(q)) }
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
		// Where the cost of a line is least.
		if q := max(1, math.Ceil(math.Sqrt(p.curve.fixed/p.curve.perRow*(x+2*behind)))); q < all {
			try(int(q))
		}
	}
	return bestRows
}
