package sched

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/trace"
)

// spans keeps exported spans.
type spans struct {
	mu  sync.Mutex // guards the following
	all []*trace.Span
}

func (s *spans) Export(one *trace.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, one)
}

func TestABatchIsLinkedToItsTracedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &spans{}
		tracer := trace.New(kept, trace.Settings{On: true, Rate: 1, Count: -1})
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		a, c := request("a", 2), request("c", 3)
		a.Trace, c.Trace = tracer.Begin("http", "m", "", "").Request(), tracer.Begin("http", "m", "", "").Request()
		b.submit(0, request("busy", 8), 10*ms) // not traced
		b.submit(1*ms, a, 20*ms)
		b.submit(2*ms, request("b", 1), 20*ms) // not traced
		b.submit(3*ms, c, 20*ms)
		b.finish()
		if len(kept.all) != 1 {
			t.Fatalf("%d batches have a span, want the one with traced requests", len(kept.all))
		}
		s := kept.all[0]
		if took := s.End.Sub(s.Start); s.Name != "batch" || took != 10*ms {
			t.Errorf("span %s of %v, want that of the batch, 10 ms", s.Name, took)
		}
		if want := []trace.Context{a.Trace.Compute(), c.Trace.Compute()}; !slices.Equal(s.Links, want) {
			t.Errorf("links %v, want those of the traced requests %v", s.Links, want)
		}
		if s.Trace != c.Trace.Trace || s.Parent != c.Trace.Compute().Span {
			t.Errorf("it is a part of %v, want one of its requests", s.Parent)
		}
		got := map[string]any{}
		for _, at := range s.Attributes {
			got[at.Name] = at.Value
		}
		if want := map[string]any{trace.ModelName: "", trace.BatchRows: 6, trace.BatchRequests: 3, trace.CloseReason: got[trace.CloseReason], trace.Instance: 1}; !maps.Equal(got, want) || got[trace.CloseReason] == "" {
			t.Errorf("attributes %v, want %v and why it closed", got, want)
		}
		time.Sleep(ms)
	})
}
