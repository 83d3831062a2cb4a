package python

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/internal/panics"
)

// A worker is one Python process with a loaded model.
//
// It owns the process, its sockets, and the memory that both sides map: in for inputs, out
// for outputs. The instance that has the worker uses conn, in, out and the fields below
// them from one goroutine at a time, so they need no lock. That goroutine reads conn
// itself, in await, so that a response wakes the goroutine that waits for it without a
// detour through another one.
//
// The goroutine supervise, the first of goroutines, waits for the process and runs the
// readers of its output and of side, on which the model logs, makes calls and opens
// connections at any time. These readers share with the instance only atomics and batch,
// which has a lock of its own; no other lock is taken while that one is held. exited is
// closed when the process has exited, and died when everything that it wrote has been read
// as well, so that the cause of death, which is set once, is complete when requests fail
// with it.
//
// kill and died may be used by any goroutine. One process for several models was rejected,
// since a crash of one would take down the others (ADR 9). So was a supervisor that
// restarts workers independently of the scheduler: the goroutine that runs the batches
// already knows when a worker has died and whether it is needed (ADR 7).
type worker struct {
	cmd         *exec.Cmd
	lifeline    *os.File      // see [starter]
	conn        *net.UnixConn // requests of the server and their responses; closed by stop
	side        *net.UnixConn // what the model sends at any time: logs, calls, connections
	log         *slog.Logger
	memoryLimit int64 // bytes; 0 means unlimited

	model    *model
	ctx      context.Context //nolint:containedctx // of the process: cancelled when it has exited
	cancel   context.CancelFunc
	batch    atomic.Pointer[activeBatch]    // of the instance that has the worker; nil before there is one
	instance string                         // name of the instance
	outbound atomic.Int64                   // outbound calls in flight
	senders  sync.WaitGroup                 // open senders
	probe    atomic.Pointer[readinessProbe] // nil if the model has no is_ready

	in, out    []byte // shared memory for inputs and for outputs
	used       int    // bytes of out that the last response used
	inputsHeld bool   // the model still has arrays in in, so the next batch needs new memory
	flags      uint16 // of LOADED
	number     uint32 // of the last request
	message    []byte // buffer that holds a frame of any kind

	reaping sync.Mutex // guards reaped, and is held while the process group is killed
	reaped  bool       // another process may have its id

	exited     chan struct{} // closed when the process has exited
	died       chan struct{} // closed when all its output has been read as well
	cause      atomic.Pointer[string]
	goroutines sync.WaitGroup // all goroutines of the worker
}

const (
	// minMemory is the smallest shared memory, so that small batches do not grow it.
	minMemory = 256 << 10
	// keptMemory limits what is kept after one large batch.
	keptMemory = 16 << 20
	// maxWorkers is the number of worker processes of all models.
	maxWorkers = 1024
	// maxMemory is the largest response that a worker may send.
	maxMemory = 1 << 30

	// pollInterval is how often the state of a worker process is checked.
	pollInterval = 250 * time.Millisecond
	// shutdownTimeout is how long a worker may take to exit by itself.
	shutdownTimeout = 5 * time.Second
)

// start starts a worker process. The caller stops it.
func (m *model) start(name string) (_ *worker, err error) {
	var opened closers
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	archive, err := code()
	if err != nil {
		return nil, err
	}
	file, err := codeFile(archive)
	if err != nil {
		return nil, err
	}
	passed := closers{file} // the worker inherits copies
	defer func() { passed.close() }()
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	opened, passed = append(opened, conn), append(passed, theirs)
	side, theirSide, err := socketPair()
	if err != nil {
		return nil, err
	}
	opened, passed = append(opened, side), append(passed, theirSide)
	var pipes [2]*os.File
	// The worker inherits these as descriptors 3 to 5. The name is not used: it only shows up
	// in process listings.
	cmd := exec.Command(m.set.interpreter, "/proc/self/fd/4", name)
	cmd.ExtraFiles = []*os.File{theirs, file, theirSide}
	cmd.Env = m.environment()
	for i, to := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		opened, passed = append(opened, r), append(passed, w)
		pipes[i], *to = r, w
	}
	if m.engine.workers.Add(1) > maxWorkers {
		m.engine.workers.Add(-1)
		return nil, infer.Errorf(infer.Unavailable, "%d Python workers run, and no more may; unload a model, or configure fewer instances", maxWorkers)
	}
	life, err := m.engine.starter().start(cmd)
	if err != nil {
		m.engine.workers.Add(-1)
		return nil, infer.Errorf(infer.Invalid, "the interpreter cannot be started: %w", err)
	}
	w := &worker{
		cmd: cmd, lifeline: life, conn: conn, side: side, log: m.log, memoryLimit: m.set.memory,
		message: make([]byte, frameSize+maxText+1), exited: make(chan struct{}), died: make(chan struct{}),
		model: m,
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.goroutines.Go(func() { w.supervise(pipes) })
	return w, nil
}

// closers are closed together.
type closers []interface{ Close() error }

func (c closers) close() {
	for _, one := range c {
		_ = one.Close() // nothing was written to it
	}
}

// environment returns the server's environment plus the variables that limit a worker's
// threads, unless they are set already.
func (m *model) environment() []string {
	threads := strconv.Itoa(max(1, m.engine.opts.Cores/max(1, m.cfg.Instances)))
	env := append(os.Environ(), "PYTHONUNBUFFERED=1") // so that prints reach the log immediately
	for _, name := range []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} {
		if _, ok := os.LookupEnv(name); !ok {
			env = append(env, name+"="+threads)
		}
	}
	return env
}

// supervise reads everything that the process sends and prints, until it has exited.
func (w *worker) supervise(pipes [2]*os.File) {
	var readers, watch sync.WaitGroup
	lines := [2]lineLogger{{log: w.log.With("stream", "stdout")}, {log: w.log.With("stream", "stderr")}}
	for i := range pipes {
		readers.Go(func() { lines[i].copyLines(pipes[i], slog.LevelInfo) })
	}
	readers.Go(w.listen)
	watch.Go(w.watch)
	awaitExit(w.cmd.Process.Pid)
	w.reaping.Lock()
	killGroup(w.cmd.Process.Pid) // child processes that it left behind
	w.reaped = true
	w.reaping.Unlock()
	err := w.cmd.Wait()
	close(w.exited)
	w.cancel()
	watch.Wait()
	// A child process that left the process group may still hold the pipes open.
	_ = w.conn.CloseRead() // what has arrived can still be read
	last := time.Now().Add(outputGrace)
	_ = w.side.SetReadDeadline(last)
	for _, p := range pipes {
		_ = p.SetReadDeadline(last)
	}
	readers.Wait()
	closers{w.lifeline, w.side}.close()
	w.model.engine.workers.Add(-1)
	if p := w.probe.Load(); p != nil {
		_ = p.conn.Close()
	}
	w.setCause(exitReason(w.cmd.ProcessState, err))
	close(w.died)
}

// exitReason describes how a process exited.
func exitReason(state *os.ProcessState, err error) string {
	if state == nil {
		return fmt.Sprintf("its process is lost: %v", err)
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return fmt.Sprintf("its process was ended by signal %d (%s)", status.Signal(), status.Signal())
	}
	return fmt.Sprintf("its process ended with exit code %d", state.ExitCode())
}

// setCause records why the worker dies. Only the first cause is kept.
func (w *worker) setCause(reason string) { w.cause.CompareAndSwap(nil, &reason) }

// kill kills the process group and records the reason. died is closed soon after.
func (w *worker) kill(reason string) {
	w.setCause(reason)
	select {
	case <-w.exited:
	default:
		w.reaping.Lock()
		defer w.reaping.Unlock()
		if !w.reaped {
			killGroup(w.cmd.Process.Pid)
		}
	}
}

// deathError returns the error of requests whose worker has died.
func (w *worker) deathError(when string) error {
	return infer.Errorf(infer.Unavailable, "Failed to process the request(s) for model '%s', message: %w: its worker %s: %s",
		w.instance, engine.ErrDied, when, w.reason())
}

// reason returns why the worker died. It must not be called before died is closed.
func (w *worker) reason() string { return *w.cause.Load() }

// watch polls the state of the process until it has exited. It kills a process that is
// stopped by a signal or exceeds its memory limit.
func (w *worker) watch() {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	wasStopped := false
	for {
		select {
		case <-w.exited:
			return
		case <-ticker.C:
		}
		stopped, resident := processStatus(w.cmd.Process.Pid)
		switch {
		case stopped && wasStopped:
			w.kill("its process was stopped by a signal and did not continue")
		case w.memoryLimit > 0 && resident > w.memoryLimit:
			w.kill(fmt.Sprintf("it used %d MiB of memory, and memory_limit_mib is %d", resident>>20, w.memoryLimit>>20))
		}
		wasStopped = stopped
	}
}

// Resident returns the resident memory of a process in bytes, or 0 if it is unknown.
func Resident(pid int) int64 {
	_, resident := processStatus(pid)
	return resident
}

// listen handles what the model sends over side, until the socket is closed.
func (w *worker) listen() {
	logs := lineLogger{log: w.log}
	message := make([]byte, frameSize+maxText+1)
	for {
		n, fds, err := read(w.side, message)
		if err != nil || n == 0 {
			w.awaitExit()
			return
		}
		f, err := readFrame(message[:n])
		if err == nil {
			err = w.handleSafely(f, fds, &logs)
		} else {
			memfd.CloseAll(fds)
		}
		if err != nil {
			w.killForProtocolError(err)
			return
		}
	}
}

// handleSafely is handleSideFrame, except that a panic is an error.
func (w *worker) handleSafely(f frame, fds []int, logs *lineLogger) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			panics.Report(w.log, "reader of a Python worker", cause)
			err = errors.New("what the server cannot handle")
		}
	}()
	panics.Point("python read")
	return w.handleSideFrame(f, fds, logs)
}

// panicked kills the worker after a panic of the server in its service; cause is what recover
// returned.
func (w *worker) panicked(where string, cause any) {
	if cause != nil {
		panics.Report(w.log, where, cause)
		w.kill("the server panicked in a call of the model")
	}
}

// handleSideFrame handles one frame of side. It takes ownership of fds.
func (w *worker) handleSideFrame(f frame, fds []int, logs *lineLogger) error {
	switch f.kind {
	case kindCall:
		return w.startOutboundCall(f, fds)
	case kindOpenCalls:
		return w.acceptConn(f, fds)
	}
	memfd.CloseAll(fds) // not expected with this frame
	switch f.kind {
	case kindLog:
		logs.write(levels[min(int(f.flags), len(levels)-1)], f.text)
	case kindTraceback:
		logs.write(slog.LevelError, "the model raised an exception", "traceback", strings.TrimSpace(f.text))
	default:
		return fmt.Errorf("an unexpected frame of kind %d", f.kind)
	}
	return nil
}

// killForProtocolError kills a worker that violated the protocol.
func (w *worker) killForProtocolError(err error) {
	w.kill("it violated the protocol: it sent " + err.Error())
}

// acceptConn takes over a connection that the worker opened: for the responses to a
// request, for the model's own calls, or for readiness probes. It owns fds.
func (w *worker) acceptConn(f frame, fds []int) error {
	if len(fds) != 1 {
		memfd.CloseAll(fds)
		return fmt.Errorf("a connection with %d descriptors, expected 1", len(fds))
	}
	conn, err := connFromFD(fds[0])
	if err != nil {
		return err
	}
	batch := w.batch.Load()
	switch { // each case passes on ownership of conn
	case f.kind == kindOpenCalls:
		w.goroutines.Go(func() {
			defer func() { w.panicked("calls of a Python worker", recover()) }()
			w.serveWorkerCalls(conn)
		})
	case f.kind == kindOpenProbe && w.probe.CompareAndSwap(nil, &readinessProbe{conn: conn}):
	case f.kind == kindOpenResponses && batch != nil:
		w.senders.Add(1)
		batch.open(f, &sender{conn: conn, w: w, cfg: w.model.wire, batchEnded: make(chan struct{})})
	default:
		_ = conn.Close()
		return errors.New("an unexpected connection")
	}
	return nil
}

// awaitExit is called when a socket of the worker is closed. Normally the process is
// exiting; if it is still running after pollInterval, it is killed.
func (w *worker) awaitExit() {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-w.exited:
	case <-timer.C:
		w.kill("it closed its connection to the server")
	}
}

// levels are log levels by Triton's numbers.
var levels = [...]slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}

// send sends a request frame with the next number. It reports no error: if the worker has
// died or closed its connection, await finds that out.
func (w *worker) send(f frame) {
	w.number++
	f.number = w.number
	_, _ = w.conn.Write(f.append(w.message[:0]))
}

// errDied is returned by await. reason returns the cause.
var errDied = errors.New("the worker died")

// await returns the response to the last request. If limit is not 0, it kills a worker
// that takes longer. When ctx ends, it calls onCancel and continues to wait. It reads the
// connection itself, so that the response wakes this goroutine directly.
func (w *worker) await(ctx context.Context, expected kind, limit time.Duration, onCancel func()) (frame, error) {
	if limit > 0 {
		late := time.AfterFunc(limit, func() {
			w.kill(fmt.Sprintf("it ran a batch for longer than execute_timeout_seconds, which is %v", limit))
		})
		defer late.Stop()
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, onCancel)
		defer stop()
	}
	grown := false // the worker has asked for output memory
	for {
		n, fds, err := read(w.conn, w.message)
		if err != nil || n == 0 {
			w.awaitExit()
			<-w.died
			return frame{}, errDied
		}
		f, err := readFrame(w.message[:n])
		opens := err == nil && (f.kind == kindOpenResponses || f.kind == kindOpenProbe)
		if opens {
			err = w.acceptConn(f, fds)
		} else {
			memfd.CloseAll(fds) // not expected with this frame
		}
		switch {
		case err != nil:
			w.killForProtocolError(err) // the loop then reads the end of the connection
		case opens:
		case f.kind == kindNeedMemory && grown:
			w.killForProtocolError(errors.New("a second request for output memory in one response")) // each costs as much as it is large
		case f.kind == kindNeedMemory:
			grown = true
			if err := w.growOutput(f.a); err != nil {
				w.kill(err.Error())
			}
		case (f.kind == kindFailed || f.kind == expected) && f.number == w.number:
			w.inputsHeld = f.flags&inputsKept != 0
			return f, nil
		default:
			w.killForProtocolError(fmt.Errorf("frame %d of kind %d, expected %d of kind %d", f.number, f.kind, w.number, expected))
		}
	}
}

// growOutput passes the worker output memory for a response of n bytes, up to maxMemory.
func (w *worker) growOutput(n uint64) error {
	return w.replaceMemory(&w.out, outputMemory, int(min(n, maxMemory)))
}

// replaceMemory passes new shared memory to the worker, which replaces *memory. If that fails,
// both sides keep what they have: the kernel passes no descriptor while a user has more in
// flight than it may open.
func (w *worker) replaceMemory(memory *[]byte, which uint16, need int) error {
	size := minMemory
	for size < need {
		size *= 2
	}
	b, fd, err := memfd.New(size)
	if err != nil {
		return err
	}
	f := frame{kind: kindMemory, flags: which, a: uint64(size)}
	err = memfd.Pass(w.conn, f.append(w.message[:0]), fd)
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) { // these are ignored for the same reason as in send
		memfd.Unmap(b)
		return fmt.Errorf("shared memory could not be passed to the worker: %w", err)
	}
	memfd.Unmap(*memory)
	*memory = b
	return nil
}

// prepare ensures that both shared memories exist, that the input memory has n bytes or
// more, and that the model has no more arrays in it.
func (w *worker) prepare(n int) error {
	if w.out == nil || len(w.out) > max(keptMemory, 4*w.used) {
		if err := w.replaceMemory(&w.out, outputMemory, w.used); err != nil {
			return err
		}
	}
	if w.inputsHeld || n > len(w.in) || len(w.in) > max(keptMemory, 4*n) {
		return w.replaceMemory(&w.in, inputMemory, n)
	}
	return nil
}

// request sends a document and returns the document in the response, nil if it has none.
// If ctx ends first, it kills the worker.
func (w *worker) request(ctx context.Context, what kind, document []byte) ([]byte, error) {
	if err := w.prepare(len(document)); err != nil {
		return nil, err
	}
	copy(w.in, document)
	w.send(frame{kind: what, b: uint64(len(document))})
	expected := kindLoaded
	if what == kindInit {
		expected = kindReady
	}
	f, err := w.await(ctx, expected, 0, func() { w.kill("the load was cancelled") })
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, infer.Errorf(infer.Invalid, "the worker died while it loaded the model: %s; the log has what it printed", w.reason())
	case f.kind == kindFailed:
		return nil, infer.Errorf(infer.Invalid, "%s", f.text)
	case f.kind == kindLoaded:
		w.flags = f.flags
	}
	return w.copyOut(f, nil)
}

// copyOut appends the part of the output memory that f refers to to b. Only the copy may
// be validated: the worker can change its memory at any time.
func (w *worker) copyOut(f frame, b []byte) ([]byte, error) {
	size := uint64(len(w.out))
	if f.a > size || f.b > size-f.a {
		w.kill(fmt.Sprintf("it violated the protocol: it sent a table of %d bytes at offset %d in a memory of %d", f.b, f.a, size))
		<-w.died
		return b, errDied
	}
	w.used = int(f.a + f.b)
	return append(b, w.out[f.a:f.a+f.b]...), nil
}

// dead reports whether the worker has died.
func (w *worker) dead() bool {
	select {
	case <-w.died:
		return true
	default:
		return false
	}
}

// stop waits until all responses of decoupled requests are sent, lets the model finalize,
// waits for the process to exit, and frees its memory.
func (w *worker) stop() {
	if !w.dead() {
		w.senders.Wait()
	}
	timer := time.NewTimer(shutdownTimeout)
	defer timer.Stop()
	w.send(frame{kind: kindFinish})
	select {
	case <-w.died:
	case <-timer.C:
		w.kill("it did not exit in time after it was asked to")
	}
	w.goroutines.Wait()
	_ = w.conn.Close()
	memfd.Unmap(w.in)
	memfd.Unmap(w.out)
	w.in, w.out = nil, nil
}
