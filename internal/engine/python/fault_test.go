package python

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
)

// trouble is a model that fails in the way that the first number of a request selects.
const trouble = `
class TritonPythonModel:
    def execute(self, requests):
        what = int(requests[0].inputs()[0].as_numpy()[0, 0])
        w = [f for f in iter_frames() if "self" in f.f_locals and type(f.f_locals["self"]).__name__ == "Worker"][0].f_locals["self"]
        import shoal_wire as wire
        if what == 1: os.kill(os.getpid(), signal.SIGKILL)
        if what == 2: os.kill(os.getpid(), signal.SIGSTOP)
        if what == 3:
            while True: pass
        if what == 4: os._exit(3)
        if what == 5: w.connection.send(b"torn")
        if what == 6: w.send(wire.RAN, number=10_000)
        if what == 7: w.send(wire.RAN, number=w_number(w), a=1 << 60, b=16)
        if what == 9:
            table(w, wire.COUNT.pack(1, 0) + wire.RESPONSE.pack(0, 0, 1, 0) + wire.OUTPUTS[1].pack(0, 11, 1, 0, 1 << 40, 4))
        if what == 14: self.garbage = bytearray(400 << 20); time.sleep(30)
        if what == 15:
            for _ in range(3): w.send(wire.READY, number=w_number(w))
        if what == 16: w.connection.shutdown(1)
        if what == 17:
            for _ in range(200): w.send(wire.NEED_MEMORY, a=1 << 20)
        if what >= 5: time.sleep(30)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]

def iter_frames():
    f = sys._getframe()
    while f:
        yield f
        f = f.f_back

def w_number(w):
    return [f for f in iter_frames() if f.f_code.co_name == "run"][0].f_locals["number"]

def table(w, b):
    w.memory[1].map[:len(b)] = b
    w.send(18, number=w_number(w), a=0, b=len(b))
`

func TestAWorkerInTroubleFailsItsBatchAndComesBack(t *testing.T) {
	for _, tt := range []struct {
		what    float32
		reasons string
	}{
		{1, "its process was ended by signal 9 (killed)"},
		{2, "its process was stopped by a signal and did not continue"},
		{3, "it ran a batch for longer than execute_timeout_seconds, which is 3s"},
		{4, "its process ended with exit code 3"},
		{5, "a frame of 4 bytes, expected at least 32"},
		{6, "it sent frame 10000 of kind 18"},
		{7, "a table of 16 bytes at offset 1152921504606846976"},
		{9, "output OUTPUT of 1099511627776 bytes"},
		{14, "MiB of memory, and memory_limit_mib is 300"},
		{15, "it violated the protocol"},
		{16, "it closed its connection to the server"},
		{17, "it sent a second request for output memory in one response"},
	} {
		t.Run(tt.reasons, func(t *testing.T) {
			t.Parallel()
			timeout := 60 // on a busy machine other troubles take seconds
			if tt.what == 3 {
				timeout = 3
			}
			f := newFixture(t, identityConfig+fmt.Sprintf(`
				parameters { key: "execute_timeout_seconds" value { string_value: "%d" } }
				parameters { key: "memory_limit_mib" value { string_value: "300" } }`, timeout), trouble)
			inst := f.open(t)
			good := func() {
				t.Helper()
				batch := calls(0, 0)
				if err := inst.RunEach(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
				release(batch)
			}
			good()
			pid := inst.worker.cmd.Process.Pid
			err := inst.RunEach(t.Context(), calls(tt.what))
			if !errors.Is(err, engine.ErrDied) || infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), tt.reasons) {
				t.Errorf("error %v, want one that says %q", err, tt.reasons)
			}
			<-inst.Died()
			if err := inst.RunEach(t.Context(), calls(0)); !errors.Is(err, engine.ErrDied) {
				t.Errorf("a batch of a dead worker: %v", err)
			}
			if err := inst.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			good()
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d is still there: %v", pid, err)
			}
		})
	}
}

func TestAWrongLengthIsAnErrorOfItsRequest(t *testing.T) {
	f := newFixture(t, identityConfig, strings.ReplaceAll(trouble, "what = int", `
        if requests[0].inputs()[0].as_numpy()[0, 0] == 16:
            import shoal_wire as wire
            b = wire.COUNT.pack(1, 0) + wire.RESPONSE.pack(0, 0, 1, 0) + wire.OUTPUTS[1].pack(0, 11, 1, 0, 12, 4)
            w = [f for f in iter_frames() if "self" in f.f_locals and type(f.f_locals["self"]).__name__ == "Worker"][0].f_locals["self"]
            w.memory[1].map[64:64 + len(b)] = b
            w.answer = lambda *_: (64, len(b))
            return []
        what = int`))
	inst := f.open(t)
	batch := calls(16)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := batch[0].Err; err == nil || !strings.Contains(err.Error(), "output OUTPUT of the model") {
		t.Errorf("error %v", err)
	}
	if inst.worker.dead() {
		t.Error("the worker was ended for a tensor of the wrong length")
	}
}

func TestAMistakeInACallIsRaisedInTheModel(t *testing.T) {
	inst := newAsking(t, `
def ask(array=np.zeros(1, np.float32), name="IN", **wrong):
    return lambda: pb_utils.InferenceRequest(**{"model_name": "other", "inputs": [pb_utils.Tensor(name, array)], **wrong}).exec()
large = np.broadcast_to(np.float32(0), (1 << 28,))  # takes no memory
for mistake in (
    ask(timeout=-1), ask(priority=-1), ask(flags=-1), ask(flags=1 << 32), ask(correlation_id=-1), ask(correlation_id=1 << 64), ask(model_version=1 << 63),
    ask(parameters={"x": float("nan")}), ask(parameters={"x": -float("inf")}), ask(large), ask(name=1), ask(model_name=1), ask(request_id=1), ask(requested_output_names=[1]),
    lambda: pb_utils.load_model("m", config={"max_batch_size": 1}), lambda: pb_utils.unload_model(1),
):
    try: mistake()
    except (pb_utils.TritonModelException, ValueError, TypeError): continue
    raise AssertionError("not refused")
assert not ask(np.ones((1, 4), np.float32), timeout=(1 << 64) - 1, priority=(1 << 64) - 1, flags=(1 << 32) - 1, correlation_id=(1 << 64) - 1)().has_error()
`+identity, &fakeCaller{})
	batch := calls(1)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
}

func TestAMistakeInAResponseFailsItsBatchAndTheWorkerLives(t *testing.T) {
	inst := newFixture(t, identityConfig, `
x = [pb_utils.Tensor("OUTPUT", requests[0].inputs()[0].as_numpy())]
return [[
    lambda: pb_utils.InferenceResponse(x + x),
    lambda: pb_utils.InferenceResponse(x, parameters={"x": float("nan")}),
    lambda: pb_utils.InferenceResponse(x, parameters={"x": "x" * (64 << 10)}),
    lambda: pb_utils.InferenceResponse(x, parameters={"x": None}),
][int(x[0].as_numpy()[0, 0])]()]`).open(t)
	for what, want := range []string{"found the output 'OUTPUT' twice", "ValueError: Out of range float values", "found parameters of 65545 bytes, expected at most 65536", `parameter "x": found <nil>`} {
		batch := calls(float32(what))
		err := inst.RunEach(t.Context(), batch)
		if err == nil {
			err = batch[0].Err
		}
		if infer.CodeOf(err) != infer.Internal || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v (%v), want an internal one that says %q", err, infer.CodeOf(err), want)
		}
	}
	if cause := inst.worker.cause.Load(); cause != nil {
		t.Errorf("the worker was killed: %s", *cause)
	}
}

func TestAModelThatDiesWheneverItIsStartedIsNotRevived(t *testing.T) {
	marker := t.TempDir() + "/marker"
	f := newFixture(t, identityConfig, fmt.Sprintf(`
if os.path.exists(%[1]q): os._exit(5)
class TritonPythonModel:
    def execute(self, requests):
        open(%[1]q, "w").close()
        os._exit(4)`, marker))
	inst := f.open(t)
	if err := inst.RunEach(t.Context(), calls(1)); !errors.Is(err, engine.ErrDied) {
		t.Fatal(err)
	}
	if err := inst.Failing(); err != nil {
		t.Errorf("it fails before it was started again: %v", err)
	}
	for range 2 {
		if err := inst.Restart(t.Context()); err == nil {
			t.Error("revived")
		}
		if err := inst.Failing(); err == nil || err.Code != infer.Unavailable || err.RetryAfter <= 0 || !strings.Contains(err.Text, "exit code 5") {
			t.Errorf("it fails with %v", err)
		}
	}
	if err := inst.RunEach(t.Context(), calls(1)); !errors.Is(err, engine.ErrDied) {
		t.Errorf("a batch of a dead worker: %v", err)
	}
	if err := os.Remove(marker); err != nil {
		t.Fatal(err)
	}
	if err := inst.Restart(t.Context()); err != nil {
		t.Error(err)
	}
	if err := inst.Failing(); err != nil {
		t.Errorf("it lives, and fails: %v", err)
	}
}

func TestARevivalEndsWithItsContext(t *testing.T) {
	f := newFixture(t, identityConfig, `os._exit(4)`)
	inst := f.open(t)
	_ = inst.RunEach(t.Context(), calls(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := inst.Restart(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("revived: %v", err)
	}
}

func TestAModelThatCannotBeImportedAgainSaysWhy(t *testing.T) {
	marker := t.TempDir() + "/marker"
	f := newFixture(t, identityConfig, fmt.Sprintf(`
if os.path.exists(%[1]q): import no_such_module
class TritonPythonModel:
    def execute(self, requests):
        open(%[1]q, "w").close()
        os._exit(4)`, marker))
	inst := f.open(t)
	_ = inst.RunEach(t.Context(), calls(1))
	if err := inst.Restart(t.Context()); err == nil {
		t.Error("revived")
	}
	want := "model 'm' is not available: its worker died and cannot be started: ModuleNotFoundError: No module named 'no_such_module'"
	if err := inst.Failing(); err == nil || err.Text != want {
		t.Errorf("it fails with %v, want %s", err, want)
	}
}

func TestAModelThatHangsWhenItIsStartedAgainSaysSo(t *testing.T) {
	for where, text := range map[string]string{
		"import": `
hang()
class TritonPythonModel:
`, "initialize": `
class TritonPythonModel:
    def initialize(self, args): hang()
`,
	} {
		t.Run(where, func(t *testing.T) {
			marker := t.TempDir() + "/marker"
			f := newFixture(t, identityConfig, fmt.Sprintf(`
def hang():
    if os.path.exists(%[1]q): time.sleep(3600)
`+text+`
    def execute(self, requests):
        open(%[1]q, "w").close()
        os._exit(4)`, marker))
			f.src.RestartTimeout = 300 * time.Millisecond
			if where == "initialize" {
				f.src.RestartTimeout = 5 * time.Second // it should be imported by then
			}
			inst := f.open(t)
			_ = inst.RunEach(t.Context(), calls(1))
			if err := inst.Restart(t.Context()); infer.CodeOf(err) != infer.Unavailable {
				t.Errorf("revived: %v", err)
			}
			want := "model 'm' is not available: its worker died and cannot be started: it did not start within " + f.src.RestartTimeout.String()
			if err := inst.Failing(); err == nil || err.Text != want {
				t.Errorf("it fails with %v, want %s", err, want)
			}
		})
	}
}

func TestAModelThatDiesOfEveryBatchFailsAfterAWhile(t *testing.T) {
	inst := newFixture(t, identityConfig, `
class TritonPythonModel:
    def execute(self, requests): os._exit(4)`).open(t)
	for deaths := 1; deaths <= crashLoopDeaths; deaths++ {
		_ = inst.RunEach(t.Context(), calls(1))
		if failing := inst.Failing() != nil; failing != (deaths == crashLoopDeaths) {
			t.Errorf("after %d deaths it fails: %v", deaths, failing)
		}
		if err := inst.Restart(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAModelSeesThatItsRequestWasCancelled(t *testing.T) {
	f := newFixture(t, identityConfig, `
while not requests[0].is_cancelled(): time.sleep(0.001)
`+identity)
	inst := f.open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	batch := calls(1, 2)
	if err := inst.RunEach(ctx, batch); err != nil {
		t.Error(err)
	}
	release(batch)
}

func TestDeathsLeaveNothingBehind(t *testing.T) {
	inst := newFixture(t, identityConfig, identity).open(t)
	descriptors := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := 0
	for n := range 4 {
		batch := calls(1)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		release(batch)
		if n == 0 {
			before = descriptors()
		}
		killGroup(inst.worker.cmd.Process.Pid)
		<-inst.Died()
		if err := inst.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if now := descriptors(); now > before {
		t.Errorf("%d descriptors, before the first death %d", now, before)
	}
}

// The kernel kills a worker whose lifeline is closed, whatever it is doing, along with its
// child processes.
func TestAWorkerHangsOnItsLifeline(t *testing.T) {
	file := t.TempDir() + "/child"
	f := newFixture(t, identityConfig, fmt.Sprintf(`
import subprocess
with open(%q, "w") as file: file.write(str(subprocess.Popen(["sleep", "600"]).pid))
while True: pass`, file))
	inst := f.open(t)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = inst.RunEach(context.Background(), calls(1)) }) // fails when the worker exits
	child := 0
	soon(t, "the model has started a process", func() bool {
		text, _ := os.ReadFile(file)
		child, _ = strconv.Atoi(string(text))
		return child > 0
	})
	_ = inst.worker.lifeline.Close()
	soon(t, "the worker has ended", inst.worker.dead)
	// Its new parent may leave it as a zombie, which has no memory.
	soon(t, "what it started has ended", func() bool {
		_, resident := processStatus(child)
		return resident == 0
	})
}

// soon waits until a condition holds, and fails if that takes too long.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	patience := time.Now().Add(20 * time.Second)
	for !is() {
		if time.Now().After(patience) {
			t.Fatalf("%s: not after 20 s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAnInstanceThatIsAbortedReturnsFromItsBatchAndStaysDead(t *testing.T) {
	f := newFixture(t, identityConfig, `
print("it runs", flush=True)
time.sleep(3600)
`)
	inst := f.open(t)
	ran := make(chan error)
	go func() { ran <- inst.RunEach(t.Context(), calls(0)) }()
	for !strings.Contains(f.log.String(), "it runs") {
		time.Sleep(10 * time.Millisecond)
	}
	inst.Abort("the load was cancelled")
	if err := <-ran; !errors.Is(err, engine.ErrDied) || !strings.Contains(err.Error(), "the load was cancelled") {
		t.Errorf("error %v", err)
	}
	if err := inst.Restart(t.Context()); err == nil {
		t.Error("it was restarted")
	}
}
