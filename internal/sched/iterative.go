package sched

import (
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
)

// iterative reports whether the model may have requests run again.
func (s *Scheduler) iterative() bool {
	return s.opts.Sequences != nil && s.opts.Sequences.Model.Iterative
}

// numbered returns req as the start of a sequence of its own, if the model has iterative
// sequences. Numbers fit into every type that a control can have. They are used again after
// two billion requests, when no earlier request can still run.
func (s *Scheduler) numbered(req *infer.Request) *infer.Request {
	if !s.iterative() {
		return req
	}
	const numbers = 1<<31 - 1
	own := *req
	own.Correlation, own.CorrelationName = 1+(s.iterations.Add(1)-1)%numbers, ""
	own.Flags = own.Flags&^infer.SequenceEnd | infer.SequenceStart
	return &own
}

// requeueLocked decides which calls of the previous batch run again. It is called before the core
// ends the batch.
func (w *worker) requeueLocked(now batching.Time) {
	if !w.s.iterative() {
		return
	}
	for _, c := range w.finished {
		if c.err != nil || !c.item.Running() { // or its caller has left
			c.item.Again = false
		}
		if c.item.Again {
			c.taken, c.requeued = false, w.s.at(now)
			w.s.clearStart(c.req)
		}
	}
}

// clearStart makes a request one that does not start its sequence. The request is the
// scheduler's own copy, and no batch reads it.
func (s *Scheduler) clearStart(req *infer.Request) {
	req.Flags &^= infer.SequenceStart
	seq := s.opts.Sequences.Model
	controls := req.Inputs[len(req.Inputs)-len(seq.Controls):] // iterative sequences have no states
	for i := range controls {
		controls[i].Data = seq.Controls[i].Value(req)
	}
}

// recordRun sets the times of a call that has run, except when it was queued. One that has run before
// also keeps when it was first taken and run.
func (c *call) recordRun(times *infer.Timeline) {
	queued, taken, runStarted := c.times.Queued, c.times.Taken, c.times.RunStarted
	c.times = *times
	c.times.Queued = queued
	if !c.requeued.IsZero() {
		c.times.Taken, c.times.RunStarted = taken, runStarted
	}
}

// queuedAt returns when the call was queued for its current run.
func (c *call) queuedAt() time.Time {
	if c.requeued.IsZero() {
		return c.times.Queued
	}
	return c.requeued
}

// An iterativeStream is the stream of a request that may run again while its client receives
// responses. When the client closes it, the request does not run any more.
type iterativeStream struct {
	infer.ResponseStream
	s    *Scheduler
	c    *call
	once sync.Once // for Close
}

// newIterativeStream returns a stream that holds the call until it is closed.
func (s *Scheduler) newIterativeStream(c *call, stream infer.ResponseStream) infer.ResponseStream {
	c.holders.Add(1)
	return &iterativeStream{ResponseStream: stream, s: s, c: c}
}

// Close implements [infer.ResponseStream].
func (i *iterativeStream) Close() {
	i.once.Do(func() {
		i.ResponseStream.Close()
		i.s.step(batching.Event{Kind: batching.Cancel, Item: &i.c.item}, nil)
		i.c.release()
	})
}
