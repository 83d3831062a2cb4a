package automatic

import "math"

const (
	cutGain = 0.97 // of what all at once costs; less has to remain for a cut
	busy    = 0.4  // of the best speed in arrivals: what is left behind is joined by others
	room    = 0.85 // of the time; smaller batches must not keep the model busy for more
	step    = 1.05 // times as many rows in the same time makes a step worth stopping at
)

// cutTo returns how many rows to run now if the others follow right after: fewer
// than all, where several batches answer sooner on the whole than one. That is where
// rows cost much, and where the curve has a step.
func (p *Policy) cutTo(s *situation) int {
	rate := p.rate.of(s.now) * p.rate.rows
	x := float64(p.rows)
	all := p.curve.smooth(s.rows)
	// Those that are delayed by a batch more: who comes meanwhile, and who comes back.
	behind := rate*all/(1-min(0.95, p.curve.perRow*rate)) + p.returns.share*x
	if p.curve.bent {
		return p.cutToStep(s, rate, behind)
	}
	fixed, perRow := p.curve.fixed, p.curve.perRow
	if perRow == 0 {
		return s.rows
	}
	// In batches of q rows, x rows are answered after (x/q+1)/2 batches on average,
	// and those behind them are delayed by what x/q batches cost in themselves. The
	// sum is least at the root of the following; but q must leave room for what comes.
	cost := func(q float64) float64 { return x*(x/q+1)/2*(fixed+perRow*q) + behind*fixed*x/q }
	q := math.Sqrt(fixed / perRow * (x + 2*behind))
	q = math.Ceil(max(1, q, fixed*rate/max(0.02, room-perRow*rate)))
	if int(q) < s.rows && cost(q) < cutGain*cost(float64(s.rows)) {
		return int(q)
	}
	return s.rows
}

// cutToStep is for a curve that is no line.
func (p *Policy) cutToStep(s *situation, rate, behind float64) int {
	x := float64(s.rows)
	all := p.curve.smooth(s.rows)
	if rate > busy*p.speed(p.sizes.efficient) {
		best, bestRows := step*x/all, s.rows
		for rows := s.rows - 1; rows > s.rows/2; rows-- {
			if speed := p.speed(rows); speed > best && rate*p.curve.smooth(rows) > float64(rows)/2 {
				best, bestRows = speed, rows
			}
		}
		return bestRows
	}
	best, bestRows := cutGain*(x+behind)*all, s.rows
	for rows := 1; rows < s.rows; rows += 1 + s.rows/64 {
		rest := s.rows - rows
		if v := (x+behind)*p.curve.smooth(rows) + (float64(rest)+behind)*p.curve.smooth(rest); v < best {
			best, bestRows = v, rows
		}
	}
	return bestRows
}
