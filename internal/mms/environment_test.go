package mms

import (
	"archive/zip"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// interpreterWithPip returns python3 if it has pip, and otherwise skips the test: creating an
// environment with pip takes long.
func interpreterWithPip(t *testing.T) string {
	t.Helper()
	if exec.Command("python3", "-m", "pip", "--version").Run() != nil {
		t.Skip("python3 has no pip")
	}
	return "python3"
}

// writeWheel writes a package with one module, as pip installs it without an index.
func writeWheel(t *testing.T, dir string) string {
	t.Helper()
	const info = "surely_absent-1.0.dist-info/"
	name := "surely_absent-1.0-py3-none-any.whl"
	var entries []zip.FileHeader
	for _, file := range [][2]string{
		{"surely_absent.py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: surely-absent\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", ""},
	} {
		entries = append(entries, entry(file[0], file[1]))
	}
	writeArchive(t, filepath.Join(dir, name), entries...)
	return name
}

func TestRequirementsAreInstalledInAnEnvironmentOfTheirOwn(t *testing.T) {
	base := interpreterWithPip(t)
	dir := t.TempDir()
	requirements := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(requirements, []byte("--no-index\n./"+writeWheel(t, dir)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A module of the archive that pip would import by mistake.
	if err := os.WriteFile(filepath.Join(dir, "logging.py"), []byte("raise SystemExit(9)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	interpreter, err := environment{base, requirements, filepath.Join(t.TempDir(), "model", "environment")}.install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// pip is the base's, and the package is only the environment's.
	for python, want := range map[string]string{interpreter: "42", base: "No module named 'surely_absent'"} {
		out, _ := exec.Command(python, "-c", "import pip, surely_absent; print(surely_absent.answer)").CombinedOutput()
		if !strings.Contains(string(out), want) {
			t.Errorf("%s: found %s, want %s", python, out, want)
		}
	}
}

func TestRequirementsThatCannotBeInstalledSayWhy(t *testing.T) {
	base := interpreterWithPip(t)
	requirements := filepath.Join(t.TempDir(), "requirements.txt")
	if err := os.WriteFile(requirements, []byte("--no-index\nsurely-absent==1.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := environment{base, requirements, filepath.Join(t.TempDir(), "environment")}.install(t.Context())
	if err == nil || !strings.Contains(err.Error(), "No matching distribution found for surely-absent==1.0") {
		t.Errorf("found %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (environment{base, requirements, filepath.Join(t.TempDir(), "environment")}).install(cancelled); err == nil {
		t.Error("installed although nobody waits for it")
	}
	if _, err := (environment{"absent-python", requirements, filepath.Join(t.TempDir(), "environment")}).install(t.Context()); err == nil || !strings.Contains(err.Error(), "absent-python") {
		t.Errorf("found %v", err)
	}
}
