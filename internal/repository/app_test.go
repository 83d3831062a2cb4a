package repository

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAnAppsModelsAreFoundWithoutRunningIt(t *testing.T) {
	const app = `"""
@shoal.model(inputs={}, outputs={})
def in_a_text(): pass
"""
import shoal
# @shoal.model(
rename = "it's # not a comment"
@shoal.model(inputs={"name=x": ("FP32", [-1, 3])}, outputs={"y": (")", [-1])}, max_batch=32)
# between
@other(1)
def first(x):
    return {"name": 1}
@shoal.model(
    inputs={"x": ("FP32", [-1])},  # name="not this one"
    outputs=dict(name=3), name = 'second-one',
)
class Second: pass
def plain(x): pass
if True:
    @shoal.model(inputs={}, outputs={})
    def indented(): pass
@shoal.model(rename="no", outputs={})
async def third(): pass
`
	for _, text := range []string{app, strings.ReplaceAll(app, "\n", "\r\n")} {
		names, err := appModels(text)
		if want := []string{"first", "second-one", "third"}; err != nil || !slices.Equal(names, want) {
			t.Errorf("names %q, error %v, want %q", names, err, want)
		}
	}
}

// TestABrokenAppStillHasItsModels: else they would be unloaded while somebody writes.
func TestABrokenAppStillHasItsModels(t *testing.T) {
	for _, broken := range []string{
		"@shoal.model(inputs={'x': 1)\ndef a(x): return x\n",
		"@shoal.model(inputs={'x': 1}\ndef a(x): return x\n",
		"@shoal.model(inputs={'x: 1})\ndef a(x): return x\n",
		"@shoal.model(inputs={'x': 1})\ndef a(x: return x\n",
		"@shoal.model(inputs={'x': 1})\ndef a(x): return {(x}\n",
		"@shoal.model(inputs={'x': 1})\ndef a(x): return 'x\n",
	} {
		text := broken + "@shoal.model(name='b')\ndef c(x): return x\n"
		if names, err := appModels(text); err != nil || !slices.Equal(names, []string{"a", "b"}) {
			t.Errorf("%q: names %q, error %v", text, names, err)
		}
	}
}

func TestAFileWithoutModelsIsRefusedWithWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"import shoal\n":                                    "the file has no model; decorate a top-level function or class with @shoal.model(inputs=…, outputs=…), as in docs/reference/python-models.md",
		"class TritonPythonModel: pass\n":                   "a TritonPythonModel cannot be served as a single file; put it into a model repository as NAME/1/model.py, and serve the repository",
		"\n@shoal.model()\nx = 1\n":                         "line 2: @shoal.model must be followed by a def or a class",
		"@shoal.model()\n":                                  "line 1: @shoal.model must be followed by a def or a class",
		"@shoal.model(\n name=PREFIX + 'x')\ndef f(): pass": `line 2: name= must be a plain string such as name="reader", because Shoal reads names without running the file`,
		"@shoal.model()\ndef f(): pass\nx = '''\n":          "line 3: the string that begins here is not closed",
		"@shoal.model()\ndef f(): pass\n@shoal.model(name=\"f\")\ndef g(): pass\n":       `two models are named "f"; give one of them another name with @shoal.model(name=…)`,
		"@shoal.models()\ndef f(): pass\n@shoal.model_x\ndef g(): pass\nprint('\\'a')\n": "the file has no model; decorate a top-level function or class with @shoal.model(inputs=…, outputs=…), as in docs/reference/python-models.md",
	} {
		if names, err := appModels(text); err == nil || err.Error() != want {
			t.Errorf("%q: names %q, error %v, want %q", text, names, err, want)
		}
	}
}

func TestWhatAnAppImportsFromItsDirectoryIsPartOfIt(t *testing.T) {
	dir := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	look := func() fingerprint {
		t.Helper()
		found, err := directories{filepath.Join(dir, "app.py")}.find(t.Context(), "f", true)
		if err != nil || len(found) != 1 {
			t.Fatalf("%d models, %v", len(found), err)
		}
		return found[0].whole()
	}
	write("app.py", "@shoal.model()\ndef f(): pass\n@shoal.model()\ndef g(): pass\n")
	before := look()
	for file, changes := range map[string]bool{
		"notes.txt": false, "data/deep/x.py": false, "venv/lib/x.py": false, "__pycache__/app.py": false, ".git/x.py": false,
		"helper.py": true, "package/__init__.py": true,
	} {
		write(file, "x")
		after := look()
		if (after != before) != changes {
			t.Errorf("%s changes the model: %v, want %v", file, after != before, changes)
		}
		before = after
	}
}

func TestFormatsThatAreNotServedAreToldHowToExport(t *testing.T) {
	for ending, how := range exports {
		path := filepath.Join(t.TempDir(), "m", "1", "model"+ending)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		_, inRepository := newDesired(mustScan(t, filepath.Dir(filepath.Dir(path))), override{})
		_, alone := scan([]string{path})
		for _, err := range []error{inRepository, alone} {
			if err == nil || !strings.Contains(err.Error(), how) {
				t.Errorf("%s: error %v, want one that says %q", ending, err, how)
			}
		}
	}
}

func mustScan(t *testing.T, dir string) *candidate {
	t.Helper()
	f, err := scanEntry(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilesOfLibrariesAreFoundInVersionsAndWhereTheyAreNamed(t *testing.T) {
	for _, file := range libraryFiles {
		dir := t.TempDir()
		path := filepath.Join(dir, "m", "1", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, at := range []struct{ path, name string }{{dir, "m"}, {path, "model"}} {
			models, err := scan([]string{at.path})
			if err != nil || models[at.name] == nil {
				t.Fatalf("%s: models %v, error %v", at.path, models, err)
			}
			w, err := newDesired(models[at.name], override{})
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := w.config()
			if err != nil || cfg.Backend != "python" || cfg.Proto.GetDefaultModelFilename() != file {
				t.Errorf("%s: backend %q, file %q, error %v", at.path, cfg.Backend, cfg.Proto.GetDefaultModelFilename(), err)
			}
		}
		// In a repository a file by itself may be anything.
		if err := os.Rename(path, filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
		if models, err := scan([]string{dir}); err != nil || models["model"] != nil {
			t.Errorf("%s: models %v, error %v", file, models, err)
		}
	}
}

func TestAPickleOfAClientIsRefused(t *testing.T) {
	with := override{Config: "{}", Files: map[string][]byte{"1/model.pkl": nil}}
	const want = "file:1/model.pkl: pickle files cannot be uploaded, because loading one runs the code in it; if you trust it, put it into the model repository"
	if _, err := with.unpack("m"); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}
