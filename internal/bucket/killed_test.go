package bucket

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// killedCache is set in a process that is killed when it is about to give a file its name: it
// has the directory of the cache.
const killedCache = "SHOAL_TEST_KILLED_CACHE"

func TestAProcessThatIsKilledBeforeARenameLeavesNothing(t *testing.T) {
	content := strings.Repeat("weights", 100_000)
	s := newStore(t)
	s.put("model", content)
	if dir := os.Getenv(killedCache); dir != "" {
		beforeRename = func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) } // it never returns
		_, _, err := fetch(t, openCache(t, dir, 1<<30), s)
		t.Fatalf("the process goes on: %v", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), program, "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(), killedCache+"="+dir)
	out, err := child.CombinedOutput()
	if end, ok := errors.AsType[*exec.ExitError](err); !ok || end.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	files := func(part string) (sizes []int64) {
		entries, err := os.ReadDir(filepath.Join(dir, part))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, info.Size())
		}
		return sizes
	}
	if partial, blobs := files("partial"), files("blobs"); len(partial) != 1 || partial[0] != int64(len(content)) || len(blobs) != 0 {
		t.Errorf("killed with %v in partial and %v in blobs, want all of one file and none", partial, blobs)
	}
	c := openCache(t, dir, 1<<30)
	if partial := files("partial"); len(partial) > 0 {
		t.Errorf("the next process keeps %v", partial)
	}
	if tree := mustFetch(t, c, s, int64(len(content))); tree.content(t, "model") != content {
		t.Error("the file is not the object")
	}
}
