package python

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// newApp writes a model file, and a module next to it that it may import.
func newApp(t testing.TB, file, text string) *fixture {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{file: text, "beside.py": "factor = 2\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := modelconfig.Parse("", []byte(`backend: "python" default_model_filename: "`+file+`"`+
		` parameters { key: "python" value { string_value: "`+pythontest.Interpreter(t)+`" } }`))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name = "m"
	f := &fixture{log: &logtest.Log{}, src: engine.Source{Config: cfg, Version: 1, Dir: dir, Bare: true}}
	f.engine = New(Options{Log: slog.New(slog.NewTextHandler(f.log, nil))})
	t.Cleanup(func() { _ = f.engine.Close() })
	return f
}

const app = `
import beside, numpy as np, shoal

@shoal.model(inputs={"numbers": ("INT16", [-1, -1, 2]), "texts": (str, [-1, 2])}, outputs={"twice": (np.int16, [-1, -1, 2]), "loud": ("STRING", [-1, 2])},
             max_batch=8, name="m", instances=3)
def double(numbers, texts):
    if (numbers == -32768).any():
        raise shoal.BadInput("that is too little")
    loud = np.array([s.upper() for s in texts.ravel()], dtype=object).reshape(texts.shape)
    return {"twice": beside.factor * numbers, "loud": loud}
`

func TestAFunctionConforms(t *testing.T) {
	f := newApp(t, "my-app.py", app)
	enginetest.Conform(t, f.engine, f.src)
}

func TestAFunctionSaysWhatItsModelIs(t *testing.T) {
	f := newApp(t, "app.py", app)
	m, err := f.engine.Load(t.Context(), f.src)
	if err != nil {
		t.Fatalf("%v\n%s", err, f.log)
	}
	defer func() { _ = m.Close() }()
	cfg := f.src.Config
	if cfg.MaxBatchSize != 8 || cfg.Instances != 3 || cfg.Dynamic == nil || len(cfg.Inputs) != 2 || cfg.Outputs[0].Type != tensor.Int16 {
		t.Errorf("the configuration is %+v", cfg)
	}
	if apart, died := m.(engine.RetryPolicy).Retries(); !apart || died {
		t.Errorf("retries apart %v, after a death %v; want only the first", apart, died)
	}
	if m.(engine.RetryPolicy).Rehearses() {
		t.Error("the function is called with what nobody sent")
	}
	inst, err := m.Instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inst.Close() }()
	if _, each := inst.(engine.PerRequest); each {
		t.Error("the function is given requests one by one, want rows that are joined")
	}
	numbers := tensor.Tensor{Name: "numbers", Type: tensor.Int16, Shape: []int64{1, 1, 2}, Data: tensor.Data([]int16{1, -32768})}
	texts := tensor.Tensor{Name: "texts", Type: tensor.Bytes, Shape: []int64{1, 2}, Data: []byte("\x01\x00\x00\x00a\x00\x00\x00\x00")}
	err = inst.Run(t.Context(), []tensor.Tensor{numbers, texts}, &engine.Outputs{})
	if infer.CodeOf(err) != infer.Invalid || err.Error() != "that is too little" {
		t.Errorf("a bad input gets %v", err)
	}
}

func TestAFunctionThatCannotBeLoadedSaysWhy(t *testing.T) {
	for text, want := range map[string]string{
		"import shoal\n@shoal.model(inputs={'x': ('FP32', [3])}, outputs={'y': ('FP32', [-1])}, max_batch=4)\ndef m(x): pass\n": "ValueError: model 'm': inputs['x']: found shape [3], expected -1 first, " +
			"for the rows of a batch, because max_batch is 4\n\nAt:\n  app.py(2): <module>",
		"import nothing_of_this_name\n": "ModuleNotFoundError: No module named 'nothing_of_this_name'\n\nAt:\n  app.py(1): <module>",
		"x = 1\n":                       "app.py defines no model 'm', but none",
	} {
		f := newApp(t, "app.py", text)
		_, err := f.engine.Load(t.Context(), f.src)
		if err == nil || !strings.Contains(err.Error(), want) || infer.CodeOf(err) != infer.Invalid {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if got := f.log.String(); strings.Contains(got, "shoal_worker.py") {
			t.Errorf("the traceback tells of the worker's own code: %s", got)
		}
	}
}

func TestAFunctionMayBeAModelsModelPy(t *testing.T) {
	f := newFixture(t, "", `# it has no class TritonPythonModel
import shoal
@shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=32, retry_apart=False)
def total(x): return x.sum(axis=1)
`)
	m, err := f.engine.Load(t.Context(), f.src)
	if err != nil {
		t.Fatalf("%v\n%s", err, f.log)
	}
	defer func() { _ = m.Close() }()
	if apart, _ := m.(engine.RetryPolicy).Retries(); apart || f.src.Config.MaxBatchSize != 32 {
		t.Errorf("retries apart: %v; at most %d rows", apart, f.src.Config.MaxBatchSize)
	}
}

func TestAConfigurationMayLeaveOutOutputsOfAFunction(t *testing.T) {
	f := newFixture(t, `output { name: "twice" data_type: TYPE_FP32 dims: 2 }`, `# it has no class TritonPythonModel
import shoal
@shoal.model(inputs={"x": ("FP32", [-1, 2])}, outputs={"same": ("FP32", [-1, 2]), "twice": ("FP32", [-1, 2])}, max_batch=4)
def m(x): return {"same": x, "twice": 2 * x}
`)
	inst := f.instance(t)
	if all := f.src.Config.Outputs; len(all) != 1 || all[0].Name != "twice" {
		t.Errorf("the outputs are %v, want the one that the file lists", all)
	}
	x := tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 2}, Data: tensor.Data([]float32{1, 2})}
	var out engine.Outputs
	if err := inst.Run(t.Context(), []tensor.Tensor{x}, &out); err != nil {
		t.Fatal(err)
	}
	defer out.Memory.Release()
	if len(out.Tensors) != 1 || out.Tensors[0].Name != "twice" || !bytes.Equal(out.Tensors[0].Data, tensor.Data([]float32{2, 4})) {
		t.Errorf("it returned %+v", out.Tensors)
	}
}

func TestAConfigurationWithAnOutputThatAFunctionLacksIsNotLoaded(t *testing.T) {
	f := newFixture(t, `output { name: "twise" data_type: TYPE_FP32 dims: 2 }`, `# it has no class TritonPythonModel
import shoal
@shoal.model(inputs={"x": ("FP32", [-1, 2])}, outputs={"same": ("FP32", [-1, 2]), "twice": ("FP32", [-1, 2])}, max_batch=4)
def m(x): return {"same": x, "twice": 2 * x}
`)
	_, err := f.engine.Load(t.Context(), f.src)
	want := "output 'twise': found in the model's configuration, expected only outputs that the function declares: same, twice"
	if err == nil || !strings.Contains(err.Error(), want) || infer.CodeOf(err) != infer.Invalid {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

// TestAFileWhoseLibraryIsMissingSaysWhatToInstall needs an interpreter with numpy and no
// other library.
func TestAFileWhoseLibraryIsMissingSaysWhatToInstall(t *testing.T) {
	if filepath.Base(pythontest.Interpreter(t)) == "python3" {
		t.Skip("the interpreter of this machine may have any library: run make numpy")
	}
	for file, library := range map[string]string{
		"m.joblib": "scikit-learn", "m.pkl": "scikit-learn", "m.ubj": "xgboost", "m.json": "xgboost", "m.bst": "xgboost", "m.pt": "torch", "model.pt": "torch",
	} {
		f := newApp(t, file, "")
		if file == "model.pt" { // with the backend name of Triton configurations
			f.src.Config.Backend, f.src.Config.Proto.DefaultModelFilename = TorchName, ""
		}
		if l, _ := LibraryOf(file); l.Package != library {
			t.Errorf("%s needs %q, and its worker %s", file, l.Package, library)
		}
		_, err := f.engine.Load(t.Context(), f.src)
		if want := file + " needs " + library + ", which "; err == nil || !strings.HasPrefix(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), " -m pip install "+library+"; a model that is exported to ONNX needs no library") {
			t.Errorf("error %v, want one that begins with %q", err, want)
		}
	}
}

// fakeJoblib is in place of the library: it loads the same model from any file.
const fakeJoblib = `
class Doubler:
    n_features_in_ = 2
    def predict(self, x): return 2 * x[:, 0]
def load(path): return Doubler()
`

func TestRequestsToAFileAreCombinedUnlessItsConfigurationIsComplete(t *testing.T) {
	modules := t.TempDir()
	if err := os.WriteFile(filepath.Join(modules, "joblib.py"), []byte(fakeJoblib), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", modules)
	const input = `input { name: "x" data_type: TYPE_FP64 dims: 2 } `
	const output = `output { name: "y" data_type: TYPE_FP64 dims: 1 reshape { } } `
	for config, combined := range map[string]bool{
		"":                                    true,
		"max_batch_size: 8 " + input:          true,
		"max_batch_size: 8 " + output:         true,
		"max_batch_size: 8 " + input + output: false,
		"max_batch_size: 8 dynamic_batching { } " + input + output: true,
	} {
		f := newApp(t, "m.joblib", "")
		cfg, err := modelconfig.Parse("", []byte(config+f.src.Config.Proto.String()))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Name, f.src.Config = "m", cfg
		m, err := f.engine.Load(t.Context(), f.src)
		if err != nil {
			t.Fatalf("%s: %v\n%s", config, err, f.log)
		}
		if (cfg.Dynamic != nil) != combined {
			t.Errorf("%s: dynamic batching is %+v", config, cfg.Dynamic)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The package shoal in a worker is the one that programs install.
func TestAnAppFindsTheWholePackage(t *testing.T) {
	newApp(t, "app.py", `
import shoal
for name in shoal.__all__: getattr(shoal, name)
others = [n for n in vars(shoal) if not n.startswith("_") and n not in shoal.__all__]
assert not others, others
assert {"load", "Model", "Error", "model", "BadInput", "__version__"} <= set(shoal.__all__)

@shoal.model(inputs={"x": ("FP32", [1])}, outputs={"y": ("FP32", [1])})
def m(x): return x
`).instance(t)
}
