package sched

import (
	"context"
	"sync"
)

// A stopper provides the contexts of one instance's batches. A context is cancelled when
// every client of its batch has left.
//
// A batch that runs to its end leaves its context untouched, and the next batch uses
// the same one: a context for each batch would be the only allocation on the path of a
// request. A context that has ended is never used again. An engine may have handed it
// to [context.AfterFunc] or derived others from it, and all of them rely on an ended
// context staying ended.
type stopper struct {
	ctx    context.Context //nolint:containedctx // of the current batch; written by the instance's goroutine only, under mu
	mu     sync.Mutex      // guards the following
	batch  uint64          // the number of the batch that ctx belongs to
	cancel context.CancelFunc
}

func newStopper() *stopper {
	s := &stopper{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// begin prepares ctx for a batch. Only the instance's goroutine calls it.
func (s *stopper) begin(batch uint64) {
	s.mu.Lock()
	s.batch = batch
	if s.ctx.Err() != nil {
		s.ctx, s.cancel = context.WithCancel(context.Background())
	}
	s.mu.Unlock()
}

// cancelBatch cancels the context of a running batch. It does nothing if another batch
// has begun since.
func (s *stopper) cancelBatch(batch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batch == batch {
		s.cancel()
	}
}
