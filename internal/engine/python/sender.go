package python

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// An activeBatch is the batch that an instance is running, for goroutines other than the
// instance's: those that read from the worker, and those that report that a client has
// left.
type activeBatch struct {
	mu        sync.Mutex // guards the following
	memory    []byte     // input memory; nil if no batch is running
	serial    uint64     // of the batch, counted over all workers of the instance
	number    uint32     // of the RUN frame
	calls     []engine.Call
	cancelled []int // offsets in memory of the requests' cancelled words
	opened    []bool
	left      []bool // by request: its client has left, so no stream is delivered
	senders   []*sender
	outbound  map[*outboundCall]struct{}
	abandoned bool // all clients have left
}

// begin starts a batch and returns its serial number, for abandon.
func (r *activeBatch) begin(w *worker, calls []engine.Call, cancelled []int) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serial++
	r.memory, r.number, r.calls, r.cancelled = w.in, w.number+1, calls, cancelled
	r.opened, r.left, r.senders, r.abandoned = r.opened[:0], r.left[:0], r.senders[:0], false
	for i := range calls {
		r.opened, r.left = append(r.opened, false), append(r.left, false)
		if left := calls[i].Left; left != nil && left.Load() {
			r.markLocked(i) // markCancelled did not find it
		}
	}
	return r.serial
}

// markLocked marks request i as cancelled for the model, and for open, which must not rely on
// memory that the worker can write.
func (r *activeBatch) markLocked(i int) { r.memory[r.cancelled[i]], r.left[i] = 1, true }

// end ends the batch and returns the senders that were opened for it. No more are opened
// afterwards.
func (r *activeBatch) end() []*sender {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory, r.calls = nil, nil
	clear(r.outbound)
	return r.senders
}

// markCancelled marks a request as cancelled for the model.
func (r *activeBatch) markCancelled(req *infer.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.calls {
		if r.calls[i].Request == req {
			r.markLocked(i)
		}
	}
}

// abandon marks all requests of a batch as cancelled, if the batch is still running, and
// cancels the calls that the model has made and will make meanwhile.
func (r *activeBatch) abandon(serial uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serial != serial {
		return
	}
	r.abandoned = true
	for i := range r.calls {
		r.markLocked(i)
	}
	for e := range r.outbound {
		e.cancel()
	}
}

// add adds a call that the model makes while it runs the batch, and returns whom the call is
// made for: the callers of all requests, because the model does not say which. A thread of
// the model that makes a call outside of any batch acts for the server, as the model does
// when it is loaded.
func (r *activeBatch) add(e *outboundCall) *access.Caller {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		return access.Self
	}
	if r.outbound == nil {
		r.outbound = map[*outboundCall]struct{}{}
	}
	r.outbound[e] = struct{}{}
	if r.abandoned {
		e.cancel() // no client waits for its response
	}
	callers := make([]*access.Caller, len(r.calls))
	for i := range r.calls {
		callers[i] = r.calls[i].Request.Caller
	}
	return access.Join(callers...)
}

func (r *activeBatch) remove(e *outboundCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.outbound, e)
}

// open delivers a sender to the request of the batch that f names. It takes ownership of s
// and closes it if no request takes it, or if the request's client has left: the model would
// wait for a reader when the connection is full.
func (r *activeBatch) open(f frame, s *sender) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil || f.number != r.number || f.a >= uint64(len(r.calls)) || r.opened[f.a] || r.calls[f.a].Opened == nil {
		s.Close()
		return
	}
	if r.left[f.a] {
		r.opened[f.a] = true // the model's answer refers to it
		s.Close()
		return
	}
	select {
	case r.calls[f.a].Opened <- s:
		r.opened[f.a], r.senders = true, append(r.senders, s)
	default: // the request has one from before the batch was retried
		s.Close()
	}
}

// A sender receives the responses to one request. It is the other end of a
// pb_utils.InferenceResponseSender, and implements [infer.ResponseStream].
type sender struct {
	conn *net.UnixConn
	w    *worker
	cfg  *modelconfig.Config
	once sync.Once // for Close

	batchEnded chan struct{} // closed when the batch has ended
	batchErr   error         // outcome of the batch; valid once batchEnded is closed
}

// batchDone is called once, when the batch has ended. If the batch failed, no more
// responses are accepted.
func (s *sender) batchDone(err error) {
	s.batchErr = err
	close(s.batchEnded)
	if err != nil {
		_ = s.conn.CloseRead() // what has arrived can still be read
	}
}

// Close implements [infer.ResponseStream]. The model notices that the connection is closed.
func (s *sender) Close() {
	s.once.Do(func() {
		_ = s.conn.Close()
		s.w.senders.Done()
	})
}

// Next implements [infer.ResponseStream].
func (s *sender) Next(ctx context.Context, resp *infer.Response) error {
	resp.Outputs, resp.Parameters, resp.Last, resp.Empty = resp.Outputs[:0], nil, false, false
	stop := interruptReads(ctx, s.conn)
	f, p, err := receive(s.conn)
	stop()
	switch {
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
		p.release()
		resp.Last = true
		return context.Cause(ctx)
	case err == nil && f.kind == 0 || errors.Is(err, net.ErrClosed):
		resp.Last = true
		return s.closedError()
	case err == nil && f.kind != kindSend:
		err = fmt.Errorf("a frame of kind %d on a connection for responses", f.kind)
	}
	if err != nil {
		p.release()
		resp.Last = true
		s.w.kill("it violated the protocol: it sent " + err.Error())
		return s.closedError()
	}
	if f.flags&senderDropped != 0 {
		resp.Last = true
		return s.droppedError(ctx)
	}
	resp.Last, resp.Empty = f.flags&lastResponse != 0, p == nil
	if p == nil {
		return nil
	}
	return s.decode(p, resp)
}

// decode converts a payload to a response.
func (s *sender) decode(p *payload, resp *infer.Response) (err error) {
	defer p.release() // unless resp took the memory over
	if p.Failed {
		return infer.Errorf(codeOf(p.Code), "%s", p.Text)
	}
	if resp.Parameters, err = decodeParameters(p.Parameters); err != nil {
		return err
	}
	for i := range p.data {
		x := &p.data[i]
		if !s.has(x.Name) {
			return infer.Errorf(infer.Internal, "the model answered with an output %q, which its configuration does not have", x.Name)
		}
		if err := x.Check(); err != nil {
			return infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
		}
	}
	resp.Outputs, resp.Memory = append(resp.Outputs, p.data...), p.takeMemory()
	return nil
}

func (s *sender) has(output string) bool {
	for i := range s.cfg.Outputs {
		if s.cfg.Outputs[i].Name == output {
			return true
		}
	}
	return false
}

// droppedError returns the error for a sender that the model dropped without sending the
// final flag: that of the batch if it failed, which is known only when it has ended.
func (s *sender) droppedError(ctx context.Context) error {
	select {
	case <-s.batchEnded:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.batchErr != nil {
		return s.batchErr
	}
	return infer.Errorf(infer.Internal, "Failed to process the request(s) for model '%s', message: its response sender is gone, "+
		"and sent no TRITONSERVER_RESPONSE_COMPLETE_FINAL", s.w.instance)
}

// closedError returns the error for a connection that was closed: that of the batch if it
// failed, otherwise the death of the worker, for which it waits.
func (s *sender) closedError() error {
	select {
	case <-s.batchEnded:
		if s.batchErr != nil {
			return s.batchErr
		}
	default:
	}
	timer := time.NewTimer(2 * pollInterval)
	defer timer.Stop()
	select {
	case <-s.w.died:
		return s.w.deathError("died before it had sent all responses")
	case <-timer.C:
		s.w.kill("it closed a connection for responses without a final response")
		<-s.w.died
		return s.w.deathError("violated the protocol")
	}
}
