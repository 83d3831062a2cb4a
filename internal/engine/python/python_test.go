package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A fixture is a model on disk and the engine that runs it.
type fixture struct {
	engine *Engine
	src    engine.Source
	log    *logtest.Log
}

const identityConfig = `
	max_batch_size: 8
	input { name: "INPUT" data_type: TYPE_FP32 dims: 4 }
	output { name: "OUTPUT" data_type: TYPE_FP32 dims: 4 }
	dynamic_batching { }
`

// newFixture writes a model. body is that of its execute method, or the whole file if it
// contains a class.
func newFixture(t testing.TB, config, text string) *fixture {
	t.Helper()
	if !strings.Contains(text, "class TritonPythonModel") {
		text = "class TritonPythonModel:\n    def execute(self, requests):\n        " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ") + "\n"
	}
	text = "import os, signal, sys, time, json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n" + text
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.MkdirAll(filepath.Join(dir, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "1", "model.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(`backend: "python" `+config+` parameters { key: "python" value { string_value: "`+pythontest.Interpreter(t)+`" } }`))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.Instances = "m", 1
	f := &fixture{log: &logtest.Log{}, src: engine.Source{Config: cfg, Version: 1, Dir: filepath.Join(dir, "1")}}
	f.engine = New(Options{Log: slog.New(slog.NewTextHandler(f.log, nil))})
	t.Cleanup(func() { _ = f.engine.Close() })
	return f
}

// open loads the model, and returns an instance of it.
func (f *fixture) open(t testing.TB) *instance {
	t.Helper()
	return f.instance(t).(*instance)
}

func (f *fixture) instance(t testing.TB) engine.Instance {
	t.Helper()
	m, err := f.engine.Load(t.Context(), f.src)
	if err != nil {
		t.Fatalf("load: %v\n%s", err, f.log)
	}
	inst, err := m.Instance(t.Context())
	if err != nil {
		_ = m.Close()
		t.Fatalf("instance: %v\n%s", err, f.log)
	}
	t.Cleanup(func() {
		_ = inst.Close()
		_ = m.Close()
	})
	return inst
}

// calls returns a request of one row for each value.
func calls(values ...float32) []engine.Call {
	var all []engine.Call
	for _, v := range values {
		all = append(all, engine.Call{Request: &infer.Request{ID: "id", Rows: 1, Timeout: 7 * time.Microsecond, Inputs: []tensor.Tensor{
			{Name: "INPUT", Type: tensor.FP32, Shape: []int64{1, 4}, Data: tensor.Data([]float32{v, v, v, v})},
		}}})
	}
	return all
}

func release(all []engine.Call) {
	for i := range all {
		all[i].Outputs.Memory.Release()
	}
}

// first returns the first number of a call's first output.
func first(t testing.TB, c *engine.Call) float32 {
	t.Helper()
	if c.Err != nil || len(c.Outputs.Tensors) == 0 {
		t.Fatalf("error %v, %d outputs", c.Err, len(c.Outputs.Tensors))
	}
	values, err := tensor.View[float32](&c.Outputs.Tensors[0])
	if err != nil {
		t.Fatal(err)
	}
	return values[0]
}

const identity = `
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy())]) for r in requests]
`

func TestPythonConforms(t *testing.T) {
	f := newFixture(t, `
		max_batch_size: 8
		input { name: "numbers" data_type: TYPE_INT16 dims: [ -1, 2 ] }
		input { name: "texts" data_type: TYPE_STRING dims: 2 }
		output { name: "twice" data_type: TYPE_INT16 dims: [ -1, 2 ] }
		output { name: "loud" data_type: TYPE_STRING dims: 2 }`, `
out = []
for r in requests:
    numbers, texts = [t.as_numpy() for t in r.inputs()]
    loud = np.array([s.upper() for s in texts.ravel()], dtype=object).reshape(texts.shape)
    out.append(pb_utils.InferenceResponse([pb_utils.Tensor("twice", 2 * numbers), pb_utils.Tensor("loud", loud)]))
return out`)
	enginetest.Conform(t, f.engine, f.src)
}

func TestEachRequestIsAnsweredByItself(t *testing.T) {
	f := newFixture(t, identityConfig, `
out = []
for k, r in enumerate(requests):
    a = r.inputs()[0].as_numpy()
    if a[0, 0] < 0:
        out.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)))
    else:
        out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.repeat(a, k + 1, axis=0)), pb_utils.Tensor("OTHER", a)]))
return out`)
	inst := f.open(t)
	batch := calls(1, -1, 3)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	defer release(batch)
	if a, b := first(t, &batch[0]), first(t, &batch[2]); a != 1 || b != 3 {
		t.Errorf("answers %v and %v", a, b)
	}
	if rows := batch[2].Outputs.Tensors[0].Rows(); rows != 3 || len(batch[2].Outputs.Tensors) != 1 {
		t.Errorf("%d rows, want as many as the model gave; %d outputs", rows, len(batch[2].Outputs.Tensors))
	}
	if err := batch[1].Err; infer.CodeOf(err) != infer.Invalid || err.Error() != "negative" {
		t.Errorf("the bad request got %v", err)
	}
}

func TestAnExceptionIsReportedWithTritonsWording(t *testing.T) {
	f := newFixture(t, identityConfig, `raise ValueError("boom")`)
	err := f.open(t).RunEach(t.Context(), calls(1, 2))
	const want = "Failed to process the request(s) for model 'm_0', message: ValueError: boom\n\nAt:\n  m/1/model.py(6): execute\n"
	if err == nil || err.Error() != want || infer.CodeOf(err) != infer.Internal {
		t.Errorf("error %q, want %q", err, want)
	}
	f = newFixture(t, identityConfig, `return []`)
	err = f.open(t).RunEach(t.Context(), calls(1))
	if want := "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %q, want one that ends in %q", err, want)
	}
}

func TestAnswersThatCannotBeSentAreExceptions(t *testing.T) {
	f := newFixture(t, identityConfig, `
class Bad:
    def __str__(self): raise ValueError("no text")
class TritonPythonModel:
    def execute(self, requests):
        a = requests[0].inputs()[0].as_numpy()
        out = np.array([[Bad()]], dtype=object) if a[0, 0] == 1 else np.zeros((4, 1, 2), np.float32).T
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", out)])]`)
	inst := f.open(t)
	if err := inst.RunEach(t.Context(), calls(1)); err == nil || !strings.Contains(err.Error(), "message: ValueError: no text") {
		t.Errorf("error %v", err)
	}
	batch := calls(2) // an array that is not contiguous
	if err := inst.RunEach(t.Context(), batch); err != nil || len(batch[0].Outputs.Tensors[0].Data) != 32 {
		t.Errorf("error %v", err)
	}
	release(batch)
}

func TestInputsMayBeAnsweredAsTheyAre(t *testing.T) {
	f := newFixture(t, strings.ReplaceAll(identityConfig, "TYPE_FP32", "TYPE_STRING"), `
return [pb_utils.InferenceResponse([pb_utils.Tensor._view("OUTPUT", t._code, t._place, t._memory)]) for t in [r.inputs()[0] for r in requests]]`)
	inst := f.open(t)
	batch := calls(0)
	in := &batch[0].Request.Inputs[0]
	in.Type, in.Shape = tensor.Bytes, []int64{1, 2}
	in.Data = tensor.AppendString(tensor.AppendString(nil, "one"), "")
	if err := inst.RunEach(t.Context(), batch); err != nil || !bytes.Equal(batch[0].Outputs.Tensors[0].Data, in.Data) {
		t.Errorf("error %v, answer %+v", err, batch[0].Outputs)
	}
	release(batch)
}

func TestWhatAModelPrintsIsInTheLog(t *testing.T) {
	f := newFixture(t, identityConfig, `
print("printed"); print("complained", file=sys.stderr); pb_utils.Logger.log_warn("logged")
raise KeyError("lost")`)
	inst := f.open(t)
	if err := inst.RunEach(t.Context(), calls(1)); err == nil {
		t.Fatal("no error")
	}
	inst.worker.stop() // all its output has been read then
	for _, want := range []string{`msg=printed model=m`, `msg=complained model=m`, `level=WARN msg=logged`, `Traceback`} {
		if !strings.Contains(f.log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, f.log)
		}
	}
}

func TestArraysThatAModelKeepsStayAsTheyWere(t *testing.T) {
	f := newFixture(t, identityConfig, `
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        self.kept += [r.inputs()[0].as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", self.kept[0])]) for r in requests]`)
	inst := f.open(t)
	for n := range 5 {
		batch := calls(float32(n) + 1)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if got := first(t, &batch[0]); got != 1 {
			t.Fatalf("after %d batches the first input is %v, want 1", n, got)
		}
		release(batch)
	}
}

func TestMemoryIsNotReplacedWithoutNeed(t *testing.T) {
	inst := newFixture(t, identityConfig, identity).open(t)
	var before *byte
	for n := range 4 {
		batch := calls(1, 2, 3)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		release(batch)
		if now := &inst.worker.in[0]; n > 0 && now != before {
			t.Error("the inputs' memory was replaced")
		} else {
			before = now
		}
	}
}

func TestLargeBatchesGetLargerMemory(t *testing.T) {
	f := newFixture(t, strings.ReplaceAll(identityConfig, "dims: 4", "dims: -1"), identity)
	inst := f.open(t)
	for _, n := range []int{1, minMemory, 3 * minMemory, 8 << 20, 2, 3} {
		data := make([]float32, n)
		data[n-1] = float32(n)
		batch := calls(0)
		batch[0].Request.Inputs[0].Shape = []int64{1, int64(n)}
		batch[0].Request.Inputs[0].Data = tensor.Data(data)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(batch[0].Outputs.Tensors[0].Data, tensor.Data(data)) {
			t.Errorf("%d numbers came back as others", n)
		}
		release(batch)
	}
	if len(inst.worker.in) > keptMemory || len(inst.worker.out) > keptMemory {
		t.Errorf("memory of %d and %d bytes is held for small batches", len(inst.worker.in), len(inst.worker.out))
	}
}

func TestAModelCompletesItsConfiguration(t *testing.T) {
	f := newFixture(t, "", `
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(c):
        c.set_max_batch_size(5)
        c.set_dynamic_batching()
        c.add_input({"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]})
        c.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [4]})
        return c
    def execute(self, requests):
        `+strings.TrimSpace(identity))
	inst := f.open(t)
	cfg := f.src.Config
	if cfg.MaxBatchSize != 5 || cfg.Dynamic == nil || len(cfg.Inputs) != 1 || cfg.Outputs[0].Name != "OUTPUT" {
		t.Errorf("the configuration is %+v", cfg)
	}
	batch := calls(3)
	if err := inst.RunEach(t.Context(), batch); err != nil || first(t, &batch[0]) != 3 {
		t.Error(err)
	}
	release(batch)
}

func TestAModelAddsTensorsThatItsConfigurationLacks(t *testing.T) {
	f := newFixture(t, `
		max_batch_size: 8
		input { name: "SCALE" data_type: TYPE_FP32 dims: 4 }
		output { name: "SCALED" data_type: TYPE_FP32 dims: 4 }
		sequence_batching { state { input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: 4 } }`, `
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(c):
        c.set_max_batch_size(8)
        for name in "INPUT", "SCALE":
            c.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in "NEXT", "OUTPUT", "SCALED":
            c.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        return c
    def execute(self, requests):
        r, = requests
        x, scale, state = [pb_utils.get_input_tensor_by_name(r, n).as_numpy() for n in ("INPUT", "SCALE", "STATE")]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x), pb_utils.Tensor("SCALED", x * scale), pb_utils.Tensor("NEXT", state + 1)])]
`)
	inst := f.open(t)
	cfg := f.src.Config
	names := func(all []modelconfig.Tensor) (names []string) {
		for _, t := range all {
			names = append(names, t.Name)
		}
		return names
	}
	if in, out := names(cfg.ModelInputs()), names(cfg.ModelOutputs()); !slices.Equal(in, []string{"SCALE", "INPUT", "STATE"}) || !slices.Equal(out, []string{"SCALED", "NEXT", "OUTPUT"}) {
		t.Errorf("the model has %v and returns %v", in, out)
	}
	if p := cfg.Effective(); len(p.GetInput()) != 2 || p.GetInput()[1].GetName() != "INPUT" || len(p.GetOutput()) != 3 {
		t.Errorf("clients see the inputs %v and the outputs %v", p.GetInput(), p.GetOutput())
	}
	batch := calls(3)
	all := batch[0].Request
	all.Inputs = append(all.Inputs, all.Inputs[0], all.Inputs[0])
	all.Inputs[0].Name, all.Inputs[0].Data = "SCALE", tensor.Data([]float32{2, 2, 2, 2})
	all.Inputs[2].Name = "STATE"
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, out := range batch[0].Outputs.Tensors {
		values, err := tensor.View[float32](&batch[0].Outputs.Tensors[i])
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(out.Name, values[0]))
	}
	if slices.Sort(got); !slices.Equal(got, []string{"NEXT4", "OUTPUT3", "SCALED6"}) {
		t.Errorf("the answer is %v", got)
	}
	release(batch)
}

func TestAModelThatCannotBeLoadedSaysWhy(t *testing.T) {
	for _, tt := range []struct{ config, text, want string }{
		{identityConfig, "class TritonPythonModel:\n    def initialize(self, args):\n        raise RuntimeError('no weights')\n    def execute(self, r): pass", "RuntimeError: no weights"},
		{identityConfig, "import missing_module\nclass TritonPythonModel: pass", "No module named 'missing_module'"},
		{identityConfig, "class TritonPythonModel: pass", "TritonPythonModel has no method execute"},
		{identityConfig, "os._exit(7)\nclass TritonPythonModel: pass", "its process ended with exit code 7"},
		{"", "class TritonPythonModel:\n    def execute(self, r): pass", "an auto_complete_config in model.py that adds them"},
	} {
		f := newFixture(t, tt.config, tt.text)
		m, err := f.engine.Load(t.Context(), f.src)
		if err == nil {
			_, err = m.Instance(t.Context())
			_ = m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || infer.CodeOf(err) != infer.Invalid && infer.CodeOf(err) != infer.Internal {
			t.Errorf("error %v, want one that says %q", err, tt.want)
		}
	}
}

func TestWithoutNumpyTheInterpreterIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "numpy.py"), []byte("raise ImportError('none')"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, identityConfig, identity)
	t.Setenv("PYTHONPATH", dir)
	_, err := f.engine.Load(t.Context(), f.src)
	if err == nil || !strings.Contains(err.Error(), "has no numpy (none): run 'python3 -m venv venv") {
		t.Errorf("error %v", err)
	}
}

func TestALoadEndsWithItsContext(t *testing.T) {
	f := newFixture(t, identityConfig, "while True: time.sleep(1)\nclass TritonPythonModel: pass")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := f.engine.Load(ctx, f.src); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestTheWorkersOwnTestsPass(t *testing.T) {
	cmd := exec.Command(pythontest.Interpreter(t), "-m", "unittest", "discover", "-s", "testdata")
	cmd.Env = append(os.Environ(), "PYTHONPATH=worker:../../../python/src", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAModelSeesWhichInputsWereLeftOut(t *testing.T) {
	inst := newFixture(t, `
		max_batch_size: 8
		input { name: "LEFT" data_type: TYPE_FP32 dims: 4 optional: true }
		input { name: "INPUT" data_type: TYPE_FP32 dims: 4 }
		input { name: "RIGHT" data_type: TYPE_FP32 dims: 4 optional: true }
		output { name: "OUTPUT" data_type: TYPE_FP32 dims: 4 }`, `
seen = [[t.name() for t in r.inputs()] for r in requests]
assert seen == [["INPUT"], ["INPUT", "RIGHT"], ["LEFT", "INPUT", "RIGHT"], ["LEFT", "INPUT"]], seen
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", sum(t.as_numpy() for t in r.inputs()))]) for r in requests]`).open(t)
	batch := calls(1, 2, 3, 4)
	named := func(name string, c *engine.Call) tensor.Tensor {
		x := c.Request.Inputs[0]
		x.Name = name
		return x
	}
	for i, names := range [][]string{{"INPUT"}, {"INPUT", "RIGHT"}, {"LEFT", "INPUT", "RIGHT"}, {"LEFT", "INPUT"}} {
		var inputs []tensor.Tensor
		for _, name := range names {
			inputs = append(inputs, named(name, &batch[i]))
		}
		batch[i].Request.Inputs = inputs
	}
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{1, 4, 9, 8} {
		if got := first(t, &batch[i]); got != want {
			t.Errorf("answer %d is %v, want %v", i, got, want)
		}
	}
	release(batch)
}

// TestATracebackIsOneRecord has exceptions raised where models run: while a batch runs, in
// a thread, in is_ready and in finalize. The end of a long traceback is kept.
func TestATracebackIsOneRecord(t *testing.T) {
	f := newFixture(t, identityConfig, `
import threading
def fail(why): raise ValueError(why)
class TritonPythonModel:
    def execute(self, requests):
        thread = threading.Thread(target=fail, args=["in a thread"])
        thread.start()
        thread.join()
        fail("in a batch " + 20_000 * "x" + " end")
    def is_ready(self): fail("in is_ready")
    def finalize(self): fail("in finalize")
`)
	inst := f.open(t)
	if err := inst.RunEach(t.Context(), calls(1)); err == nil {
		t.Error("the batch did not fail")
	}
	if inst.Ready() {
		t.Error("the model is ready")
	}
	_ = inst.Close()
	records := strings.Split(strings.TrimSpace(f.log.String()), "\n")
	if len(records) != 4 {
		t.Errorf("%d records, want 4:\n%s", len(records), f.log)
	}
	for i, want := range []string{`ValueError: in a thread"`, `xxx end"`, `ValueError: in is_ready"`, `ValueError: in finalize"`} {
		r := records[min(i, len(records)-1)]
		if !strings.Contains(r, "level=ERROR") || !strings.Contains(r, `model=m`) || !strings.Contains(r, "traceback=\"") || !strings.HasSuffix(r, want) {
			t.Errorf("record %d ends in %q, want %q", i, r[max(0, len(r)-200):], want)
		}
		if i != 1 && !strings.Contains(r, `traceback="Traceback (most recent call last):\n  File \"`) {
			t.Errorf("record %d has no traceback: %s", i, r)
		}
	}
}
