package onnxruntime_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
)

// The library keeps what it wants to report in files, so that without any there is
// nothing to be sent. It looks at its environment once for a process, hence one of
// its own, in which nothing says that it is a test or a build.
func TestTheLibraryKeepsNothingToReport(t *testing.T) {
	const inside = "SHOAL_TEST_SILENCE"
	if os.Getenv(inside) != "" {
		s := load(t, "mlp")
		call(t, s)
		return
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTheLibraryKeepsNothingToReport$")
	cmd.Env = []string{inside + "=1", onnxruntime.Variable + "=" + onnxtest.Library(t), "HOME=" + home, "TMPDIR=" + home, "ORT_DISABLE_TELEMETRY=0"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("the library wrote %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
