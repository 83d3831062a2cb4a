//go:build e2e

package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
)

func TestAMachineWithoutAGPUHasAReport(t *testing.T) {
	onnxtest.Library(t) // skips without one
	tool, err := filepath.Abs("../../tools/gpu-check")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tool).CombinedOutput()
	report := string(out)
	if err == nil {
		t.Skip("There is a GPU.\n" + report)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Fatalf("%v, want status 1\n%s", err, report)
	}
	for _, want := range []string{"## GPU report\n", "| ONNX Runtime | 1.", "| `KIND_CPU` | ok |\n", "| `KIND_GPU` | FAILED: ", "has no CUDA provider", "| `gpus: [ 0, 1 ]` | skipped: needs `KIND_GPU` |\n"} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in\n%s", want, report)
		}
	}
}
