package python

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// executable writes an executable file, and returns its path.
func executable(t *testing.T, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheInterpreterIsTheFirstThatThereIs(t *testing.T) {
	dir := t.TempDir()
	path := executable(t, dir, "path", "python3")
	t.Setenv("PATH", filepath.Dir(path))
	model := filepath.Join(dir, "m")
	find := func(parameters map[string]string) string {
		t.Helper()
		set, err := readSettings(engine.Source{Config: &modelconfig.Config{Parameters: parameters}, Dir: filepath.Join(model, "1")})
		if err != nil {
			return err.Error()
		}
		return set.interpreter
	}
	expect := func(what, got, want string) {
		t.Helper()
		if got != want && (!strings.HasPrefix(want, "…") || !strings.Contains(got, want[len("…"):])) {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	expect("in the PATH", find(nil), path)
	hidden := executable(t, model, ".venv", "bin", "python3")
	expect("beside the model", find(nil), hidden)
	venv := executable(t, model, "venv", "bin", "python")
	expect("in plain sight", find(nil), venv)
	env := executable(t, model, "env", "bin", "python3")
	expect("an environment", find(map[string]string{"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"}), env)
	expect("a path", find(map[string]string{"python": "venv/bin/python", "EXECUTION_ENV_PATH": "elsewhere"}), venv)
	expect("a name", find(map[string]string{"python": "python3"}), path)
	archive := executable(t, model, "env.tar.gz")
	expect("an archive", find(map[string]string{"EXECUTION_ENV_PATH": archive}), "…expected a directory, because archives are not supported")
	expect("an empty environment", find(map[string]string{"EXECUTION_ENV_PATH": dir}), "…expected a directory with an interpreter")
	expect("a wrong path", find(map[string]string{"python": "/no/such"}), "…parameters[python]: found \"/no/such\", expected an interpreter")
	t.Setenv("PATH", "")
	if err := os.RemoveAll(model); err != nil {
		t.Fatal(err)
	}
	expect("nowhere", find(nil), "…the PATH has no python3; install Python 3 and numpy")
}

func TestParametersAreReadOrRefusedWithAReason(t *testing.T) {
	dir := t.TempDir()
	interpreter := executable(t, dir, "python")
	for _, tt := range []struct {
		key, value, want string // in the error; "" means no error
	}{
		{"execute_timeout_seconds", "2.5", ""},
		{"execute_timeout_seconds", "soon", `parameters[execute_timeout_seconds]: found "soon", expected a number of seconds, or 0 for no limit`},
		{"execute_timeout_seconds", "-1", "expected a number of seconds"},
		{"memory_limit_mib", "NaN", "expected a number of mebibytes"},
		{"retry_apart", "yes", "expected true or false"},
		{"retry_died", "1", "expected true or false"},
		{"batch_ms", "its own", ""},
	} {
		cfg := &modelconfig.Config{Parameters: map[string]string{"python": interpreter, tt.key: tt.value}}
		set, err := readSettings(engine.Source{Config: cfg, Dir: dir})
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.key, err, tt.want)
		case tt.value == "2.5" && set.limit != 2500*time.Millisecond:
			t.Errorf("a limit of %v", set.limit)
		}
	}
}
