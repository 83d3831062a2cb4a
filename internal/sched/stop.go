package sched

import (
	"context"
	"sync"
	"time"
)

// A stopContext is the context of one batch after the other. It ends when
// everybody in the batch has left. Making one for each batch would be the only
// allocation on the way of a request.
type stopContext struct {
	mu      sync.Mutex // guards the following
	batch   uint64
	done    chan struct{}
	stopped bool
}

var _ context.Context = (*stopContext)(nil)

func newStopContext() *stopContext {
	return &stopContext{done: make(chan struct{})}
}

// begin starts over for a batch.
func (c *stopContext) begin(batch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batch = batch
	if c.stopped {
		c.done, c.stopped = make(chan struct{}), false
	}
}

// end stops a batch, if it still runs.
func (c *stopContext) end(batch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch == batch && !c.stopped {
		c.stopped = true
		close(c.done)
	}
}

// Deadline implements [context.Context]. Batches have none: their members do.
func (c *stopContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (c *stopContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// Err implements [context.Context].
func (c *stopContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return context.Canceled
	}
	return nil
}

// Value implements [context.Context].
func (c *stopContext) Value(any) any { return nil }
