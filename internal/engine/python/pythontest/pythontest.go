// Package pythontest finds an interpreter with numpy for tests of Python workers.
package pythontest

import (
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/internal/checkout"
)

// Interpreter returns the path of an interpreter that has numpy: the one that `make numpy`
// installs, or python3. If neither has numpy, it skips the test.
func Interpreter(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("Python models run on Linux only")
	}
	if found() == "" {
		t.Skip("no interpreter has numpy: run make numpy")
	}
	return found()
}

// found returns the path of an interpreter that has numpy, or "".
var found = sync.OnceValue(func() string {
	for _, path := range []string{checkout.File("bin", "worker", "bin", "python"), "python3"} {
		if exec.Command(path, "-c", "import numpy").Run() == nil {
			return path
		}
	}
	return ""
})
