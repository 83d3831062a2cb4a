package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shoal runs a command line as main does, and returns what it prints and its exit status.
// Errors are printed last.
func shoal(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	status := execute(t.Context(), args, &out, &out)
	return out.String(), status
}

// directory writes files, with their paths as texts, and returns the directory.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serveAt runs serve with paths and flags for no time at all, and returns what it logged.
func serveAt(t *testing.T, args ...string) (log, printed string, status int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	status = execute(ctx, append([]string{"serve", "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--calibration-dir=", "--log-file", file}, args...), &out, &out)
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text), out.String(), status
}

func TestAPathThatDoesNotExistOpensNoPort(t *testing.T) {
	dir := directory(t, map[string]string{"model.onnx": ""})
	for path, want := range map[string]string{
		filepath.Join(dir, "modle.onnx"): "modle.onnx does not exist; did you mean " + filepath.Join(dir, "model.onnx") + "?",
		filepath.Join(dir, "a", "b"):     filepath.Join(dir, "a") + " does not exist, either",
		filepath.Join(dir, "xyz"):        "xyz does not exist; check the path",
		"ftp://host/models":              `ftp://host/models: ftp:// is not supported; download it, or mount it, and name the local directory`,
	} {
		for _, mode := range []string{"none", "poll", "explicit"} {
			log, printed, status := serveAt(t, path, "--model-control-mode="+mode)
			if status != 1 || strings.Contains(log, "listening") || !strings.Contains(printed, want) {
				t.Errorf("mode %s: status %d, %q, want %q; log:\n%s", mode, status, printed, want, log)
			}
		}
	}
}

func TestADirectoryWithoutModelsIsAnErrorUnlessModelsCanCome(t *testing.T) {
	empty, notes := t.TempDir(), directory(t, map[string]string{"a.txt": "", "b.txt": "", "c.txt": "", "d.txt": "", "e.txt": "", "f.txt": ""})
	for dir, want := range map[string]string{empty: "it is empty", notes: "it has a.txt, b.txt, c.txt, d.txt and 2 more"} {
		log, printed, status := serveAt(t, dir)
		if status != 1 || strings.Contains(log, "listening") || !strings.Contains(printed, "no models in "+dir+": "+want) {
			t.Errorf("mode none: status %d, %q; log:\n%s", status, printed, log)
		}
	}
	for _, flags := range [][]string{{"--model-control-mode=poll"}, {"--reload"}, {"--exit-on-error=false"}} {
		if log, printed, status := serveAt(t, append(flags, empty)...); status != 0 || !strings.Contains(log, `level=WARN msg="no models found"`) {
			t.Errorf("%v: status %d, %q; log:\n%s", flags, status, printed, log)
		}
	}
	if log, printed, status := serveAt(t, "--model-control-mode=explicit", empty); status != 0 || !strings.Contains(log, "level=WARN msg=\"no model is loaded until") {
		t.Errorf("mode explicit: status %d, %q; log:\n%s", status, printed, log)
	}
}

func TestCalibrationThatCannotBeKeptIsWarnedOf(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	log, _, _ := serveAt(t, "--calibration-dir=auto", "../../examples/seed-device")
	if !strings.Contains(log, `level=WARN msg="calibration results are not kept`) {
		t.Errorf("log:\n%s", log)
	}
	log, _, _ = serveAt(t, "--calibration-dir="+t.TempDir(), "../../examples/seed-device")
	if strings.Contains(log, "not kept") {
		t.Errorf("log:\n%s", log)
	}
}
