package sched

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/contexttest"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestContextsOfBatchesKeepTheContract(t *testing.T) {
	s, batch := newStopper(), uint64(0)
	begin := func() (context.Context, func()) {
		batch++
		s.begin(batch)
		return s.ctx, func() { s.cancelBatch(batch) }
	}
	contexttest.Check(t, begin, func() { batch++; s.begin(batch) })
}

func TestABatchThatRunsToItsEndLeavesItsContextToTheNext(t *testing.T) {
	s := newStopper()
	s.begin(1)
	first := s.ctx
	s.begin(2)
	if s.ctx != first {
		t.Error("the second batch has a context of its own")
	}
	s.cancelBatch(1) // comes too late
	if s.ctx.Err() != nil {
		t.Error("the end of the first batch stopped the second")
	}
	s.cancelBatch(2)
	if s.begin(3); s.ctx == first || s.ctx.Err() != nil || first.Err() == nil {
		t.Error("the third batch has the context of the second, which was stopped")
	}
}

// late is an engine whose first batch is watched by a goroutine that is slow: it sees
// that the context is done, and asks for its error when the second batch runs.
type late struct {
	runs     int
	seen, on chan struct{}
	called   chan struct{}
}

func (l *late) Close() error { return nil }

func (l *late) Run(ctx context.Context, _ []tensor.Tensor, out *engine.Outputs) error {
	if l.runs++; l.runs > 1 {
		close(l.on)
		<-l.called
		out.Tensors = out.Tensors[:0]
		return ctx.Err()
	}
	go func() {
		<-ctx.Done()
		close(l.seen)
		<-l.on
		if ctx.Err() == nil {
			panic("a context that has ended has no error: package context panics")
		}
		close(l.called)
	}()
	<-l.seen
	return ctx.Err()
}

func TestAContextStaysEndedWhileTheNextBatchRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		l := &late{seen: make(chan struct{}), on: make(chan struct{}), called: make(chan struct{})}
		s := New([]engine.Instance{l}, Options{Pacer: p, Batching: batching.Config{MaxRows: 8}})
		ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
		defer cancel()
		var calls sync.WaitGroup
		submit := func(ctx context.Context, name string, want infer.Code) {
			calls.Go(func() {
				req := request(name, 1)
				defer req.Memory.Release()
				var resp infer.Response
				err := s.Submit(ctx, req, &resp)
				if err == nil {
					resp.Release()
				}
				if err != nil && infer.CodeOf(err) != want {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		submit(ctx, "a", infer.Deadline)
		time.Sleep(ms)
		submit(t.Context(), "b", infer.Internal)
		calls.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if l.runs != 2 {
			t.Errorf("%d batches ran, want 2", l.runs)
		}
	})
}

func TestTheEndOfATrialStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{Takes: constant(3 * ms)}, 1, Options{IdleGate: &IdleGate{}})
		req := request("try", 1)
		defer req.Memory.Release()
		over := b.newProbe(req, 1)
		if _, err := over.run(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		b.calls.Go(func() {
			took, err := b.Probe(t.Context(), req, 1, 3)
			if err != nil || len(took) != 3 {
				t.Errorf("a probe returned %v, %v", took, err)
			}
		})
		time.Sleep(ms)
		over.stop() // as its context's end does, which may come late
		b.calls.Wait()
		b.finish()
	})
}
