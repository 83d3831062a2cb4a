package automatic

const (
	shareWindow = 64  // recent arrivals by which the shares of shapes are measured
	maxVariety  = 0.2 // chance that two requests have different shapes at which they still count as alike
)

// shapes records the shapes of recent requests. Only requests of one shape can share a
// batch, so a rule that waits for further requests counts only the share of them that has
// the right shape.
type shapes struct {
	recent [shareWindow]uint64 // ring buffer
	n      int                 // number of arrivals
	run    int                 // arrivals in a row with the shape of the last one

	variety float64 // average chance that a request and another one have different shapes
}

// arrived records a request, and returns the share of earlier ones that had its shape.
func (s *shapes) arrived(shape uint64) shapeShare {
	of := s.share(shape)
	if s.n > 0 && s.recent[(s.n-1)%shareWindow] != shape {
		s.run = 0
	}
	s.recent[s.n%shareWindow] = shape
	s.n++
	s.run++
	s.variety += (1 - of.share - s.variety) / shareWindow
	return of
}

// mixed reports whether the shapes of requests differ so much that a batch of all that wait
// is not possible.
func (s *shapes) mixed() bool { return s.variety > maxVariety }

// A shapeShare is a shape and the share of recent requests that had it.
type shapeShare struct {
	shape uint64
	share float64
}

func (s *shapes) share(shape uint64) shapeShare {
	n := min(s.n, shareWindow)
	if n == 0 || s.run >= n && s.recent[0] == shape {
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
