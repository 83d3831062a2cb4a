package replace_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-serving/shoal/internal/replace"
)

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	dir, parts := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "f")
	for _, in := range []string{"", parts} {
		for _, content := range []string{"old", "new"} {
			if err := replace.File(file, []byte(content), in); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != content {
				t.Errorf("%q, %v, want %q", got, err, content)
			}
		}
	}
	if about, err := os.Stat(file); err != nil || about.Mode() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", about.Mode(), err)
	}
	for _, in := range []string{"", parts} {
		if err := replace.File(filepath.Join(dir, "f", "below"), nil, in); err == nil {
			t.Error("a file below a file was written")
		}
	}
	for at, want := range map[string]int{dir: 1, parts: 0} {
		if left, err := os.ReadDir(at); err != nil || len(left) != want {
			t.Errorf("%v left, %v, want %d files", left, err, want)
		}
	}
}
