package automatic

const (
	smallFactor = 4  // a batch is small if this many of it would have been possible and efficient
	smallStreak = 64 // small batches in a row that are not a coincidence
)

// smallBatches counts batches that are far smaller than what waits and than the efficient
// size. Rules make small batches, but not many in a row while requests queue up: then some
// estimate is wrong, and the model has less throughput than it could.
type smallBatches struct {
	streak int
	count  uint64 // small batches, starting at the last of a streak of smallStreak
}

// began records a batch of the given rows. A batch of possible rows would have been efficient.
func (s *smallBatches) began(rows, possible int) {
	if smallFactor*rows > possible {
		s.streak = 0
		return
	}
	if s.streak++; s.streak >= smallStreak {
		s.count++
	}
}

// possibleRows returns the size that a batch of the selected size class could have now: each
// instance gets a part of what waits. It is 0 if that is unknown: requests of different
// shapes cannot share a batch, and configured sizes are not the policy's.
func (p *Policy) possibleRows() int {
	if !p.curve.known() || p.shapes.mixed() || len(p.opt.Preferred) > 0 {
		return 0
	}
	return min(p.waitingRows/p.opt.Instances, p.sizes.efficient)
}

// SmallBatches returns how many batches were far smaller than what waited and than the
// efficient size, if at least 64 in a row were.
func (p *Policy) SmallBatches() uint64 { return p.small.count }
