package automatic

const (
	shareWindow = 64  // number of recent arrivals by which the shares of shapes are measured
	maxVariety  = 0.2 // if two requests differ in shape with a higher probability, shapes are mixed
)

// shapes records the shapes of recent requests. Only requests of one shape can share a
// batch, so a rule that waits for further requests counts only the share of them that has
// the right shape.
type shapes struct {
	recent [shareWindow]uint64 // ring buffer
	n      int                 // number of arrivals
	streak int                 // number of last arrivals that all have the same shape

	variety float64 // probability that two requests have different shapes, averaged
}

// arrived records a request, and returns the share of earlier ones that had its shape.
func (s *shapes) arrived(shape uint64) shapeShare {
	earlier := s.share(shape)
	if s.n > 0 && s.recent[(s.n-1)%shareWindow] != shape {
		s.streak = 0
	}
	s.recent[s.n%shareWindow] = shape
	s.n++
	s.streak++
	s.variety += (1 - earlier.share - s.variety) / shareWindow
	return earlier
}

// mixed reports whether shapes differ so often that the waiting requests can usually not run
// in one batch.
func (s *shapes) mixed() bool { return s.variety > maxVariety }

// A shapeShare is a shape and the share of recent requests that had it.
type shapeShare struct {
	id    uint64 // [batching.Item.Shape]
	share float64
}

// share returns the share of recent requests that had the given shape, or 1 if there were
// none.
func (s *shapes) share(shape uint64) shapeShare {
	n := min(s.n, shareWindow)
	if n == 0 || s.streak >= n && s.recent[0] == shape { // the usual case: no need to count
		return shapeShare{shape, 1}
	}
	same := 0
	for _, recent := range s.recent[:n] {
		if recent == shape {
			same++
		}
	}
	return shapeShare{shape, float64(same) / float64(n)}
}
