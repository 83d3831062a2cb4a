//go:build e2e

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestAFullDiskIsSaid gives the server a place for temporary files that is as
// good as full, and sends it a model.
func TestAFullDiskIsSaid(t *testing.T) {
	onnxtest.Library(t)
	tiny := t.TempDir()
	err := syscall.Mount("tmpfs", tiny, "tmpfs", 0, "size=4k")
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("Only root can mount a small disk.")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(tiny, 0); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", tiny)
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"good": {File: onnxtest.Model("mlp")}}), "--model-control-mode=explicit", "--load-model=good", "--allow-model-uploads")
	model, err := os.ReadFile(onnxtest.Model("spin"))
	if err != nil {
		t.Fatal(err)
	}
	sent := client.LoadOptions{Config: `{"backend":"onnxruntime","max_batch_size":8}`, Files: map[string][]byte{"1/model.onnx": model}}
	meanwhile(t, s, func() {
		servertest.Contains(t, "the answer", refusal(t, s, "sent", sent), "sent", "1/model.onnx", "no space left on device")
	})
	s.AwaitLog(tiny) // for the user who runs it
	if left, err := filepath.Glob(filepath.Join(tiny, "shoal-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
