package sched

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A call is one request in a scheduler. The package comment says which goroutines hold it.
type call struct {
	item    batching.Item
	pool    *sync.Pool
	req     *infer.Request
	holders atomic.Int32
	next    *call         // in the intake
	done    chan struct{} // size 1, so that answering never blocks
	out     batching.Actions

	stream chan infer.ResponseStream // size 1: receives the response stream, if the model opens one
	// startTimes is the timeline up to the run, for a caller that gets the stream before the
	// batch ends.
	startTimes infer.Timeline

	empty bool // it is a row without a request; see emptyRequest
	probe bool // it is of a probe

	// For requests of iterative sequences.
	streaming bool      // the model answers over a stream
	requeued  time.Time // when it was queued to run again; zero if it runs for the first time

	slot slot // where a stage holds the rows, if one does

	// Written under the scheduler's lock, since the call was admitted. Those of a call that was answered
	// do not change any more until it is admitted for another request: a stage may still name it.
	taken  bool          // it is in a batch
	sender engine.Sender // the instance that took the call, if its model may send responses; else nil

	left atomic.Bool // the call was rejected, or is about to be; for the instance that runs it

	// The outcome, written before done is signalled.
	rejected   bool // the core answered without a result, before or during the run; verdict says why
	verdict    batching.Verdict
	retryAfter time.Duration // when a retry is likely to succeed; 0 means unknown
	outage     *infer.Error  // set if verdict is NoInstance and the reason is known
	err        error
	outputs    []tensor.Tensor
	shapes     []int64 // of outputs
	memory     *buf.Buf
	parameters []infer.Parameter
	times      infer.Timeline
}

func callOf(it *batching.Item) *call { return it.Owner.(*call) }

// newCall returns a call for req that two holders must release: the caller and the core.
// It retains the memory of req.
func (s *Scheduler) newCall(req *infer.Request) *call {
	c, ok := s.callPool.Get().(*call)
	if !ok {
		c = &call{pool: &s.callPool, done: make(chan struct{}, 1), stream: make(chan infer.ResponseStream, 1)}
		c.item.Owner = c
	}
	c.req = req
	c.item.Rows, c.item.Shape, c.item.PadGroup, c.item.Elements = req.Rows, req.Shape, req.PadGroup, req.Elements
	c.item.Bytes = infer.DataSize(req.Inputs)
	c.item.Priority, c.item.Timeout = req.Priority, req.Timeout
	c.item.Deadline = 0
	c.item.Tenant, c.item.Weight = req.Tenant, req.Weight
	c.times = infer.Timeline{}
	c.left.Store(false) // not when admitted, as taken: stages do not read it, only batches, which hold the call
	c.rejected, c.outage, c.err, c.parameters = false, nil, nil, nil
	c.item.Again, c.streaming, c.probe, c.requeued = false, false, false, time.Time{}
	c.slot.state.Store(unstaged)
	c.holders.Store(2)
	req.Memory.Retain()
	return c
}

// release gives up one holder's reference. The last one returns the call to the pool.
func (c *call) release() {
	if c.holders.Add(-1) > 0 {
		return
	}
	c.slot.state.Store(unstaged) // its stage must not wait for it
	c.req.Memory.Release()
	c.memory.Release() // if the caller did not take the outcome
	c.req, c.memory = nil, nil
	c.closeStream()
	select {
	case <-c.done: // the caller did not wait for the outcome
	default:
	}
	c.pool.Put(c)
}

// closeStream closes the response stream if the caller did not take it.
func (c *call) closeStream() {
	select {
	case stream := <-c.stream:
		stream.Close()
	default:
	}
}

// answer signals the caller that its outcome is ready, and releases the call for the core.
func (c *call) answer() {
	c.done <- struct{}{}
	c.release()
}

// handStream makes resp the owner of the response stream.
func (s *Scheduler) handStream(c *call, stream infer.ResponseStream, resp *infer.Response) {
	if s.iterative() {
		stream = s.newIterativeStream(c, stream)
	}
	s.streams.Add(1)
	resp.Stream, resp.Times = &countedStream{ResponseStream: stream, open: &s.streams}, c.startTimes
}

// A countedStream is a response stream that its scheduler counts while it is open.
type countedStream struct {
	infer.ResponseStream
	open   *atomic.Int64
	closed bool
}

// Close implements [infer.ResponseStream].
func (c *countedStream) Close() {
	c.ResponseStream.Close()
	if !c.closed {
		c.closed = true
		c.open.Add(-1)
	}
}

// outcome moves the outcome to resp, or returns its error.
func (c *call) outcome(ctx context.Context, resp *infer.Response) error {
	if c.rejected {
		if c.outage != nil {
			return c.outage
		}
		return rejection(ctx, c.verdict, c.retryAfter)
	}
	resp.Times = c.times
	if c.err != nil {
		return c.err
	}
	resp.Outputs, c.outputs = c.outputs, resp.Outputs[:0]
	resp.Shapes, c.shapes = c.shapes, resp.Shapes[:0]
	resp.Memory, c.memory = c.memory, nil
	resp.Parameters, c.parameters = c.parameters, nil
	return nil
}

// ErrClosed is the error of requests that are submitted after Close.
var ErrClosed = &infer.Error{Code: infer.Unavailable, Reason: infer.ShuttingDown, Text: "the model is stopping and takes no more requests"}

// rejections are the errors of requests that the core answers without a result.
var rejections = [...]infer.Error{
	batching.TooLarge:         {Code: infer.Invalid, Reason: infer.TooManyRows, Text: "the request has no rows, or more than the model takes"},
	batching.QueueFull:        {Code: infer.Overloaded, Reason: infer.QueueFull, Text: "the queue of the model is full"},
	batching.Late:             {Code: infer.Late, Reason: infer.WouldBeLate, Text: "the model is too busy to answer in time"},
	batching.TimedOut:         {Code: infer.QueueTimeout, Reason: infer.QueueWaitExceeded, Text: "the request waited longer than the queue policy of the model allows"},
	batching.Expired:          {Code: infer.Deadline, Reason: infer.DeadlinePassed, Text: "the deadline passed before the answer was ready"},
	batching.Cancelled:        {Code: infer.Cancelled, Reason: infer.ClientLeft, Text: "the client cancelled the request"},
	batching.NoInstance:       {Code: infer.Unavailable, Reason: infer.NoInstance, Text: "no instance of the model can be started; the server's log has the reason"},
	batching.NoStart:          {Code: infer.Invalid, Reason: infer.SequenceNotStarted, Text: "the first request of a sequence must have the START flag"},
	batching.Discontinued:     {Code: infer.Cancelled, Reason: infer.SequenceEnded, Text: "an earlier request of the sequence left the queue, and the sequence has ended"},
	batching.SequenceTimedOut: {Code: infer.Unavailable, Reason: infer.SequenceTimedOut, Text: "the sequence waited longer for a slot than the timeout of a request"},
	batching.Unbound:          {Code: infer.Unavailable, Reason: infer.InstanceLeft, Text: "the instance that holds the request's sequence is gone"},
}

// rejection returns the error of a request that the core answered without a result.
func rejection(ctx context.Context, v batching.Verdict, retryAfter time.Duration) error {
	switch {
	case v == batching.Closed:
		return ErrClosed
	case v == batching.Cancelled && errors.Is(ctx.Err(), context.DeadlineExceeded):
		v = batching.Expired
	}
	err := rejections[v]
	err.RetryAfter = retryAfter
	return &err
}

// ContextError returns the error of a request whose client no longer waits: either the
// deadline of ctx has passed, or the client cancelled the request.
func ContextError(ctx context.Context) error { return rejection(ctx, batching.Cancelled, 0) }

// deadline converts a deadline to the scheduler's clock; 0 if there is none.
func (s *Scheduler) deadline(at time.Time) batching.Time {
	if at.IsZero() {
		return 0
	}
	return max(1, at.Sub(s.epoch))
}

// at converts a time on the scheduler's clock to wall-clock time.
func (s *Scheduler) at(t batching.Time) time.Time { return s.epoch.Add(t) }
