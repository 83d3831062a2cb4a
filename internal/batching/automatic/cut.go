package automatic

// cutTo returns how many rows to run now if the others follow right after: fewer
// than all, where two batches answer sooner on the whole than one. That is where
// rows cost much, and where the curve has a step.
func (p *Policy) cutTo(s *situation) int {
	rate := p.rate.of(s.now) * p.rate.rows
	x := float64(s.rows)
	all := p.curve.smooth(s.rows)
	// Those that are delayed by a batch more: who comes meanwhile, and who comes back.
	behind := rate*all/(1-min(0.95, p.curve.perRow*rate)) + p.returns.share*x
	best, bestRows := 0.97*(x+behind)*all, s.rows
	try := func(rows int) {
		if rows < 1 || rows >= s.rows {
			return
		}
		rest := s.rows - rows
		if v := (x+behind)*p.curve.smooth(rows) + (float64(rest)+behind)*p.curve.smooth(rest); v < best {
			best, bestRows = v, rows
		}
	}
	if !p.curve.bent {
		if p.curve.perRow > 0 {
			try(int((x+p.curve.fixed/p.curve.perRow)/2 + 0.5)) // where the slope of v is zero
		}
		return bestRows
	}
	for rows := 1; rows < s.rows; rows += 1 + s.rows/64 {
		try(rows)
	}
	return bestRows
}
