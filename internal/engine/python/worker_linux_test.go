package python

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// deadWorker returns a worker whose process has exited, with memory for outputs.
func deadWorker(size int) *worker {
	w := &worker{out: make([]byte, size), exited: make(chan struct{}), died: make(chan struct{})}
	close(w.exited)
	close(w.died)
	return w
}

func TestATableIsCopiedOnlyFromInsideTheMemory(t *testing.T) {
	for _, tt := range []struct {
		a, b uint64
		ok   bool
	}{
		{0, 100, true},
		{100, 0, true},
		{60, 40, true},
		{60, 41, false}, // begins inside and ends outside
		{101, 0, false},
		{0, 101, false},
		{1, math.MaxUint64, false},
		{math.MaxUint64, 1, false},
		{math.MaxUint64, math.MaxUint64, false},
	} {
		w := deadWorker(100)
		got, err := w.copyOut(frame{a: tt.a, b: tt.b}, nil)
		if tt.ok && (err != nil || uint64(len(got)) != tt.b || w.cause.Load() != nil) {
			t.Errorf("%d bytes at %d: %d copied, %v", tt.b, tt.a, len(got), err)
		}
		if !tt.ok && (!errors.Is(err, errDied) || len(got) > 0 || !strings.Contains(w.reason(), "violated the protocol")) {
			t.Errorf("%d bytes at %d: %d copied, %v", tt.b, tt.a, len(got), err)
		}
	}
}

// sharedMappings returns the number of mappings of shared memory in this process.
func sharedMappings(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("the kernel does not list mappings:", err)
	}
	return strings.Count(string(text), "/memfd:shoal ")
}

func TestMemoryThatIsReplacedIsUnmapped(t *testing.T) {
	conn, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer closers{conn, theirs}.close()
	w := deadWorker(0)
	w.out, w.conn, w.message = nil, conn, make([]byte, frameSize)
	before := sharedMappings(t)
	for n := range 8 {
		if err := w.prepare(minMemory << n); err != nil {
			t.Fatal(err)
		}
		if got, want := sharedMappings(t), before+2; got != want {
			t.Errorf("%d mappings after %d replacements, want %d: inputs and outputs", got, n, want)
		}
	}
	w.stop()
	if got := sharedMappings(t); got != before {
		t.Errorf("%d mappings after the worker was stopped, want %d", got, before)
	}
}

// A worker that has not received new memory would run its last batch again.
func TestABatchWhoseMemoryCannotBePassedFails(t *testing.T) {
	inst := newFixture(t, identityConfig+` parameters { key: "execute_timeout_seconds" value { string_value: "30" } }`, `
self.kept = requests[0].inputs()[0].as_numpy()
`+identity).open(t)
	run := func(value float32) error {
		batch := calls(value)
		err := inst.RunEach(t.Context(), batch)
		if err == nil && first(t, &batch[0]) != value {
			t.Errorf("answer %v to %v", first(t, &batch[0]), value)
		}
		release(batch)
		return err
	}
	if err := run(1); err != nil {
		t.Fatal(err)
	}
	_ = inst.worker.conn.SetWriteDeadline(time.Unix(1, 0))
	if err := run(2); !errors.Is(err, engine.ErrExhausted) || !strings.Contains(err.Error(), "could not be passed") {
		t.Errorf("error %v, want that the memory could not be passed", err)
	}
	_ = inst.worker.conn.SetWriteDeadline(time.Time{})
	if err := run(3); err != nil {
		t.Error(err)
	}
}

func TestACallEndsWithAResponseThatCannotBePassed(t *testing.T) {
	conn, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer closers{conn, theirs}.close()
	e := &outboundCall{conn: conn}
	_ = conn.SetWriteDeadline(time.Unix(1, 0))
	if err := e.send(&payload{}, nil, 0); err != nil {
		t.Error(err)
	}
	_ = conn.SetWriteDeadline(time.Time{})
	if err := e.send(&payload{}, nil, lastResponse); err != nil {
		t.Error(err)
	}
	var b [frameSize]byte
	if n, err := theirs.Read(b[:]); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the model received %d bytes (%v), want the end of the connection", n, err)
	}
}

func TestAWorkerIsStoppedWhenAllResponsesAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, theirs, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer closers{conn, theirs}.close()
		w := &worker{conn: conn, message: make([]byte, frameSize), exited: make(chan struct{}), died: make(chan struct{})}
		close(w.exited)
		w.senders.Add(1)
		stopped := make(chan struct{})
		go func() {
			w.stop()
			close(stopped)
		}()
		time.Sleep(10 * shutdownTimeout) // a client still receives responses
		if cause := w.cause.Load(); cause != nil {
			t.Errorf("the worker was killed: %s", *cause)
		}
		w.senders.Done()
		synctest.Wait()
		close(w.died) // it exits
		<-stopped
		if cause := w.cause.Load(); cause != nil {
			t.Errorf("the worker was killed: %s", *cause)
		}
	})
}

// passed returns one end of a new connection, as a worker passes it. The other end is closed.
func passed(t *testing.T) int {
	t.Helper()
	conn, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer closers{conn, theirs}.close()
	fd, err := unix.Dup(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestFramesThatNoRequestExpectsAreRefused(t *testing.T) {
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := descriptors()
	w := deadWorker(0)
	logs := lineLogger{log: slog.New(slog.DiscardHandler)}
	for name, tt := range map[string]struct {
		kind kind
		fds  int
		want string
	}{
		"a response beside a request":         {kindReady, 0, "an unexpected frame of kind 17"},
		"a response with descriptors":         {kindRan, 2, "an unexpected frame of kind 18"},
		"a connection without its descriptor": {kindOpenCalls, 0, "a connection with 0 descriptors, expected 1"},
		"two connections":                     {kindOpenCalls, 2, "a connection with 2 descriptors, expected 1"},
		"a log line with a descriptor":        {kindLog, 1, ""},
	} {
		var fds []int
		for range tt.fds {
			fds = append(fds, passed(t))
		}
		got := ""
		if err := w.handleSideFrame(frame{kind: tt.kind}, fds, &logs); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	for name, kind := range map[string]kind{"responses without a batch": kindOpenResponses, "another kind": kindReady} {
		if err := w.acceptConn(frame{kind: kind}, []int{passed(t)}); err == nil || err.Error() != "an unexpected connection" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i, want := range []string{"<nil>", "an unexpected connection"} { // there is one connection for probes
		if err := w.acceptConn(frame{kind: kindOpenProbe}, []int{passed(t)}); fmt.Sprint(err) != want {
			t.Errorf("probe %d: %v, want %s", i+1, err, want)
		}
	}
	_ = w.probe.Load().conn.Close()
	if now := descriptors(); now != before {
		t.Errorf("%d descriptors are left open", now-before)
	}
}

func TestWhatAWorkerStartedEndsWithIt(t *testing.T) {
	file := t.TempDir() + "/child"
	f := newFixture(t, identityConfig, fmt.Sprintf(`
class TritonPythonModel:
    def execute(self, requests):
        import subprocess
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(%q, "w") as file: file.write(str(child.pid))
        os._exit(3)`, file))
	inst := f.open(t)
	if err := inst.RunEach(t.Context(), calls(1)); !errors.Is(err, engine.ErrDied) {
		t.Errorf("the batch: %v", err)
	}
	<-inst.Died()
	text, err := os.ReadFile(file)
	child, wrong := strconv.Atoi(string(text))
	if err != nil || wrong != nil {
		t.Fatal(err, wrong)
	}
	// Its new parent may leave it as a zombie, which has no memory.
	soon(t, "what it started has ended", func() bool {
		_, resident := processStatus(child)
		return resident == 0
	})
}

func TestAChildProcessThatLeftTheGroupDoesNotDelayTheStop(t *testing.T) {
	file := t.TempDir() + "/child"
	f := newFixture(t, identityConfig, fmt.Sprintf(`
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.is_model_ready("other")
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.pause()
        while os.getpgid(child) != child: time.sleep(0.001)
        with open(%q, "w") as file: file.write(str(child))
    def execute(self, requests): pass`, file))
	inst := f.open(t)
	text, err := os.ReadFile(file)
	child, wrong := strconv.Atoi(string(text))
	if err != nil || wrong != nil {
		t.Fatal(err, wrong)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	var stopped atomic.Bool
	go func() {
		_ = inst.Close()
		stopped.Store(true)
	}()
	soon(t, "the worker is stopped", stopped.Load)
}

// TestAKillDoesNotReachAnotherProcess kills a worker whose process was reaped: its id may
// belong to another process by then, here to one that must live.
func TestAKillDoesNotReachAnotherProcess(t *testing.T) {
	kill := func(reaped bool) *exec.Cmd {
		other := exec.Command("sleep", "60")
		other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		w := &worker{cmd: other, reaped: reaped, exited: make(chan struct{})}
		w.kill("test")
		return other
	}
	endedBy := func(c *exec.Cmd) syscall.Signal {
		_ = c.Wait() // it was killed
		return c.ProcessState.Sys().(syscall.WaitStatus).Signal()
	}
	other := kill(true)
	if err := other.Process.Signal(syscall.SIGTERM); err != nil { // SIGKILL would have ended it before
		t.Fatal(err)
	}
	if by := endedBy(other); by != syscall.SIGTERM {
		t.Errorf("the other process was ended by signal %v", by)
	}
	own := kill(false)
	awaitExit(own.Process.Pid) // and leaves it a zombie
	if err := unix.Kill(own.Process.Pid, 0); err != nil {
		t.Errorf("the process id is free before the process was reaped: %v", err)
	}
	if by := endedBy(own); by != syscall.SIGKILL {
		t.Errorf("the worker's process was ended by signal %v", by)
	}
}

func TestWorkersAreLimited(t *testing.T) {
	m := &model{engine: New(Options{})}
	m.set.interpreter = "true"
	m.cfg = &modelconfig.Config{}
	m.engine.workers.Store(maxWorkers)
	if _, err := m.start("m"); infer.CodeOf(err) != infer.Unavailable || !strings.Contains(fmt.Sprint(err), "1024 Python workers run") {
		t.Errorf("%v, want that no more workers may run", err)
	}
	if got := m.engine.workers.Load(); got != maxWorkers {
		t.Errorf("%d workers are counted after a refusal, want %d", got, maxWorkers)
	}
}
