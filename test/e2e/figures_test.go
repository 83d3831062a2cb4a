//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// figures are what was measured under some names, and kept in a file if the test is
// strict: those of the same binary are there again in the next run.
type figures struct {
	path  string
	under string
	of    map[string][]float64
}

type figure struct {
	Under string  `json:"under"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

func openFigures(t *testing.T, name string) *figures {
	t.Helper()
	binary, err := os.ReadFile(filepath.Join(root, "bin", "shoal"))
	if err != nil {
		t.Fatal(err)
	}
	f := &figures{
		path:  choose(filepath.Join(root, "bin", name+".jsonl"), filepath.Join(t.TempDir(), name)),
		under: fmt.Sprintf("%x", sha256.Sum256(binary))[:12], of: map[string][]float64{},
	}
	kept, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(kept) {
		var v figure
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%s: %v: delete it to begin anew", f.path, err)
		}
		if v.Under == f.under {
			f.of[v.Name] = append(f.of[v.Name], v.Value)
		}
	}
	return f
}

func (f *figures) add(t *testing.T, name string, value float64) {
	t.Helper()
	f.of[name] = append(f.of[name], value)
	line, err := json.Marshal(figure{f.under, name, value})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = file.Write(append(line, '\n'))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
