// Package pythontest finds an interpreter with numpy for tests of Python workers.
package pythontest

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
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
	_, file, _, _ := runtime.Caller(0)
	brought := filepath.Join(filepath.Dir(file), "..", "..", "..", "..", "bin", "worker", "bin", "python")
	for _, path := range []string{brought, "python3"} {
		if exec.Command(path, "-c", "import numpy").Run() == nil {
			return path
		}
	}
	return ""
})
