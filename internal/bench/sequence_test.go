package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/pacer"
)

// steps is a caller that keeps the rules of a server with sequences.
type steps struct {
	fake
	t        *testing.T
	live     map[uint64]int // requests so far
	inFlight map[uint64]bool
	lengths  []int
	most     int // sequences at the same time
	failAt   int // the request of a sequence that fails; 0 means none
	failed   int
}

func (s *steps) InferStep(ctx context.Context, request int, step Step) error {
	s.mu.Lock()
	n, known := s.live[step.ID]
	if step.Start == known || s.inFlight[step.ID] {
		s.t.Errorf("sequence %d: start %t, known %t, in flight %t", step.ID, step.Start, known, s.inFlight[step.ID])
	}
	if s.failAt > 0 && n+1 == s.failAt {
		s.failed++
		delete(s.live, step.ID)
		s.mu.Unlock()
		return errors.New("the sequence has ended")
	}
	s.live[step.ID], s.inFlight[step.ID] = n+1, true
	s.most = max(s.most, len(s.live))
	s.mu.Unlock()
	err := s.Infer(ctx, request)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[step.ID] = false
	if step.End && err == nil {
		s.lengths = append(s.lengths, s.live[step.ID])
		delete(s.live, step.ID)
	}
	return err
}

// runSequences measures a load with a model that has sequences.
func runSequences(t *testing.T, s *steps, seq Sequences, l Load) Level {
	t.Helper()
	return runSequencesUntil(t.Context(), t, s, seq, l)
}

// runSequencesUntil is runSequences of a user who interrupts the load when ctx ends.
func runSequencesUntil(ctx context.Context, t *testing.T, s *steps, seq Sequences, l Load) Level {
	t.Helper()
	p := pacer.NewPortable()
	defer p.Close()
	s.began, s.t, s.live, s.inFlight = time.Now(), t, map[uint64]int{}, map[uint64]bool{}
	b := &Bench{Targets: []Target{{Model: "m", Caller: s, Rows: []int{1}, Sequences: &seq}}, Pacer: p, Interval: time.Second, Rule: Rule{Percent: 10}}
	var levels []Level
	if err := b.Run(ctx, []Load{l}, func(l Level) { levels = append(levels, l) }); err != nil {
		t.Fatal(err)
	}
	if len(s.live) != 0 {
		t.Errorf("%d sequences are left without their end", len(s.live))
	}
	return levels[0]
}

func TestEachClientOfAClosedLoopSendsOneSequenceAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{fake: fake{answer: always(10 * time.Millisecond)}}
		level := runSequences(t, s, Sequences{Length: 10, Variation: 20, First: 5, Last: 7}, Load{Concurrency: 3, Count: 200})
		if s.most != 3 || level.Client.Requests != 200 {
			t.Errorf("%d sequences at the same time, %d requests, want 3 and 200", s.most, level.Client.Requests)
		}
		lengths := s.lengths[:len(s.lengths)-3] // the last ones are cut short by the end
		if shortest, longest := slices.Min(lengths[1:]), slices.Max(lengths); shortest < 8 || longest > 12 || shortest == longest {
			t.Errorf("lengths %v, want different ones from 8 to 12", lengths)
		}
	})
}

func TestRequestsOfAnOpenLoopShareTheSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{fake: fake{answer: always(50 * time.Millisecond)}}
		level := runSequences(t, s, Sequences{Length: 5, Number: 2}, Load{Rate: 100, Count: 50})
		if s.most != 2 {
			t.Errorf("%d sequences at the same time, want 2", s.most)
		}
		// 40 of 100 requests a second can be sent: the others are late, and that counts.
		if got := level.Client.Mean; got < 300*time.Millisecond {
			t.Errorf("a mean latency of %v, want that requests which wait for their sequence are late", got)
		}
	})
}

func TestSequencesOfALoadThatIsInterruptedAreEnded(t *testing.T) {
	for _, l := range []Load{{Concurrency: 3}, {Rate: 100}} {
		synctest.Test(t, func(t *testing.T) {
			s := &steps{fake: fake{answer: always(30 * time.Millisecond)}}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+5*time.Millisecond)
			defer cancel()
			level := runSequencesUntil(ctx, t, s, Sequences{Length: 100, Number: 3}, l)
			if !level.Interrupted || s.most != 3 {
				t.Errorf("%v: interrupted %t, %d sequences at the same time, want 3", l, level.Interrupted, s.most)
			}
		})
	}
}

func TestASequenceThatFailsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{fake: fake{answer: always(time.Millisecond)}, failAt: 4}
		level := runSequences(t, s, Sequences{Length: 10}, Load{Concurrency: 1, Count: 40})
		if level.Client.Requests != 30 || level.Client.Failed != 10 {
			t.Errorf("%d requests, %d failed, want three of each four", level.Client.Requests, level.Client.Failed)
		}
	})
}
