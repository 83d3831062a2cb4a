package automatic

import "github.com/shoal-serving/shoal/internal/batching"

// Decide implements [batching.Policy].
func (p *Policy) Decide(_ batching.Time, line batching.Line) batching.Decision {
	items, rows := line.Fit(p.target(p.rows))
	return batching.Decision{Take: items, Why: p.why(line, items, rows)}
}

// target returns how large a batch is worth to be, when so many rows wait.
func (p *Policy) target(rows int) int {
	size := p.sizes.efficient
	if !p.curve.known() {
		return p.opt.MaxRows
	}
	if rows >= 6*size {
		return p.sizes.peak // a queue that long is a matter of throughput
	}
	// Leave no crumb behind that would need a batch of its own.
	if rows > size && rows <= min(size+size/3, p.curve.max()) {
		speed := func(rows int) float64 { return float64(rows) / p.curve.smooth(rows) }
		if speed(rows) > 0.97*speed(size) {
			return rows
		}
	}
	return size
}

// why returns the reason of a batch that was not held.
func (p *Policy) why(line batching.Line, items, rows int) batching.Reason {
	switch {
	case rows >= p.opt.MaxRows:
		return batching.Full
	case rows >= p.sizes.efficient:
		return batching.Efficient
	case line.Cut() || items < p.waiting:
		return batching.Unfit
	case line.Closing():
		return batching.Closing
	}
	return batching.Idle
}
