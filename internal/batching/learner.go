package batching

import "time"

// A Learner is a [Predictor] that knows what it has seen: from how long batches of
// some sizes took it draws a line, and from how far they were off the line how much
// longer the slow ones take. It does so for each number of batches that run at once.
// The zero Learner has seen nothing. It is for policies that do not see to it that
// batches run alone; see docs/adr/0015-two-predictors.md.
type Learner struct {
	seen  [learnt]trend
	total uint64 // batches
}

const (
	learnt  = 8   // numbers of batches at once that are told apart
	enough  = 5   // batches that have to be seen before anything is said
	memory  = 32  // batches that a line is drawn through, about
	forgets = 256 // batches after which those of another number at once are forgotten
	outlier = 2   // a batch that took so many times as long counts as if it had not taken longer
)

var slowest = Quantile{P: 0.95, Step: 0.03, Min: 1, Max: 1000} // of batches, relative to the line

// trend is a line through durations by rows, in nanoseconds, fitted by least squares
// with weights that fade.
type trend struct {
	weight, x, y, xx, xy float64
	slow                 float64 // 19 of 20 batches take no more than so many times what the line says
	count                int
	last                 uint64 // of all batches
}

// Predict implements [Predictor].
func (l *Learner) Predict(rows, running int) time.Duration {
	s := &l.seen[min(running, learnt)-1]
	if s.count < enough || l.total-s.last > forgets {
		return 0
	}
	return time.Duration(s.at(float64(rows)) * s.slow)
}

// Ran takes in how long a batch took while so many ran.
func (l *Learner) Ran(rows, running int, took time.Duration) {
	l.total++
	s := &l.seen[min(running, learnt)-1]
	if l.total-s.last > forgets {
		*s = trend{}
	}
	s.last = l.total
	s.add(float64(rows), float64(took))
}

func (s *trend) add(rows, took float64) {
	switch s.count++; s.count {
	case 1:
		return // engines take longer for the first than for those that follow
	case 2:
		s.slow = 1
	default:
		usual := s.at(rows)
		s.slow = slowest.Next(s.slow, took > usual*s.slow+1) // above by more than a clock can tell
		took = min(took, outlier*usual)
	}
	const keep = 1 - 1.0/memory
	s.weight = s.weight*keep + 1
	s.x = s.x*keep + rows
	s.y = s.y*keep + took
	s.xx = s.xx*keep + rows*rows
	s.xy = s.xy*keep + rows*took
}

// at returns what the line says. Where all sizes were about the same there is no
// line; then smaller ones are taken to last as long, and larger ones longer in
// proportion.
func (s *trend) at(rows float64) float64 {
	x, y := s.x/s.weight, s.y/s.weight
	spread := s.xx/s.weight - x*x
	if spread < x*x/100 {
		return y * max(1, rows/x)
	}
	slope := max(0, (s.xy/s.weight-x*y)/spread)
	slope = min(slope, y/x) // no batch takes less than nothing
	return y + slope*(rows-x)
}
