package python

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// write writes files, by their path in dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// crash ends the worker of inst, and starts another.
func crash(t *testing.T, inst *instance) {
	t.Helper()
	inst.worker.kill("the test killed it")
	<-inst.Died()
	if err := inst.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestARestartedWorkerRunsTheCodeThatWasLoaded changes all Python files of a model: the
// model's own, a module in each of its directories, a package, and one that it imports only
// when it runs. A file that did not exist when the model was loaded comes from disk.
func TestARestartedWorkerRunsTheCodeThatWasLoaded(t *testing.T) {
	f := newFixture(t, identityConfig, `
import beside, shared, parts.one
class TritonPythonModel:
    def execute(self, requests):
        import late
        try:
            from added import n
        except ImportError:
            n = 0
        assert open(os.path.join(os.path.dirname(__file__), "data.txt")).read() == "data"
        y = np.full((1, 4), beside.n + shared.n + parts.one.n + late.n + n, np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", y)]) for r in requests]
`)
	dir := filepath.Dir(f.src.Dir)
	write(t, dir, map[string]string{
		"shared.py": "n = 1", "1/beside.py": "n = 10", "1/parts/__init__.py": "", "1/parts/one.py": "n = 100", "1/late.py": "n = 1000", "1/data.txt": "data",
	})
	inst := f.open(t)
	answer := func() float32 {
		batch := calls(0)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatalf("%v\n%s", err, f.log)
		}
		defer release(batch)
		return first(t, &batch[0])
	}
	if got := answer(); got != 1111 {
		t.Fatalf("answer %v, want 1111", got)
	}
	for _, name := range []string{"shared.py", "1/beside.py", "1/parts/one.py", "1/late.py", "1/model.py"} {
		write(t, dir, map[string]string{name: "import no_such_module"})
	}
	if err := os.RemoveAll(filepath.Join(dir, "1", "parts")); err != nil {
		t.Fatal(err)
	}
	crash(t, inst)
	if got := answer(); got != 1111 {
		t.Errorf("answer %v after the restart, want 1111, that of the code that was loaded", got)
	}
	write(t, dir, map[string]string{"1/added.py": "n = 10000"})
	crash(t, inst)
	if got := answer(); got != 11111 {
		t.Errorf("answer %v, want 11111, with the module that was added", got)
	}
}

func TestPackagesOfAModelListTheirModulesAndReadTheirData(t *testing.T) {
	f := newFixture(t, identityConfig, `
import parts
class TritonPythonModel:
    def execute(self, requests):
        y = np.full((1, 4), parts.n, np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", y)]) for r in requests]
`)
	write(t, f.src.Dir, map[string]string{
		"parts/__init__.py": `
import importlib, pkgutil
names = [m.name for m in pkgutil.iter_modules(__path__)]
assert names == ["one", "two"], names
n = sum(importlib.import_module("parts." + name).n for name in names) + int(pkgutil.get_data("parts", "data.txt"))
`,
		"parts/one.py": "n = 1", "parts/two.py": "n = 10", "parts/data.txt": "100",
	})
	batch := calls(0)
	if err := f.open(t).RunEach(t.Context(), batch); err != nil {
		t.Fatalf("%v\n%s", err, f.log)
	}
	defer release(batch)
	if got := first(t, &batch[0]); got != 111 {
		t.Errorf("the model answers %v", got)
	}
}

// TestATracebackShowsTheCodeThatWasLoaded: not the line that the file has now.
func TestATracebackShowsTheCodeThatWasLoaded(t *testing.T) {
	f := newFixture(t, identityConfig, `raise ValueError("boom") # loaded`)
	inst := f.open(t)
	file := filepath.Join(f.src.Dir, "model.py")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.src.Dir, map[string]string{"model.py": strings.ReplaceAll(string(text), "loaded", "changed")})
	if err := inst.RunEach(t.Context(), calls(1)); err == nil {
		t.Fatal("no error")
	}
	_ = inst.Close() // so that the log is complete
	if log := f.log.String(); !strings.Contains(log, "# loaded") || strings.Contains(log, "# changed") {
		t.Errorf("the log has the wrong line: %s", log)
	}
}

func TestASnapshotHasTheModulesOfAModel(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"app.py": "app", "notes.txt": "", "pkg/__init__.py": "", "pkg/deep/a.py": "a", "data/x.bin": "", "data/below/b.py": "b", // data has no module itself
		"venv/lib/site.py": "venv", ".git/hook.py": "hidden", "2/model.py": "another version",
	})
	s := newSnapshot(1<<20, dir)
	want := []string{filepath.Join(dir, "app.py"), filepath.Join(dir, "pkg/__init__.py"), filepath.Join(dir, "pkg/deep/a.py")}
	if got := slices.Sorted(maps.Keys(s.files)); !slices.Equal(got, want) || s.partial {
		t.Errorf("found %q, want %q; partial %v", got, want, s.partial)
	}
	if s := newSnapshot(3, dir); !s.partial || s.bytes > 3 {
		t.Errorf("with a limit of 3 bytes: %d bytes, partial %v", s.bytes, s.partial)
	}
}

// TestAHandlerRunsWithoutNumpy: its requests and responses are bytes.
func TestAHandlerRunsWithoutNumpy(t *testing.T) {
	home, dir, hidden := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, hidden, map[string]string{"numpy.py": "raise ImportError('hidden')"})
	write(t, home, map[string]string{"m/1/model.py": "from shoal_handler import TritonPythonModel\n"})
	write(t, dir, map[string]string{
		"service.py": "import sys, helper\ndef handle(data, context):\n    if data is None: return\n" +
			"    assert sys.modules.get('numpy') is None\n    return [helper.answer(one['body']) for one in data]\n",
		"helper.py": "def answer(body): return body.upper()\n",
	})
	t.Setenv("PYTHONPATH", hidden)
	cfg, err := modelconfig.Parse("", []byte(`backend: "python" max_batch_size: 8
		input { name: "body" data_type: TYPE_STRING dims: 1 } output { name: "body" data_type: TYPE_STRING dims: 1 }
		parameters { key: "python" value { string_value: "`+pythontest.Interpreter(t)+`" } }
		parameters { key: "handler" value { string_value: "service" } } parameters { key: "model_dir" value { string_value: "`+dir+`" } }
		parameters { key: "server_name" value { string_value: "MMS" } } parameters { key: "server_version" value { string_value: "1" } }`))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.Instances = "m", 1
	cfg.Inputs[0].Dims, cfg.Outputs[0].Dims = nil, nil
	f := newFixture(t, identityConfig, identity)
	f.src = engine.Source{Config: cfg, Version: 1, Dir: filepath.Join(home, "m", "1")}
	inst := f.open(t)
	ask := func() {
		t.Helper()
		call := []engine.Call{{Request: &infer.Request{Rows: 2, Inputs: []tensor.Tensor{
			{Name: "body", Type: tensor.Bytes, Shape: []int64{2}, Data: []byte("\x01\x00\x00\x00a\x02\x00\x00\x00bc")},
		}}}}
		if err := inst.RunEach(t.Context(), call); err != nil || call[0].Err != nil {
			t.Fatalf("%v, %v\n%s", err, call[0].Err, f.log)
		}
		defer release(call)
		if got, want := string(call[0].Outputs.Tensors[0].Data), "\x01\x00\x00\x00A\x02\x00\x00\x00BC"; got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
	}
	ask()
	write(t, dir, map[string]string{"service.py": "broken(", "helper.py": "broken("})
	crash(t, inst) // it runs the handler that was loaded
	ask()
}

func TestAChangedFileThatIsNotKeptIsNoticed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"model.joblib": "fitted", "app.py": "code"})
	for file, want := range map[string]bool{"model.joblib": true, "app.py": false} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		m := &model{dir: dir, bare: true, file: file, info: info}
		if m.fileChanged() {
			t.Errorf("%s counts as changed before it has", file)
		}
		write(t, dir, map[string]string{file: "fitted again"})
		if got := m.fileChanged(); got != want {
			t.Errorf("%s counts as changed: %v, want %v", file, got, want)
		}
	}
}
