package automatic

import "math"

// cutGain is the part of what all at once costs that has to remain for a cut, where
// single sizes are compared, and not the line.
const cutGain = 0.97

// cutTo returns how many rows to run now if the others follow right after, or beside
// them on one of k instances: fewer than all, where several batches answer sooner
// on the whole than one. That is where rows cost much, where the curve has a step or
// a bend, and where instances are idle.
//
// In batches of q rows on k instances, x rows are answered after (x/kq+1)/2 rounds
// on average, and not before one is over; those behind them wait for all x/kq.
func (p *Policy) cutTo(s *situation, k float64) int {
	if k > 1 && p.contention.by(int(k)) > worth {
		return s.rows // what is shared has no idle part
	}
	x, all := float64(p.rows)/k, float64(s.rows)
	behind := p.behind.of(float64(p.rows)) / k
	cost := func(q float64) float64 { return (max(q, (x+q)/2) + behind) / p.speed(int(q)) }
	best, bestRows := cost(all), s.rows
	if p.curve.bent {
		best *= cutGain
	}
	try := func(rows int) {
		if v := cost(float64(rows)); v < best {
			best, bestRows = v, rows
		}
	}
	if p.curve.bent {
		for rows := 1; rows < s.rows; rows += 1 + s.rows/64 {
			try(rows)
		}
	} else if ratio := p.curve.fixed / p.curve.perRow; p.curve.perRow > 0 {
		q := math.Sqrt(ratio * (x + 2*behind)) // where the cost of more than one round is least
		if q > x {
			q = max(x, math.Sqrt(ratio*behind)) // and of less than one
		}
		if q = max(1, math.Ceil(q)); q < all {
			try(int(q))
		}
	}
	return bestRows
}
