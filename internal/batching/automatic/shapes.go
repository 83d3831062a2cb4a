package automatic

// shareWindow is the number of recent arrivals by which the shares of shapes are measured.
const shareWindow = 64

// shapes records the shapes of recent requests. Only requests of one shape can share a
// batch, so a rule that waits for further requests counts only the share of them that has
// the right shape.
type shapes struct {
	recent [shareWindow]uint64 // ring buffer
	n      int                 // number of arrivals
	run    int                 // arrivals in a row with the shape of the last one
}

func (s *shapes) arrived(shape uint64) {
	if s.n > 0 && s.recent[(s.n-1)%shareWindow] != shape {
		s.run = 0
	}
	s.recent[s.n%shareWindow] = shape
	s.n++
	s.run++
}

// mixed reports whether recent requests had different shapes.
func (s *shapes) mixed() bool { return s.run < min(s.n, shareWindow) }

// A shapeShare is a shape and the share of recent requests that had it.
type shapeShare struct {
	shape uint64
	share float64
}

func (s *shapes) share(shape uint64) shapeShare {
	n := min(s.n, shareWindow)
	if n == 0 || !s.mixed() && s.recent[0] == shape {
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
