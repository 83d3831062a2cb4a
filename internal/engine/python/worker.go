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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
)

// A worker is one Python process with a loaded model.
//
// It owns the process, its sockets, and the memory that both sides map: in for inputs,
// out for outputs. The instance that has the worker uses conn, in, out and the fields
// below them from one goroutine at a time, and they need no lock. That goroutine reads
// conn itself in await, so that an answer wakes the goroutine that waits for it and no
// other first.
//
// The goroutine accompany, the first of those in over, waits for the process and runs
// the readers of its output and of side, on which the model logs, sends responses and
// opens lines at any time. They share with the instance what is atomic, and running,
// which has its own lock for the batch that runs; no other lock is taken while that one
// is held. ended is closed when the process is gone and died when all that it wrote was
// read as well, so that the reason of a death, which is set once, is complete when
// requests fail with it.
//
// kill and died may be used by any goroutine. One process for several models was
// rejected, since a crash of one would take the others with it (ADR 9), and so was a
// supervisor that restarts workers beside the scheduler: the goroutine that runs the
// batches knows already when a worker is gone and whether it is needed (ADR 7).
type worker struct {
	cmd    *exec.Cmd
	life   *os.File      // its lifeline; see [starter]
	conn   *net.UnixConn // questions and answers; closed by end, who asks no more
	side   *net.UnixConn // what the model says and asks of itself, at any time
	log    *slog.Logger
	memory int64 // bytes that it may have; 0 means any number

	model    *model
	living   context.Context //nolint:containedctx // it is the process's: ended when that has
	expire   context.CancelFunc
	run      atomic.Pointer[running] // of the instance that has the worker; nil while none has
	instance string                  // its name
	errands  atomic.Int64            // that are under way
	senders  sync.WaitGroup          // that are not closed
	pulse    atomic.Pointer[pulse]   // nil if the model does not say whether it is ready

	in, out []byte // the memory of both directions
	used    int    // of out, by the last answer
	kept    bool   // in belongs to the model's arrays, and the next batch has another
	flags   uint16 // of LOADED: what the model is
	number  uint32 // of the last question
	message []byte // room for a frame of any kind

	ended chan struct{} // closed when the process has ended
	died  chan struct{} // closed when all of it was read, too
	cause atomic.Pointer[string]
	over  sync.WaitGroup // its last goroutine
}

const (
	// Less memory is not worth asking again for.
	minMemory = 256 << 10
	// One large batch shall not hold more than this for good.
	keptMemory = 16 << 20
	// An answer that needs more memory than this is not taken.
	maxMemory = 1 << 30

	// How often a worker is looked at.
	glance = 250 * time.Millisecond
	// How long a worker may take to end by itself.
	goodbye = 5 * time.Second
)

// start starts a process. The caller ends it.
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
	passed := closers{file} // the worker has its own
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
	// Descriptors 3 to 5. The name is for those who look at the list of processes.
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
	life, err := m.engine.open().start(cmd)
	if err != nil {
		return nil, infer.Errorf(infer.Invalid, "the interpreter cannot be started: %w", err)
	}
	w := &worker{
		cmd: cmd, life: life, conn: conn, side: side, log: m.log, memory: m.set.memory,
		message: make([]byte, frameSize+maxText+1), ended: make(chan struct{}), died: make(chan struct{}),
		model: m,
	}
	w.living, w.expire = context.WithCancel(context.Background())
	w.over.Go(func() { w.accompany(pipes) })
	return w, nil
}

// closers are closed together.
type closers []interface{ Close() error }

func (c closers) close() {
	for _, one := range c {
		_ = one.Close() // nothing was written to it
	}
}

// environment is the server's own, with how many threads a worker may compute with,
// where that does not say.
func (m *model) environment() []string {
	threads := strconv.Itoa(max(1, m.engine.opts.Cores/max(1, m.cfg.Instances)))
	env := append(os.Environ(), "PYTHONUNBUFFERED=1") // what it prints is in the log at once
	for _, name := range []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} {
		if _, ok := os.LookupEnv(name); !ok {
			env = append(env, name+"="+threads)
		}
	}
	return env
}

// accompany reads all that the process says until it has ended.
func (w *worker) accompany(pipes [2]*os.File) {
	var readers, watch sync.WaitGroup
	lines := [2]pen{{log: w.log.With("stream", "stdout")}, {log: w.log.With("stream", "stderr")}}
	for i := range pipes {
		readers.Go(func() { lines[i].copyLines(pipes[i], slog.LevelInfo) })
	}
	readers.Go(w.listen)
	watch.Go(w.watch)
	err := w.cmd.Wait()
	close(w.ended)
	w.expire()
	watch.Wait()
	killGroup(w.cmd.Process.Pid) // what it started and left behind
	// Those who are left all the same may hold them open.
	_ = w.conn.CloseRead() // when all is read
	last := time.Now().Add(tailOfWriters)
	_ = w.side.SetReadDeadline(last)
	for _, p := range pipes {
		_ = p.SetReadDeadline(last)
	}
	readers.Wait()
	closers{w.life, w.side}.close()
	if p := w.pulse.Load(); p != nil {
		_ = p.line.Close()
	}
	w.because(ending(w.cmd.ProcessState, err))
	close(w.died)
}

// ending says how a process ended.
func ending(state *os.ProcessState, err error) string {
	if state == nil {
		return fmt.Sprintf("its process is lost: %v", err)
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return fmt.Sprintf("its process was ended by signal %d (%s)", status.Signal(), status.Signal())
	}
	return fmt.Sprintf("its process ended with exit code %d", state.ExitCode())
}

// because notes why the worker dies. The first reason counts.
func (w *worker) because(reason string) { w.cause.CompareAndSwap(nil, &reason) }

// kill ends the process for a reason. Soon after, died is closed.
func (w *worker) kill(reason string) {
	w.because(reason)
	select {
	case <-w.ended: // and its number may be another's
	default:
		killGroup(w.cmd.Process.Pid)
	}
}

// death is the error of requests whose worker is gone.
func (w *worker) death(when string) error {
	return infer.Errorf(infer.Unavailable, "Failed to process the request(s) for model '%s', message: %w: its worker %s: %s",
		w.instance, engine.ErrDied, when, w.reason())
}

// reason returns why the worker died.
func (w *worker) reason() string { return *w.cause.Load() }

// watch looks at the process now and then until it has ended.
func (w *worker) watch() {
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	wasStopped := false
	for {
		select {
		case <-w.ended:
			return
		case <-ticker.C:
		}
		stopped, resident := look(w.cmd.Process.Pid)
		switch {
		case stopped && wasStopped:
			w.kill("its process was stopped by a signal, and did not go on")
		case w.memory > 0 && resident > w.memory:
			w.kill(fmt.Sprintf("it had %d MiB of memory, and memory_limit_mib allows %d", resident>>20, w.memory>>20))
		}
		wasStopped = stopped
	}
}

// Resident returns how many bytes of memory a process has; 0 means that nobody knows.
func Resident(pid int) int64 {
	_, resident := look(pid)
	return resident
}

// listen receives what the model says and asks, until the socket is closed.
func (w *worker) listen() {
	logs := pen{log: w.log}
	message := make([]byte, frameSize+maxText+1)
	for {
		n, fds, err := read(w.side, message)
		if err != nil || n == 0 {
			w.severed()
			return
		}
		f, err := readFrame(message[:n])
		if err == nil && f.kind == kindLog {
			logs.write(levels[min(int(f.flags), len(levels)-1)], f.text)
		}
		if err == nil {
			err = w.heed(f, fds)
		} else {
			memfd.CloseAll(fds)
		}
		if err != nil {
			w.breach(err)
			return
		}
	}
}

// heed does what the model asks for. It takes the descriptors over.
func (w *worker) heed(f frame, fds []int) error {
	switch f.kind {
	case kindCall:
		return w.errandOf(f, fds)
	case kindDesk:
		return w.open(f, fds)
	}
	memfd.CloseAll(fds) // nobody wants them
	if f.kind != kindLog {
		return fmt.Errorf("a frame of kind %d that nobody asked for", f.kind)
	}
	return nil
}

// breach ends a worker that sent what it should not.
func (w *worker) breach(err error) { w.kill("it broke the protocol: it sent " + err.Error()) }

// open takes a line that the model will send responses over, or ask about its metrics
// and about other models, or be asked over.
func (w *worker) open(f frame, fds []int) error {
	if len(fds) != 1 {
		memfd.CloseAll(fds)
		return fmt.Errorf("a line with %d descriptors, expected 1", len(fds))
	}
	line, err := lineOf(fds[0])
	if err != nil {
		return err
	}
	run := w.run.Load()
	switch { // whoever has it closes it
	case f.kind == kindDesk:
		w.over.Go(func() { w.desk(line) })
	case f.kind == kindPulse && w.pulse.CompareAndSwap(nil, &pulse{line: line}):
	case f.kind == kindOpen && run != nil:
		w.senders.Add(1)
		run.open(f, &sender{line: line, w: w, cfg: w.model.cfg, ran: make(chan struct{})})
	default:
		_ = line.Close()
		return errors.New("a line that nobody needs")
	}
	return nil
}

// severed is called when a socket is closed, which it is when the process ends. One
// that goes on is of no use.
func (w *worker) severed() {
	timer := time.NewTimer(glance)
	defer timer.Stop()
	select {
	case <-w.ended:
	case <-timer.C:
		w.kill("it closed its connection to the server")
	}
}

// levels of the log by Triton's numbers.
var levels = [...]slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}

// send sends a frame that asks something, with the next number. It fails only if the
// worker is gone or closed its connection, which is for await to find.
func (w *worker) send(f frame) {
	w.number++
	f.number = w.number
	_, _ = w.conn.Write(f.append(w.message[:0]))
}

// errDied is what await returns. Why is for reason to say.
var errDied = errors.New("the worker died")

// await returns the answer to the last question. If limit is not 0, it ends a worker
// that takes longer. When ctx ends, it has left called, and goes on. It reads the
// connection itself, so that nobody hears the worker before who waits for it.
func (w *worker) await(ctx context.Context, expected kind, limit time.Duration, left func()) (frame, error) {
	if limit > 0 {
		late := time.AfterFunc(limit, func() {
			w.kill(fmt.Sprintf("it ran for longer than execute_timeout_seconds allows, which is %v", limit))
		})
		defer late.Stop()
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, left)
		defer stop()
	}
	for {
		n, fds, err := read(w.conn, w.message)
		if err != nil || n == 0 {
			w.severed()
			<-w.died
			return frame{}, errDied
		}
		f, err := readFrame(w.message[:n])
		opens := err == nil && (f.kind == kindOpen || f.kind == kindPulse)
		if opens {
			err = w.open(f, fds)
		} else {
			memfd.CloseAll(fds) // nobody wants them
		}
		switch {
		case err != nil:
			w.breach(err) // and its end follows
		case opens:
		case f.kind == kindNeed:
			if err := w.give(f.a); err != nil {
				w.kill(err.Error())
			}
		case f.kind == kindFailed && f.number == 0, // before it could be asked
			(f.kind == kindFailed || f.kind == expected) && f.number == w.number:
			w.kept = f.flags&inputsKept != 0
			return f, nil
		default:
			w.breach(fmt.Errorf("frame %d of kind %d, expected %d of kind %d", f.number, f.kind, w.number, expected))
		}
	}
}

// give passes the worker memory for an answer of n bytes, or for as much as there may
// be.
func (w *worker) give(n uint64) error {
	return w.replace(&w.out, outputMemory, int(min(n, maxMemory)))
}

// replace passes memory to the worker in place of what it has.
func (w *worker) replace(memory *[]byte, which uint16, need int) error {
	size := minMemory
	for size < need {
		size *= 2
	}
	b, fd, err := memfd.New(size)
	if err != nil {
		return err
	}
	memfd.Unmap(*memory)
	*memory = b
	f := frame{kind: kindMemory, flags: which, a: uint64(size)}
	_ = memfd.Pass(w.conn, f.append(w.message[:0]), fd) // as for send
	return nil
}

// prepare sees to it that both memories are there, and that the inputs' has n bytes,
// which nobody uses any more.
func (w *worker) prepare(n int) error {
	if w.out == nil || len(w.out) > max(keptMemory, 4*w.used) {
		if err := w.replace(&w.out, outputMemory, w.used); err != nil {
			return err
		}
	}
	if w.kept || n > len(w.in) || len(w.in) > max(keptMemory, 4*n) {
		return w.replace(&w.in, inputMemory, n)
	}
	return nil
}

// ask sends a document, and returns the one that answers it; nil if there is none. If
// ctx ends, it ends the worker.
func (w *worker) ask(ctx context.Context, what kind, document []byte) ([]byte, error) {
	if err := w.prepare(len(document)); err != nil {
		return nil, err
	}
	copy(w.in, document)
	w.send(frame{kind: what, b: uint64(len(document))})
	expected := kindLoaded
	if what == kindInit {
		expected = kindReady
	}
	f, err := w.await(ctx, expected, 0, func() { w.kill("it was not waited for any more") })
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, infer.Errorf(infer.Invalid, "the worker died while it loaded the model: %s; the log has what it printed", w.reason())
	case f.kind == kindFailed:
		return nil, infer.Errorf(infer.Invalid, "%s", f.text)
	case f.kind == kindLoaded:
		w.flags = f.flags
	}
	return w.copyOut(f, nil)
}

// copyOut appends what a frame says of the outputs' memory to b, the caller's: what a
// worker can change while it is looked at cannot be checked.
func (w *worker) copyOut(f frame, b []byte) ([]byte, error) {
	size := uint64(len(w.out))
	if f.a > size || f.b > size-f.a {
		w.kill(fmt.Sprintf("it broke the protocol: it sent a table of %d bytes from %d on in a memory of %d", f.b, f.a, size))
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

// end lets the model finish, ends the process, and gives back what it held. Who still
// waits for responses is not left without them.
func (w *worker) end() {
	if !w.dead() {
		w.senders.Wait()
	}
	timer := time.NewTimer(goodbye)
	defer timer.Stop()
	w.send(frame{kind: kindFinish})
	select {
	case <-w.died:
	case <-timer.C:
		w.kill("it did not end when it should")
	}
	w.over.Wait()
	_ = w.conn.Close()
	memfd.Unmap(w.in)
	memfd.Unmap(w.out)
	w.in, w.out = nil, nil
}
