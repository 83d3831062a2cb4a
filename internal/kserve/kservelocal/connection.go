package kservelocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/internal/panics"
)

// A connection is one client. One goroutine at a time reads its frames. If the client
// announces that it sends nothing else during a call, that goroutine runs the call itself,
// which saves a goroutine switch. If the call takes longer than handoffDelay, a second
// goroutine takes over reading, so that a disconnect is noticed. After that, the two take
// turns. A new one for each such call would first have to grow its stack, which takes as many
// instructions as all else of the call. Other calls run in a goroutine each.
type connection struct {
	server    *Server
	socket    *net.UnixConn
	client    uint64
	calls     sync.WaitGroup     // and the second goroutine
	cancelAll context.CancelFunc // of the context of all calls; set by serve

	handoff *time.Timer // set while the reading goroutine runs a call; the other one receives from it, and reads
	waits   atomic.Bool // the goroutine that does not read waits for handoff, which is not set

	// Used only by the reading goroutine.
	two      bool // the second goroutine exists
	message  []byte
	control  []byte
	greeted  bool
	memories map[uint32]*buf.Buf // by number; the connection owns one reference to each
	shared   int                 // total size of memories in bytes

	mu         sync.Mutex // guards the following
	running    map[uint32]context.CancelFunc
	unfinished int // calls, with those whose answers the client has not made room for
}

// handoffDelay is how long a call may run in the reading goroutine before another one
// reads, in order to notice that the client disconnects.
const handoffDelay = time.Millisecond

func newConnection(s *Server, socket *net.UnixConn, client uint64) *connection {
	handoff := time.NewTimer(handoffDelay)
	handoff.Stop()
	return &connection{
		server: s, socket: socket, client: client, handoff: handoff,
		message:  make([]byte, maxFrame+1),
		control:  make([]byte, 64), // enough for one descriptor
		memories: map[uint32]*buf.Buf{}, running: map[uint32]context.CancelFunc{},
	}
}

// serve handles the client's frames until it disconnects or violates the protocol, and
// then frees its resources. The socket stays the caller's.
func (c *connection) serve(ctx context.Context) {
	ctx, c.cancelAll = context.WithCancel(ctx)
	defer c.releaseMemories()
	defer c.calls.Wait()
	c.takeTurns(ctx)
}

// takeTurns reads frames, in turns with the other goroutine, until the end of the connection. Then it
// cancels all calls, of which the other goroutine may be running one.
func (c *connection) takeTurns(ctx context.Context) {
	defer c.cancelAll()
	for !c.read(ctx) {
		c.waits.Store(true)
		if !c.awaitTurn(ctx) {
			return
		}
	}
	_ = c.socket.CloseRead() // after a panic, the other goroutine may be reading, too
}

// awaitTurn returns true when the calling goroutine has to read, and false at the end of the
// connection.
func (c *connection) awaitTurn(ctx context.Context) bool {
	select {
	case <-c.handoff.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// lend makes the other goroutine read after handoffDelay. It returns false if that one is still running
// a call, for whose answer the client has not waited.
func (c *connection) lend(ctx context.Context) bool {
	switch {
	case !c.two:
		c.two = true
		c.calls.Go(func() {
			if c.awaitTurn(ctx) {
				c.takeTurns(ctx)
			}
		})
	case !c.waits.Load():
		return false
	}
	c.waits.Store(false)
	c.handoff.Reset(handoffDelay)
	return true
}

// takeBack reports whether the other goroutine has not taken over reading since lend.
func (c *connection) takeBack() bool {
	if !c.handoff.Stop() {
		return false
	}
	c.waits.Store(true)
	return true
}

// read reads frames. It returns true at the end of the connection, and false if the other
// goroutine has taken over reading.
func (c *connection) read(ctx context.Context) bool {
	for {
		n, oob, flags, _, err := c.socket.ReadMsgUnix(c.message, c.control)
		var fds []int
		if oob > 0 {
			fds = memfd.Descriptors(c.control[:oob])
		}
		if err != nil || n == 0 {
			memfd.CloseAll(fds)
			return true // the client has disconnected
		}
		reads := true
		if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 || n > maxFrame {
			err = fmt.Errorf("a frame of more than %d bytes, or with more descriptors than one", maxFrame)
		} else {
			reads, err = c.handle(ctx, c.message[:n], fds)
		}
		memfd.CloseAll(fds) // mappings stay valid
		switch {
		case err == nil && reads:
		case err == nil:
			return false
		case infer.CodeOf(err) == infer.Internal && errors.Is(err, errPanic):
			c.fail(0, err)
			return true
		default:
			c.fail(0, infer.Errorf(infer.Invalid, "protocol violation: %w", err))
			return true
		}
	}
}

// releaseMemories releases all memory of the client.
func (c *connection) releaseMemories() {
	c.server.reserveMemories(-len(c.memories))
	for _, m := range c.memories {
		m.Release()
	}
}

// handle processes a frame, and reports whether the calling goroutine still reads. An
// error is a violation of the protocol, or a panic, and ends the connection.
func (c *connection) handle(ctx context.Context, message []byte, fds []int) (reads bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			reads, err = true, c.recovered("reader of a local client", cause)
		}
	}()
	panics.Point("local read")
	f, err := readFrame(message)
	switch {
	case err != nil:
		return true, err
	case !c.greeted && f.kind != kindHello:
		return true, fmt.Errorf("a frame of kind %d, expected HELLO first", f.kind)
	case f.kind == kindMemory && len(fds) != 1 || f.kind != kindMemory && len(fds) > 0:
		return true, fmt.Errorf("a frame of kind %d with %d descriptors", f.kind, len(fds))
	}
	switch f.kind {
	case kindHello:
		err = c.hello(&f)
	case kindMemory:
		err = c.share(&f, fds[0])
	case kindFree:
		err = c.free(&f)
	case kindInfer:
		return c.infer(ctx, &f)
	case kindCancel:
		c.cancel(f.number)
	case kindModel:
		c.describe(&f)
	}
	return true, err
}

func (c *connection) hello(f *frame) error {
	if f.a != protocol {
		return fmt.Errorf("a client that speaks version %d of the protocol, expected %d; install the Python package and the server of one release", f.a, protocol)
	}
	c.greeted = true
	c.send(&frame{kind: kindWelcome, a: protocol, b: maxCalls, c: maxShared})
	return nil
}

// share maps memory of the client.
func (c *connection) share(f *frame, fd int) error {
	if c.memories[f.number] != nil {
		return fmt.Errorf("memory %d again, expected another number", f.number)
	}
	if len(c.memories) == maxCalls || f.a > uint64(maxShared-c.shared) {
		return fmt.Errorf("%d bytes beside %d bytes in %d memories, expected at most %d and %d", f.a, c.shared, len(c.memories), maxShared, maxCalls)
	}
	if !c.server.reserveMemories(1) {
		return fmt.Errorf("more than %d memories of all clients", maxMemories)
	}
	b, err := memfd.Map(fd, int(f.a))
	if err != nil {
		c.server.reserveMemories(-1)
		return err
	}
	c.shared += len(b)
	c.memories[f.number] = buf.Wrap(b, func() { memfd.Unmap(b) })
	return nil
}

// free releases memory of the client. A call that will write to it has its own reference.
func (c *connection) free(f *frame) error {
	m := c.memories[f.number]
	if m == nil {
		return fmt.Errorf("FREE of memory %d, which does not exist", f.number)
	}
	delete(c.memories, f.number)
	c.shared -= len(m.B)
	c.server.reserveMemories(-1)
	m.Release()
	return nil
}

// describe sends the description of a model.
func (c *connection) describe(f *frame) {
	loading := !c.server.catalog.Accepting() // a model that cannot be loaded keeps it from being ready
	name, version := string(f.rest), ""
	if f.a > 0 && f.a < uint64(len(name)) {
		name, version = name[:f.a], name[f.a:]
	}
	m, err := c.server.catalog.Model(c.server.ctx, name, version)
	var document []byte
	if err == nil {
		document, err = kserve.MetadataJSON(m)
	}
	if err == nil && len(document) > maxFrame-frameSize {
		err = infer.Errorf(infer.Unsupported, "the description has %d bytes, and at most %d can be sent; get it over HTTP", len(document), maxFrame-frameSize)
	}
	if err != nil {
		answer := failure(f.number, err)
		if loading {
			answer.flags = stillLoading
		}
		c.send(answer)
		return
	}
	c.send(&frame{kind: kindDescription, number: f.number, rest: document})
}

// infer runs a call or starts it, and reports whether the calling goroutine still reads.
func (c *connection) infer(ctx context.Context, f *frame) (reads bool, err error) {
	q, err := readInference(f, &c.server.opts.Limits)
	switch {
	case infer.CodeOf(err) == infer.Invalid: // a limit is exceeded; other calls of the connection are not to blame
		c.fail(f.number, err)
		return true, nil
	case err != nil:
		return true, err
	}
	m := c.memories[q.memory]
	var shared []byte
	switch {
	case m != nil:
		shared = m.B
	case q.memory != 0:
		return true, fmt.Errorf("a call with memory %d, which does not exist", q.memory)
	}
	room, ok := q.room.slice(shared)
	if !ok {
		return true, fmt.Errorf("room of %d bytes at offset %d in a memory of %d", q.room.length, q.room.offset, len(shared))
	}
	if err := checkNames(q.req); err != nil {
		c.fail(f.number, err)
		return true, nil
	}
	if err := q.attachData(m, &c.server.opts.Limits); err != nil {
		c.fail(f.number, err)
		return true, nil
	}
	q.req.Client = c.client
	within, cancel := q.withTimeout(ctx)
	if err := c.begin(f.number, cancel); err != nil {
		cancel()
		q.req.Memory.Release()
		return true, err
	}
	m.Retain() // the response is written there, even if the client frees it meanwhile
	number, offset := f.number, q.room.offset
	run := func() {
		c.run(within, number, q.req, room, offset)
		m.Release()
		c.finish()
	}
	if f.flags&noOtherFrame == 0 || !c.lend(ctx) {
		c.calls.Go(run)
		return true, nil
	}
	run()
	return c.takeBack(), nil
}

// withTimeout returns the context for the call.
func (q *inference) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if q.timeout > 0 {
		return context.WithTimeout(ctx, q.timeout)
	}
	return context.WithCancel(ctx)
}

func checkNames(req *infer.Request) error {
	if !kserve.ValidVersion(req.Version) {
		return infer.Errorf(infer.Invalid, "version '%s' of model '%s' is not a number", req.Version, req.Model)
	}
	return kserve.CheckName(req.Model)
}

func (c *connection) begin(number uint32, cancel context.CancelFunc) error {
	c.mu.Lock()
	err := c.beginLocked(number, cancel)
	c.mu.Unlock()
	return err
}

func (c *connection) beginLocked(number uint32, cancel context.CancelFunc) error {
	switch {
	case c.running[number] != nil:
		return fmt.Errorf("call %d again while it runs, expected another number", number)
	case len(c.running) == maxCalls:
		return fmt.Errorf("more than %d calls at once", maxCalls)
	case c.unfinished == 2*maxCalls: // more than running: the client may have an answer before its call is finished
		return fmt.Errorf("more than %d calls at once, with those whose answers are not read", 2*maxCalls)
	}
	c.unfinished++
	c.running[number] = cancel
	return nil
}

func (c *connection) cancel(number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.running[number]; cancel != nil { // nil if the call has completed already
		cancel()
	}
}

// end removes a call. This happens before the response is sent, because the client may
// then reuse its number.
func (c *connection) end(number uint32) {
	c.mu.Lock()
	cancel := c.running[number]
	delete(c.running, number)
	c.mu.Unlock()
	cancel()
}

// finish counts a call no longer: its answer was sent.
func (c *connection) finish() {
	c.mu.Lock()
	c.unfinished--
	c.mu.Unlock()
}

// run runs a request, releases its memory, and sends the response. A panic fails only this
// request.
func (c *connection) run(ctx context.Context, number uint32, req *infer.Request, room []byte, offset uint64) {
	resp := kserve.GetResponse()
	defer kserve.PutResponse(resp)
	err := c.ask(ctx, req, resp)
	req.Memory.Release()
	c.end(number)
	if err != nil {
		if infer.CodeOf(err) == infer.Cancelled && c.server.ctx.Err() != nil {
			err = infer.Errorf(infer.Unavailable, "the server has stopped") // and another one may answer
		}
		c.fail(number, err)
		return
	}
	defer resp.Release()
	if err := c.answer(number, resp, room, offset); err != nil {
		c.fail(number, err)
	}
}

// errPanic is in the error chain of work that panicked.
var errPanic = errors.New("internal error")

// recovered reports a panic, and returns the error for the client.
func (c *connection) recovered(where string, cause any) error {
	panics.Report(c.server.opts.Log, where, cause)
	return infer.Errorf(infer.Internal, "%w", errPanic)
}

func (c *connection) ask(ctx context.Context, req *infer.Request, resp *infer.Response) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = c.recovered("local call", cause)
		}
	}()
	span := c.server.opts.Tracer.Begin("local", req.Model, "", "")
	req.Trace = span.Request()
	var none budget.Charge // clients provide the memory
	err = kserve.Infer(ctx, c.server.backend, req, resp, &none)
	kserve.EndTrace(span, err)
	return err
}

// answer writes outputs to the room that the client provided. If it is too small, they go
// into new memory, which is passed to the client.
func (c *connection) answer(number uint32, resp *infer.Response, room []byte, offset uint64) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = c.recovered("answer to a local call", cause)
		}
	}()
	panics.Point("local answer")
	f := frame{kind: kindAnswer, number: number}
	fd := -1
	if size := alignedSize(resp.Outputs); size > len(room) {
		b, passed, err := memfd.New(size)
		if err != nil {
			return infer.Errorf(infer.Internal, "the outputs: %w", err)
		}
		defer memfd.Unmap(b)
		fd, room, offset = passed, b, 0
		f.flags, f.a = withMemory, uint64(size)
	}
	message := appendOutputs(f.append(make([]byte, 0, 256)), resp.Outputs, room, offset)
	if len(message) > maxFrame {
		memfd.CloseAll([]int{fd})
		return infer.Errorf(infer.Unsupported, "the outputs take %d bytes to describe, and at most %d can be sent; request fewer outputs, or use HTTP", len(message), maxFrame)
	}
	if fd < 0 {
		c.write(message)
		return nil
	}
	if err := memfd.Pass(c.socket, message, fd); err != nil {
		return infer.Errorf(infer.Internal, "the memory of the outputs could not be passed: %w", err)
	}
	return nil
}

func failure(number uint32, err error) *frame {
	err = kserve.TritonError(err, nil)
	return &frame{
		kind: kindFailed, number: number, a: uint64(infer.CodeOf(err)), b: uint64(kserve.RetryDelay(err).Microseconds()),
		rest: frameText(err.Error()),
	}
}

func (c *connection) fail(number uint32, err error) { c.send(failure(number, err)) }

func (c *connection) send(f *frame) { c.write(f.append(nil)) }

// write sends a message. It ignores errors: the client has disconnected, which the reader
// notices.
func (c *connection) write(message []byte) { _, _ = c.socket.Write(message) }
