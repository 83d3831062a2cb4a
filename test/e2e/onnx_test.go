//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

func TestTheONNXExampleComputes(t *testing.T) {
	onnxtest.Library(t)
	addAndSubtract(t, servertest.Start(t, filepath.Join(servertest.Root, "examples", "onnx")))
}

func TestAnONNXFileAloneIsServed(t *testing.T) {
	onnxtest.Library(t)
	dir := filepath.Join(t.TempDir(), "models")
	if err := os.CopyFS(filepath.Join(dir, "add_sub", "1"), os.DirFS(filepath.Join(servertest.Root, "examples", "onnx", "add_sub", "1"))); err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, dir)
	addAndSubtract(t, s)
	if _, metadata := s.Get("/v2/models/add_sub"); !strings.Contains(metadata, `{"name":"INPUT0","datatype":"FP32","shape":[-1,16]}`) {
		t.Errorf("metadata is %s", metadata)
	}
}

// addAndSubtract asks the model of the example for 3 + 1 and 3 - 1.
func addAndSubtract(t *testing.T, s *servertest.Server) {
	t.Helper()
	row := func(name string, v float32) client.Tensor {
		return client.NewTensor(name, slices.Repeat([]float32{v}, 16), 1, 16)
	}
	resp, err := s.Web().Infer(t.Context(), &client.Request{Model: "add_sub", Inputs: []client.Tensor{row("INPUT0", 3), row("INPUT1", 1)}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{4, 2} {
		got, err := client.Values[float32](&resp.Outputs[i])
		if err != nil || !slices.Equal(got, slices.Repeat([]float32{want}, 16)) {
			t.Errorf("output %d is %v, %v, want %v sixteen times", i, got, err, want)
		}
	}
}
