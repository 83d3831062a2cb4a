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

// A call is one request on its way through a scheduler. See the package comment
// for who holds it.
type call struct {
	item    batching.Item
	pool    *sync.Pool
	req     *infer.Request
	holders atomic.Int32
	before  *call         // in the intake
	done    chan struct{} // size 1, so that whoever answers never waits for the caller
	out     batching.Actions

	opened chan infer.More // size 1: what sends responses is told of once
	begun  infer.Timeline  // until its batch ran, for who does not wait for it to end

	place place // on the stage

	taken  bool          // into a batch, which is then the core's holder. Guarded by the scheduler's lock
	sender engine.Sender // which took it; nil if that is none. Guarded likewise

	// The outcome, written before done is told.
	turnedAway bool
	verdict    batching.Verdict
	retry      time.Duration // after which another try is worth it; 0 means unknown
	outage     *infer.Error  // if verdict is NoInstance
	err        error
	outputs    []tensor.Tensor
	shapes     []int64 // of outputs
	memory     *buf.Buf
	parameters []infer.Parameter
	times      infer.Timeline
}

func callOf(it *batching.Item) *call { return it.Owner.(*call) }

// newCall returns a call for req with its two holders: the caller and the core.
func (s *Scheduler) newCall(req *infer.Request) *call {
	c, ok := s.calls.Get().(*call)
	if !ok {
		c = &call{pool: &s.calls, done: make(chan struct{}, 1), opened: make(chan infer.More, 1)}
		c.item.Owner = c
	}
	c.req = req
	c.item.Rows, c.item.Shape = req.Rows, req.Shape
	c.item.Bytes = 0
	for i := range req.Inputs {
		c.item.Bytes += int64(len(req.Inputs[i].Data))
	}
	c.item.Priority, c.item.Timeout = req.Priority, req.Timeout
	c.item.Deadline = 0
	c.times = infer.Timeline{}
	c.taken, c.sender, c.turnedAway, c.outage, c.err, c.parameters = false, nil, false, nil, nil, nil
	c.place.state.Store(unstaged)
	c.holders.Store(2)
	req.Memory.Retain()
	return c
}

// letGo gives up one holder's claim. The last one returns the call to the pool.
func (c *call) letGo() {
	if c.holders.Add(-1) > 0 {
		return
	}
	c.req.Memory.Release()
	c.memory.Release() // of an outcome that nobody took
	c.req, c.memory = nil, nil
	select {
	case more := <-c.opened: // that nobody took
		more.Close()
	default:
	}
	select {
	case <-c.done: // the caller did not wait for it
	default:
	}
	c.pool.Put(c)
}

// answer tells the caller that its outcome is there.
func (c *call) answer() { c.done <- struct{}{} }

// hand gives the caller what the responses come from.
func (c *call) hand(more infer.More, resp *infer.Response) {
	resp.More, resp.Times = more, c.begun
}

// outcome moves the outcome to resp.
func (c *call) outcome(ctx context.Context, resp *infer.Response) error {
	if c.turnedAway {
		if c.outage != nil {
			return c.outage
		}
		return turnedAway(ctx, c.verdict, c.retry)
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

// ErrClosed is what requests get that come after Close.
var ErrClosed = &infer.Error{Code: infer.Unavailable, Reason: infer.ShuttingDown, Text: "the model is stopping and takes no more requests"}

// refusals say why a request did not run.
var refusals = [...]infer.Error{
	batching.TooLarge:   {Code: infer.Invalid, Reason: infer.TooManyRows, Text: "the request has no rows, or more than the model takes"},
	batching.QueueFull:  {Code: infer.Overloaded, Reason: infer.QueueFull, Text: "the queue of the model is full"},
	batching.Late:       {Code: infer.Late, Reason: infer.WouldBeLate, Text: "the model is too busy to answer in time"},
	batching.TimedOut:   {Code: infer.QueueTimeout, Reason: infer.QueueWaitExceeded, Text: "the request waited longer than the queue policy of the model allows"},
	batching.Expired:    {Code: infer.Deadline, Reason: infer.DeadlinePassed, Text: "the deadline passed before the answer was ready"},
	batching.Cancelled:  {Code: infer.Cancelled, Reason: infer.ClientLeft, Text: "the client cancelled the request"},
	batching.NoInstance: {Code: infer.Unavailable, Reason: infer.NoInstance, Text: "no instance of the model can be started; the server's log has the reason"},
	batching.Unbound:    {Code: infer.Unavailable, Reason: infer.InstanceLeft, Text: "the instance that holds the request's sequence is gone"},
}

// turnedAway returns the error of a request that did not run. retry is its RetryAfter.
func turnedAway(ctx context.Context, v batching.Verdict, retry time.Duration) error {
	switch {
	case v == batching.Refused:
		return ErrClosed
	case v == batching.Cancelled && errors.Is(ctx.Err(), context.DeadlineExceeded):
		v = batching.Expired
	}
	err := refusals[v]
	err.RetryAfter = retry
	return &err
}

// Left returns the error of a request whose client no longer waits: the deadline of ctx
// passed, or the client cancelled the request.
func Left(ctx context.Context) error { return turnedAway(ctx, batching.Cancelled, 0) }

// deadline returns when ctx ends, on the scheduler's clock; 0 if it never does.
func (s *Scheduler) deadline(ctx context.Context) batching.Time {
	t, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(1, t.Sub(s.began))
}

// at returns the time on the wall of a time on the scheduler's clock.
func (s *Scheduler) at(t batching.Time) time.Time { return s.began.Add(t) }
