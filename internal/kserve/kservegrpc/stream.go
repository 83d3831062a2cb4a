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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/panics"
)

const (
	// maxInFlight is the number of requests of a stream that may be in flight. No further
	// request is received until one is answered.
	maxInFlight = 256

	// workerMemory is what a request in flight takes besides its message, most of it for its stack.
	workerMemory = 8 << 10

	// maxWaiting is the number of workers that wait to receive while another one does. A client may
	// leave many streams open on which many requests were in flight once.
	maxWaiting = 4

	// headerDelay is the time in which a stream sends a header after its first request, if it has no
	// answer: the meter resets calls with a message whose client does not end them, unless they have a
	// header. It is not sent at once, because proxies may try a stream elsewhere that has none.
	headerDelay = 10 * time.Second

	// errorHeader is the header with which a client requests, by the value "true", that an
	// error of execution ends the stream with its code.
	errorHeader = "triton_grpc_error"
)

// A stream answers the requests of one client in order, while they run concurrently.
// Decoupled models send their responses at any time: their requests are not ordered. Neither
// are requests that wait for their model to be loaded, so that others do not wait, too. One
// worker handles a request from start to end: it receives it, runs it, waits for its turn
// and sends the response. Meanwhile another worker receives the next request; workers are
// started as needed.
type stream struct {
	service  *service
	messages grpc.ServerStream
	client   uint64
	strict   bool // see errorHeader

	done   <-chan struct{} // closed when the context of the stream ends
	ended  chan error      // size 1: only the first error counts, and sending never blocks
	cancel context.CancelFunc

	workers   atomic.Int32
	waiting   atomic.Int32    // workers that wait to receive
	receiving sync.Mutex      // held by the receiving worker; guards the following
	over      bool            // no more requests will be received
	last      <-chan struct{} // closed when the last received request is answered

	sending sync.Mutex // held while a response is sent

	mu      sync.Mutex  // guards the following
	closed  bool        // no more requests may begin
	header  *time.Timer // calls sendHeader; nil before the first request
	running sync.WaitGroup

	// lastQueued has a channel by model while the last received request of a sequence of that model
	// has no place in the queue, which closes it.
	lastQueued map[string]chan struct{}
}

// A turn is a request of a stream with its position in the order.
type turn struct {
	stream *stream
	in     *request
	before <-chan struct{} // closed when the previous request is answered
	after  chan struct{}   // closed when this request is answered

	unordered bool // it has given up its turn

	// Requests of sequences get their places in the queue in the order in which the client sent
	// them. Both are nil for other requests.
	precedes <-chan struct{} // closed when the previous one has its place, or has failed
	queued   chan struct{}   // closed when this one has its place, or has failed
	once     sync.Once
}

// awaitQueued waits until the previous request of a sequence has its place in the queue, if
// this one belongs to a sequence. If that one waits for their model, so does this one.
func (t *turn) awaitQueued(ctx context.Context) {
	if t.precedes == nil {
		return
	}
	select {
	case <-t.precedes:
		return
	case <-ctx.Done():
		return
	case <-t.before:
	}
	select {
	case <-t.precedes: // before the previous one was answered
	default:
		t.AwaitsModel() // the previous one has given up its turn without a place
		select {
		case <-t.precedes:
		case <-ctx.Done():
		}
	}
}

// hasPlace lets the next request of a sequence go on.
func (t *turn) hasPlace() {
	if t.queued != nil {
		t.once.Do(func() {
			close(t.queued)
			t.stream.forgetQueued(t.in.GetModelName(), t.queued)
		})
	}
}

// AwaitsModel implements [infer.Waiter].
func (t *turn) AwaitsModel() {
	if !t.unordered {
		t.unordered = true
		t.stream.running.Go(t.skip)
	}
}

// stream serves one stream. It returns when no request is in flight. A worker may still be
// blocked in receive, which only the end of the stream can interrupt; it then returns at
// once, and touches nothing but the stream.
func (s *service) stream(messages grpc.ServerStream) error {
	uncompressed(messages.Context()) // the size of later answers is not known
	ctx, cancel := context.WithCancel(messages.Context())
	defer cancel()
	first := make(chan struct{})
	close(first)
	st := &stream{
		service:  s,
		messages: messages,
		client:   clientOf(ctx),
		strict:   slices.Contains(metadata.ValueFromIncomingContext(ctx, errorHeader), "true"),
		done:     ctx.Done(),
		ended:    make(chan error, 1),
		cancel:   cancel,
		last:     first,

		lastQueued: map[string]chan struct{}{},
	}
	st.workers.Add(1)
	go st.work(ctx, budget.Charge{}) // the call is charged
	var err error
	select {
	case err = <-st.ended:
	case <-stopping(s.catalog):
		err = errStopping // requests in flight are answered first; an idle client must not delay the shutdown
		if st.close() {
			st.sendHeader()
		}
	}
	st.close()
	st.running.Wait()
	return err
}

// close prevents new requests from starting, and reports whether some have. No header is sent later.
func (st *stream) close() (begun bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	if st.header == nil {
		return false
	}
	st.header.Stop()
	return true
}

// sendHeader begins the answer, so that the stream is not reset as one that has none: an answer may
// take long to be computed, or, while the server stops, to be encoded. Clients ask again elsewhere if a stream ends
// without a header, which is right if it had no request.
func (st *stream) sendHeader() {
	st.sending.Lock()
	defer st.sending.Unlock()
	_ = st.messages.SendHeader(nil) // it was sent already, or the client has gone
}

// begin counts a received request as in flight, unless the stream is closed.
func (st *stream) begin() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return false
	}
	st.running.Add(1)
	if st.header == nil {
		st.header = time.AfterFunc(headerDelay, st.sendHeader)
	}
	return true
}

// end ends the stream with err. Requests in flight can no longer be answered.
func (st *stream) end(err error) {
	select {
	case st.ended <- err:
	default:
	}
	st.cancel()
}

func (st *stream) work(ctx context.Context, charge budget.Charge) {
	defer charge.Close()
	defer func() { st.panicked(recover()) }()
	for {
		t := st.receive(ctx)
		if t == nil {
			return
		}
		st.serve(ctx, t)
	}
}

// panicked ends the stream after a panic; cause is what recover returned.
func (st *stream) panicked(cause any) {
	if cause != nil {
		st.end(st.service.panicError(kservepb.GRPCInferenceService_ModelStreamInfer_FullMethodName, cause))
	}
}

// receive returns the next request, or nil if no more follow, or enough other workers wait for them.
func (st *stream) receive(ctx context.Context) *turn {
	if !st.mayWait() {
		st.workers.Add(-1)
		return nil
	}
	st.receiving.Lock()
	defer st.receiving.Unlock()
	st.waiting.Add(-1)
	if st.over {
		return nil
	}
	in := &request{}
	if err := st.messages.RecvMsg(in); err != nil {
		st.over = true
		st.receiveFailed(ctx, err)
		return nil
	}
	if !st.begin() {
		in.release()
		in.charge.Close()
		st.over = true
		return nil
	}
	t := &turn{stream: st, in: in, before: st.last, after: make(chan struct{})}
	st.last = t.after
	if in.err == nil && in.GetParameters()["sequence_id"] != nil {
		t.queued = make(chan struct{})
		t.precedes = st.replaceQueued(in.GetModelName(), t.queued)
		in.queued = t.hasPlace
	}
	if st.waiting.Load() == 0 && st.workers.Load() < maxInFlight {
		charge := st.service.opts.Budget.Open(budget.Calls)
		if charge.Grow(workerMemory) { // otherwise the next request is received when one is answered
			st.workers.Add(1)
			go st.work(ctx, charge)
		}
	}
	return t
}

// mayWait counts a worker as waiting, unless enough wait. It never counts one that does not wait:
// the receiving worker would rely on it instead of starting one.
func (st *stream) mayWait() bool {
	for {
		n := st.waiting.Load()
		if n >= maxWaiting {
			return false
		}
		if st.waiting.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// replaceQueued sets the channel of a model, and returns the one before, or nil if nothing waits for it.
func (st *stream) replaceQueued(model string, queued chan struct{}) (before <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	before = st.lastQueued[model]
	st.lastQueued[model] = queued
	return before
}

// forgetQueued forgets the channel of a model, unless there is a later one. A stream may name any
// number of models, and its requests are charged for their names only while they are in flight.
func (st *stream) forgetQueued(model string, queued chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.lastQueued[model] == queued {
		delete(st.lastQueued, model)
	}
}

// receiveFailed ends the stream after the last request. If the client has only finished
// sending, it still receives all responses.
func (st *stream) receiveFailed(ctx context.Context, err error) {
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
	st.running.Wait() // for unordered requests; no new ones can start
	st.end(nil)
}

// serve runs a request, and sends its response when it is its turn. If the stream ends
// first, later requests get no turn.
func (st *stream) serve(ctx context.Context, t *turn) {
	defer st.running.Done()
	defer func() { st.panicked(recover()) }()
	defer func() { t.in.attached.Release() }() // after the last response
	defer t.in.charge.Close()
	t.in.span = st.service.beginTrace(ctx, t.in)
	defer func() { t.in.span.End(t.in.failed) }()
	panics.Point("grpc stream")
	t.in.waiter = t
	t.awaitQueued(ctx)
	a, more, err := st.infer(ctx, t.in)
	t.hasPlace()
	t.in.release()
	if more != nil {
		if !t.unordered {
			st.running.Go(t.skip)
		}
		st.sendAll(ctx, t.in, more)
		return
	}
	if !t.unordered {
		select {
		case <-t.before:
		case <-ctx.Done():
			a.release()
			return
		}
	}
	if err != nil {
		st.end(err)
		return
	}
	if st.send(a) && !t.unordered {
		close(t.after)
	}
}

// skip passes the turn on to the next request as soon as it arrives.
func (t *turn) skip() {
	select {
	case <-t.before:
		close(t.after)
	case <-t.stream.done:
	}
}

// send sends a response. If that fails, the stream ends.
func (st *stream) send(a *streamAnswer) bool {
	st.sending.Lock()
	err := st.messages.SendMsg(a)
	st.sending.Unlock()
	if err != nil {
		st.end(err)
	}
	return err == nil
}

// sendAll sends the responses to a request as they arrive.
func (st *stream) sendAll(ctx context.Context, in *request, more infer.ResponseStream) {
	defer more.Close()
	for last := false; !last && ctx.Err() == nil; {
		a := &streamAnswer{answer: answer{id: in.GetId(), model: in.GetModelName(), finality: follows}}
		resp := kserve.GetResponse()
		err := kserve.TritonError(more.Next(ctx, resp), &in.asked)
		if err == nil {
			err = kserve.Settle(&in.asked, resp, &in.charge)
		}
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
			a.failure = errorText(st.service.withCode(err))
		case resp.Empty:
			kserve.PutResponse(resp)
			if !in.GetParameters()[emptyFinal].GetBoolParam() {
				return
			}
		default:
			a.version, a.response = resp.Version, resp
			a.charge(&in.charge)
		}
		if !st.send(a) {
			return
		}
	}
}

// infer runs a request. It returns its response, or the source of its responses, or an
// error that must end the stream.
func (st *stream) infer(ctx context.Context, in *request) (*streamAnswer, infer.ResponseStream, error) {
	a := &streamAnswer{answer: answer{id: in.GetId()}}
	resp := kserve.GetResponse()
	resp.Times = infer.Timeline{} // the response is pooled
	err := st.run(ctx, in, resp)
	if err == nil && resp.Stream != nil {
		more := resp.Stream
		resp.Stream = nil
		kserve.PutResponse(resp)
		return nil, more, nil
	}
	if err == nil {
		a.model, a.version, a.response, a.finality = resp.Model, resp.Version, resp, final
		a.charge(&in.charge)
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
	a.failure = errorText(err)
	return a, nil, nil
}

// errorText returns the error message of a response.
func errorText(err error) string {
	return strings.ToValidUTF8(status.Convert(err).Message(), "�")
}

// run runs a request. A panic fails only this request.
func (st *stream) run(ctx context.Context, in *request, resp *infer.Response) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = st.service.panicError(kservepb.GRPCInferenceService_ModelStreamInfer_FullMethodName, cause)
		}
	}()
	if err := cmp.Or(in.err, checkNames(in)); err != nil {
		return st.service.withCode(err)
	}
	if ctx, err = access.Renew(ctx); err != nil {
		in.failed = kserve.TraceClass(err)
		return st.service.withCode(infer.Errorf(infer.Unauthenticated, "%w", err))
	}
	req, err := in.decode(&st.service.opts.Limits)
	if err == nil {
		in.attached, err = st.service.opts.Regions.Attach(req, &in.shared)
	}
	if err == nil {
		req.Client, req.AcceptStream, req.Waiter, req.Queued, req.Trace = st.client, true, in.waiter, in.queued, in.span.Request()
		st.service.forwardHeaders(ctx, req)
		err = kserve.Infer(withEarlyDeadline(ctx), st.service.backend, req, resp, &in.charge)
	}
	in.failed = kserve.TraceClass(err)
	return st.service.withCode(err)
}
