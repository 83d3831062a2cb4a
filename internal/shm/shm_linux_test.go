package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// create creates a shared memory object, and returns its name and its path.
func create(t *testing.T, data []byte) (name, path string) {
	t.Helper()
	file, err := os.CreateTemp(dir, "shoal-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file.Name()) })
	if _, err := file.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return "/" + filepath.Base(file.Name()), file.Name()
}

func openTest(t *testing.T, name string) *Object {
	t.Helper()
	o, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func TestAnObjectIsReadAndWritten(t *testing.T) {
	name, path := create(t, []byte("0123456789"))
	for _, name := range []string{name, strings.TrimPrefix(name, "/")} {
		o := openTest(t, name)
		p := make([]byte, 3)
		if err := o.Read(p, 2); err != nil || string(p) != "234" {
			t.Errorf("%s: read %q: %v", name, p, err)
		}
		if err := o.Write([]byte("xyz"), 7); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "0123456xyz" {
			t.Errorf("%s: %q after a write: %v", name, b, err)
		}
	}
}

func TestNamesAreOneComponentOfAPath(t *testing.T) {
	for _, name := range []string{"", "/", "//", "//a", "a/b", "/a/b", "/../etc/passwd", "..", "/..", ".", "/.", "a\x00b", "/sem.lock", strings.Repeat("a", 256)} {
		if _, err := Open(name); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v, want that the name is invalid", name, err)
		}
	}
	for _, name := range []string{"a", "/a", "/..a", "/a.b c", "/" + strings.Repeat("a", 255)} {
		if _, err := FileName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestOnlySharedMemoryIsOpened(t *testing.T) {
	_, target := create(t, []byte("secret"))
	link := target + "-link"
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(link) })
	if _, err := Open(filepath.Base(link)); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symbolic link: %v, want ELOOP", err)
	}
	pipe := target + "-pipe"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(pipe) })
	if _, err := Open(filepath.Base(pipe)); !errors.Is(err, ErrKind) {
		t.Errorf("a pipe: %v, want %v", err, ErrKind)
	}
	folder := target + "-folder"
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(folder) })
	if _, err := Open(filepath.Base(folder)); err == nil {
		t.Error("a directory was opened")
	}
	if _, err := Open("/shoal-test-missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an object that does not exist: %v", err)
	}
}

func TestATruncatedObjectIsAnError(t *testing.T) {
	name, path := create(t, make([]byte, 100))
	o := openTest(t, name)
	if err := os.Truncate(path, 50); err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct{ offset, size int64 }{{0, 51}, {49, 2}, {50, 1}, {90, 10}} {
		if err := o.Read(make([]byte, at.size), at.offset); !errors.Is(err, ErrTruncated) {
			t.Errorf("read %d bytes at %d: %v, want %v", at.size, at.offset, err, ErrTruncated)
		}
		if err := o.Write(make([]byte, at.size), at.offset); !errors.Is(err, ErrTruncated) {
			t.Errorf("write %d bytes at %d: %v, want %v", at.size, at.offset, err, ErrTruncated)
		}
	}
	if size, err := o.Size(); err != nil || size != 50 {
		t.Errorf("%d bytes after the writes: %v, want 50", size, err)
	}
	if err := o.Read(make([]byte, 50), 0); err != nil {
		t.Errorf("read what is left: %v", err)
	}
}

// A client that truncates its object again and again while it is read causes errors, and
// nothing else. A mapping would kill this test with SIGBUS.
func TestAnObjectMayBeTruncatedWhileItIsRead(t *testing.T) {
	const size = 1 << 20
	want := bytes.Repeat([]byte{7}, size)
	name, path := create(t, want)
	o := openTest(t, name)
	done := make(chan struct{})
	var truncations int
	var truncating sync.WaitGroup
	truncating.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				truncations++
				if os.Truncate(path, 0) != nil || os.WriteFile(path, want, 0o600) != nil {
					panic("cannot truncate " + path)
				}
			}
		}
	})
	var whole, short int
	p := make([]byte, size)
	for range 10_000 {
		switch err := o.Read(p, 0); {
		case err == nil:
			whole++
		case errors.Is(err, ErrTruncated):
			short++
		default:
			t.Error(err)
		}
		if short > 10 {
			break
		}
	}
	close(done)
	truncating.Wait()
	if short == 0 || truncations == 0 {
		t.Errorf("no truncation was noticed: %d whole reads, %d short ones, %d truncations", whole, short, truncations)
	}
	t.Logf("%d whole reads, %d short ones, %d truncations", whole, short, truncations)
}
