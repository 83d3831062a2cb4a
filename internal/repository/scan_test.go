package repository

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-serving/shoal/internal/tempdir"
)

func TestWhatPythonLeavesBehindIsNoChangeOfAModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	write := func(file string) {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	current := func() fingerprint {
		t.Helper()
		f, err := scanEntry(dir)
		if err != nil {
			t.Fatal(err)
		}
		return f.whole()
	}
	write("1/model.py")
	before := current()
	for _, file := range []string{"1/__pycache__/model.pyc", "venv/bin/python", ".venv/lib/numpy.py"} {
		write(file)
		if current() != before {
			t.Errorf("%s changes the model", file)
		}
	}
	write("1/helper.py")
	if current() == before {
		t.Error("a file of the model's own changes nothing")
	}
}

func TestFilesThatAClientSentStayForThoseWhoReadThemAgain(t *testing.T) {
	for _, rereads := range []bool{false, true} {
		t.Setenv("TMPDIR", t.TempDir())
		dir, err := tempdir.New("upload")
		if err != nil {
			t.Fatal(err)
		}
		there := func() bool {
			_, err := os.Stat(dir.Path())
			return err == nil
		}
		sent := newUpload(dir)
		release := func() {}
		if rereads {
			release = sent.keep()
		}
		sent.release()
		if there() != rereads {
			t.Errorf("after the load the files are there: %v, want %v", there(), rereads)
		}
		release()
		if there() {
			t.Error("the files are left behind")
		}
	}
}
