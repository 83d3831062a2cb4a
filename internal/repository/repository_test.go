package repository

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/pacer"
)

func TestMain(m *testing.M) { leak.Main(m) }

const echoConfig = `
backend: "echo"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
`

// write makes a repository of models with one configuration and some versions.
func write(t *testing.T, models map[string]string, versions ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, config := range models {
		for _, v := range versions {
			if err := os.MkdirAll(filepath.Join(dir, name, v), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tracked is an engine that counts what is open.
type tracked struct {
	enginetest.Echo
	fail error
	open int
}

func (e *tracked) Load(context.Context, engine.Source) (engine.Model, error) {
	if e.fail != nil {
		return nil, e.fail
	}
	e.open++
	return e, nil
}

func (e *tracked) Close() error {
	e.open--
	return nil
}

func openDir(t *testing.T, dir string, eng engine.Engine) (*Repository, error) {
	t.Helper()
	p := pacer.New()
	t.Cleanup(p.Close)
	return Open(t.Context(), dir, Options{Engines: map[string]engine.Engine{"echo": eng}, Pacer: p, Log: slog.New(slog.DiscardHandler)})
}

func closeRepository(t *testing.T, r *Repository) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestEveryModelOfADirectoryIsLoaded(t *testing.T) {
	eng := &tracked{}
	r, err := openDir(t, write(t, map[string]string{"a": echoConfig, "b": echoConfig}, "1", "3", "2", "notes"), eng)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		v, err := r.Find(name, "")
		if err != nil || v.Number != 3 || v.Config.Name != name {
			t.Errorf("model %s: found %+v, %v; want version 3", name, v, err)
		}
	}
	if err := r.Close(); err != nil || eng.open != 0 {
		t.Errorf("close: %v; %d models are still open", err, eng.open)
	}
}

func TestASettingWithoutEffectIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	p := pacer.New()
	defer p.Close()
	dir := write(t, map[string]string{"a": echoConfig + "version_policy { all { } }\noptimization { eager_batching: true }"}, "1", "2")
	r, err := Open(t.Context(), dir, Options{
		Engines: map[string]engine.Engine{"echo": &tracked{}}, Pacer: p,
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer closeRepository(t, r)
	got := log.String()
	want := "model=a at=" + filepath.Join(dir, "a", "config.pbtxt") + ":7 field=optimization.eager_batching"
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("logged %q, want one line with %q", got, want)
	}
}

func TestAModelFileIsEnough(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bare", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bare", "1", "model.onnx"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := pacer.New()
	defer p.Close()
	r, err := Open(t.Context(), dir, Options{Engines: map[string]engine.Engine{"onnxruntime": &tracked{}}, Pacer: p, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer closeRepository(t, r)
	if v, err := r.Find("bare", ""); err != nil || v.Config.Backend != "onnxruntime" {
		t.Errorf("found %+v, %v", v, err)
	}
}

func TestTheVersionPolicyPicksTheVersions(t *testing.T) {
	for policy, want := range map[string][]int64{
		"": {10},
		"version_policy { latest { num_versions: 2 } }":      {2, 10},
		"version_policy { all { } }":                         {1, 2, 10},
		"version_policy { specific { versions: [ 1, 7 ] } }": {1},
	} {
		r, err := openDir(t, write(t, map[string]string{"a": echoConfig + policy}, "1", "2", "10"), &tracked{})
		if err != nil {
			t.Errorf("%s: %v", policy, err)
			continue
		}
		if got := r.Versions("a"); !slices.Equal(got, want) {
			t.Errorf("%s: versions %v, want %v", policy, got, want)
		}
		closeRepository(t, r)
	}
}

func TestAnUnknownModelOrVersionIsNotFound(t *testing.T) {
	r, err := openDir(t, write(t, map[string]string{"a": echoConfig}, "1"), &tracked{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeRepository(t, r)
	for _, tt := range []struct{ name, version, text string }{
		{"b", "", "Request for unknown model: 'b' is not found"},
		{"a", "7", "Request for unknown model: 'a' version 7 is not found"},
		{"a", "x", "Request for unknown model: 'a' version x is not found"},
	} {
		if _, err := r.Find(tt.name, tt.version); infer.CodeOf(err) != infer.NotFound || err.Error() != tt.text {
			t.Errorf("%s %s: %v, want %q", tt.name, tt.version, err, tt.text)
		}
	}
}

func TestALoadThatFailsSaysWhyAndKeepsNothing(t *testing.T) {
	refused := func(models map[string]string, eng *tracked, versions []string, want ...string) {
		t.Helper()
		_, err := openDir(t, write(t, models, versions...), eng)
		if err == nil {
			t.Errorf("%v was loaded", models)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error is %q, want it to tell %q", err, w)
			}
		}
		if eng.open != 0 {
			t.Errorf("%d models are still open", eng.open)
		}
	}
	one := []string{"1"}
	refused(map[string]string{"a": echoConfig, "b": `name: "c"` + echoConfig}, &tracked{}, one, "b/config.pbtxt:1: name", `found "c"`, `expected "b"`)
	refused(map[string]string{"a": strings.Replace(echoConfig, `"echo"`, `"none"`, 1)}, &tracked{}, one, `a/config.pbtxt:2: backend: found "none"`, `["echo"]`)
	refused(map[string]string{"a": echoConfig}, &tracked{}, []string{"x"}, "found versions []")
	refused(map[string]string{"a": echoConfig}, &tracked{fail: errors.New("no weights")}, one, `model "a" version 1: no weights`)
	refused(map[string]string{"a": "max_batch_size: what"}, &tracked{}, one, "a/config.pbtxt")
	if _, err := openDir(t, filepath.Join(t.TempDir(), "nowhere"), &tracked{}); err == nil {
		t.Error("a directory was read that is not there")
	}
}
