package tempdir

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// made makes a directory with a file in it.
func made(t *testing.T, kind string) *Dir {
	t.Helper()
	d, err := New(kind)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Path(), "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestADirectoryIsRemovedWithItsFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	d := made(t, "models")
	if info, err := os.Stat(d.Path()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it has mode %v (%v), want 0700", info.Mode().Perm(), err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	if exists(t, d.Path()) {
		t.Error("it still exists")
	}
}

// TestMain makes a directory and ends without removing it, if TestWhatAKilledProcessLeftIsRemoved
// says so: as if it were killed.
func TestMain(m *testing.M) {
	if kind := os.Getenv("TEMPDIR_OF_A_KILLED_PROCESS"); kind != "" {
		d, err := New(kind)
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(d.Path())
		return
	}
	m.Run() // whose status the program exits with
}

func TestWhatAKilledProcessLeftIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	left := func(kind string) string {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "TEMPDIR_OF_A_KILLED_PROCESS="+kind)
		path, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(string(path), "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return string(path)
	}
	used := made(t, "models")
	killed, other := left("models"), left("weights")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(os.TempDir(), "shoal-models-link")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	last := made(t, "models")
	for path, want := range map[string]bool{used.Path(): true, last.Path(): true, killed: false, other: true, link: true, elsewhere: true} {
		if exists(t, path) != want {
			t.Errorf("%s exists: %t, want %t", path, !want, want)
		}
	}
}

// Another process may sweep between the making of a directory and its lock.
func TestDirectoriesThatAreMadeAtOnceStay(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			for range 50 {
				d, err := New("models")
				if err != nil {
					t.Error(err)
					return
				}
				if !strings.HasPrefix(d.Path(), os.TempDir()) || !exists(t, d.Path()) {
					t.Errorf("%s does not exist", d.Path())
				}
				if err := d.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}
