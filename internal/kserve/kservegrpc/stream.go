package kservegrpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

const (
	// A stream has so many requests at once, received and not yet answered. The next
	// one is not received before there is room.
	maxInFlight = 256

	// A client that sends this header with "true" wants an error of execution to
	// end the stream, with its code.
	errorHeader = "triton_grpc_error"
)

// A stream answers the requests of one client in their order, while they run at
// the same time. A model that answers as often as it likes answers when it likes: its
// requests have no place in the order. Each request is the business of one worker from beginning to end, which
// receives it, runs it, waits for its turn and writes the answer. While it does so
// another worker receives the next request; there are as many as were needed at
// once.
type stream struct {
	service  *service
	messages grpc.ServerStream
	client   uint64
	strict   bool // see errorHeader

	ended  chan error // size 1: the first reason counts, and nobody waits to tell another
	cancel context.CancelFunc

	waiting   atomic.Int32 // workers that wait to receive
	receiving sync.Mutex   // held by the one that does; guards the following
	over      bool         // there will be no more requests
	workers   int
	last      <-chan struct{} // is closed when the request received last is answered

	sending sync.Mutex // held while an answer is written

	mu      sync.Mutex // guards the following
	closed  bool       // no more requests begin
	running sync.WaitGroup
}

// A turn is a request of a stream, and its place in the order.
type turn struct {
	in     *request
	before <-chan struct{} // is closed when the one before is answered
	after  chan struct{}   // is to be closed when this one is
}

// stream serves one stream. It returns when no request runs any more. A worker may
// then still wait to receive, which nothing but the end of the stream can stop; it
// ends at once, and touches nothing but the stream.
func (s *service) stream(messages grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(messages.Context())
	defer cancel()
	first := make(chan struct{})
	close(first)
	st := &stream{
		service:  s,
		messages: messages,
		client:   clientOf(ctx),
		strict:   slices.Contains(metadata.ValueFromIncomingContext(ctx, errorHeader), "true"),
		ended:    make(chan error, 1),
		cancel:   cancel,
		workers:  1,
		last:     first,
	}
	go st.work(ctx)
	var err error
	select {
	case err = <-st.ended:
	case <-stoppingOf(s.catalog):
		err = errStopping // once what was received is answered: a silent client keeps nobody
	}
	st.close()
	return err
}

// close lets no more requests begin, and waits for those that have.
func (st *stream) close() {
	st.mu.Lock()
	st.closed = true
	st.mu.Unlock()
	st.running.Wait()
}

// begin counts a request that was received, unless it is too late.
func (st *stream) begin() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.closed {
		st.running.Add(1)
	}
	return !st.closed
}

// end ends the stream. Requests that still run have nobody to answer.
func (st *stream) end(err error) {
	select {
	case st.ended <- err:
	default:
	}
	st.cancel()
}

func (st *stream) work(ctx context.Context) {
	for {
		t := st.receive(ctx)
		if t == nil {
			return
		}
		st.serve(ctx, t)
	}
}

// receive returns the next request, or nil if there are no more.
func (st *stream) receive(ctx context.Context) *turn {
	st.waiting.Add(1)
	st.receiving.Lock()
	defer st.receiving.Unlock()
	st.waiting.Add(-1)
	if st.over {
		return nil
	}
	in := &request{}
	if err := st.messages.RecvMsg(in); err != nil {
		st.over = true
		st.finish(ctx, err)
		return nil
	}
	if !st.begin() {
		in.release()
		st.over = true
		return nil
	}
	t := &turn{in: in, before: st.last, after: make(chan struct{})}
	st.last = t.after
	if st.waiting.Load() == 0 && st.workers < maxInFlight {
		st.workers++
		go st.work(ctx)
	}
	return t
}

// finish ends the stream after what could be received. A client that has no more
// requests still gets all its answers.
func (st *stream) finish(ctx context.Context, err error) {
	if !errors.Is(err, io.EOF) {
		st.end(err)
		return
	}
	select {
	case <-st.last:
	case <-ctx.Done():
		st.end(st.service.withCode(ctx.Err()))
		return
	}
	st.running.Wait() // for those that are not in the order; there are no more to come
	st.end(nil)
}

// serve runs a request, and writes its answer when it is its turn. Where the stream
// ends instead, those behind have no turn.
func (st *stream) serve(ctx context.Context, t *turn) {
	defer st.running.Done()
	a, more, err := st.ask(ctx, t.in)
	t.in.release()
	if more != nil {
		st.running.Go(func() { t.pass(ctx) })
		st.sendAll(ctx, t.in, more)
		return
	}
	select {
	case <-t.before:
	case <-ctx.Done():
		a.release()
		return
	}
	if err != nil {
		st.end(err)
		return
	}
	if st.send(a) {
		close(t.after)
	}
}

// pass lets the next one have its turn as soon as this one would have it.
func (t *turn) pass(ctx context.Context) {
	select {
	case <-t.before:
		close(t.after)
	case <-ctx.Done():
	}
}

// send writes an answer. If that fails, the stream ends.
func (st *stream) send(a *streamAnswer) bool {
	st.sending.Lock()
	err := st.messages.SendMsg(a)
	st.sending.Unlock()
	if err != nil {
		st.end(err)
	}
	return err == nil
}

// sendAll writes one answer after the other to a request, as they come.
func (st *stream) sendAll(ctx context.Context, in *request, more infer.More) {
	defer more.Close()
	for last := false; !last && ctx.Err() == nil; {
		a := &streamAnswer{answer: answer{id: in.GetId(), model: in.GetModelName(), finality: follows}}
		resp := kserve.GetResponse()
		err := kserve.Worded(more.Next(ctx, resp), &in.asked)
		if last = resp.Last; last {
			a.finality = final
		}
		switch {
		case err != nil && st.strict:
			kserve.PutResponse(resp)
			st.end(st.service.withCode(err))
			return
		case err != nil:
			kserve.PutResponse(resp)
			a.failure = failureOf(st.service.withCode(err))
		case resp.Bare:
			kserve.PutResponse(resp)
			if !in.GetParameters()[emptyFinal].GetBoolParam() {
				return
			}
		default:
			a.version, a.response = resp.Version, resp
		}
		if !st.send(a) {
			return
		}
	}
}

// ask runs a request. What it returns is its answer, or where its answers come from, or
// an error that is to end the stream.
func (st *stream) ask(ctx context.Context, in *request) (*streamAnswer, infer.More, error) {
	a := &streamAnswer{answer: answer{id: in.GetId()}}
	resp := kserve.GetResponse()
	resp.Times = infer.Timeline{} // it may have been another's
	err := st.run(ctx, in, resp)
	if err == nil && resp.More != nil {
		more := resp.More
		resp.More = nil
		kserve.PutResponse(resp)
		return nil, more, nil
	}
	if err == nil {
		a.model, a.version, a.response, a.finality = resp.Model, resp.Version, resp, final
		return a, nil, nil
	}
	executed := !resp.Times.Taken.IsZero()
	kserve.PutResponse(resp)
	if executed && st.strict {
		return a, nil, err
	}
	if executed {
		a.model, a.finality = in.GetModelName(), final
	}
	a.failure = failureOf(err)
	return a, nil, nil
}

// failureOf returns what an answer says of an error.
func failureOf(err error) string {
	return strings.ToValidUTF8(status.Convert(err).Message(), "�")
}

// run runs a request. A panic costs no more than that.
func (st *stream) run(ctx context.Context, in *request, resp *infer.Response) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = st.service.panicked(kservepb.GRPCInferenceService_ModelStreamInfer_FullMethodName, cause)
		}
	}()
	if err := cmp.Or(in.err, checkNames(in)); err != nil {
		return st.service.withCode(err)
	}
	req, err := in.decode(&st.service.opts.Limits)
	if err == nil {
		req.Client, req.Many = st.client, true
		err = kserve.Infer(punctual(ctx), st.service.backend, req, resp)
	}
	return st.service.withCode(err)
}
