package server

import (
	"context"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
)

// never is a Demand that must not be asked.
type never struct{ tb testing.TB }

func (n never) Await(context.Context, string, bool) error {
	n.tb.Error("a model that serves was awaited")
	return nil
}

func (never) Available(string) bool { return false }
func (never) Counted(string) int64  { return 0 }

// absent is a Demand without models that counts how often it is asked.
type absent struct{ asked int }

func (a *absent) Await(context.Context, string, bool) error {
	a.asked++
	return infer.Errorf(infer.NotFound, "no such model")
}

func (*absent) Available(string) bool { return false }
func (*absent) Counted(string) int64  { return 0 }

func TestAModelThatServesCostsNothingMoreInModeDemand(t *testing.T) {
	s := start(t)
	s.SetDemand(never{t})
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := s.findOrLoad(t.Context(), "echo", "", nil, false); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func TestAModelThatNoSourceHasIsNotFound(t *testing.T) {
	s, none := start(t), &absent{}
	s.SetDemand(none)
	_, err := s.findOrLoad(t.Context(), "bogus", "", nil, false)
	if infer.CodeOf(err) != infer.NotFound || none.asked != 1 {
		t.Errorf("%v, asked %d times", err, none.asked)
	}
	if s.ModelReady("bogus", "") || !s.ModelReady("echo", "") {
		t.Error("a model is ready that no source has, or one is not that serves")
	}
}

// BenchmarkFind compares the lookup of a request with and without mode demand.
func BenchmarkFind(b *testing.B) {
	s := start(b)
	b.Run("Find", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Find("echo", ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, demand := range map[string]Demand{"findOrLoad": nil, "findOrLoad in mode demand": never{b}} {
		b.Run(name, func(b *testing.B) {
			s.demand = demand
			for b.Loop() {
				if _, err := s.findOrLoad(b.Context(), "echo", "", nil, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
