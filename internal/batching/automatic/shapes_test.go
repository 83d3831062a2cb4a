package automatic

import (
	"math"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestSharesOfShapesFollowRecentRequests(t *testing.T) {
	var s shapes
	if got := s.share(7); got.share != 1 {
		t.Errorf("before the first request the share is %v, want 1", got.share)
	}
	for range shareWindow {
		s.arrived(7)
	}
	if s.share(7).share != 1 || s.share(8).share != 0 {
		t.Errorf("one shape: shares %v and %v; want 1 and 0", s.share(7).share, s.share(8).share)
	}
	for range shareWindow / 4 {
		s.arrived(8)
	}
	if s.share(7).share != 0.75 || s.share(8).share != 0.25 {
		t.Errorf("two shapes: shares %v and %v; want 3/4 and 1/4", s.share(7).share, s.share(8).share)
	}
	for range shareWindow {
		s.arrived(8)
	}
	if s.share(8).share != 1 {
		t.Errorf("the first shape has not been seen for long: share %v, want 1", s.share(8).share)
	}
}

func TestAFewOtherShapesDoNotMakeTrafficMixed(t *testing.T) {
	for _, test := range []struct {
		every int // one of this many requests has another shape
		want  bool
	}{{1, false}, {2, true}, {5, true}, {20, false}, {50, false}} {
		var s shapes
		for i := range 1000 {
			shape := uint64(0)
			if i%test.every == 0 {
				shape = 1
			}
			s.arrived(shape)
		}
		if s.mixed() != test.want {
			t.Errorf("one in %d has another shape: mixed is %t, want %t", test.every, s.mixed(), test.want)
		}
	}
}

// Eight clients are answered per batch, in turn of two shapes, and return 20 later.
func TestClientsReturnWithTheirOwnShapeIfTheyAlwaysDid(t *testing.T) {
	for _, test := range []struct {
		name   string
		shape  func(batch, client int) uint64 // of the client's next request
		own    float64                        // expected share of a batch's clients that return with its shape
		others float64
	}{
		{"each client keeps its shape", func(batch, _ int) uint64 { return uint64(batch % 2) }, 1, 0},
		{"clients change shapes at random", func(_, client int) uint64 { return uint64(client % 2) }, 0.5, 0.5},
	} {
		var s shapes
		r := returns{}
		now := 0
		for batch := range 200 {
			r.batchEnded(4000*batching.Time(now), 8, uint64(batch%2), 1)
			for client := range 8 {
				shape := test.shape(batch, client)
				r.arrived(4000*batching.Time(now)+20, 1, s.arrived(shape))
			}
			now++
		}
		last := &r.cohorts[(r.ended-1)%maxCohorts]
		own, others := r.shapeChance(last, s.share(last.shape)), r.shapeChance(last, s.share(1-last.shape))
		if !(math.Abs(own-test.own) <= 0.1 && math.Abs(others-test.others) <= 0.1) {
			t.Errorf("%s: they return with the shape of their batch at %.2f, with the other at %.2f; want %v and %v", test.name, own, others, test.own, test.others)
		}
	}
}
