package onnx

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

func TestAFileDeclaresWhatTheLibraryReports(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	compared := 0
	files, _ := filepath.Glob("testdata/*.onnx") // the pattern is valid
	for _, file := range files {
		s, err := r.Load(t.Context(), file, onnxruntime.SessionOptions{})
		if err != nil {
			continue // its operators are in another library
		}
		inputs, outputs, err := Signature(file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		s.Inputs = slices.DeleteFunc(s.Inputs, func(p onnxruntime.Port) bool { return p.Optional }) // weights that a request may replace
		same := func(t modelconfig.Tensor, p onnxruntime.Port) bool {
			return t.Name == p.Name && t.Type == p.Type && slices.Equal(t.Dims, p.Dims)
		}
		if !slices.EqualFunc(inputs, s.Inputs, same) || !slices.EqualFunc(outputs, s.Outputs, same) {
			t.Errorf("%s: found %+v → %+v, want %+v → %+v", file, inputs, outputs, s.Inputs, s.Outputs)
		}
		compared++
		s.Close()
	}
	if compared < 15 {
		t.Errorf("compared only %d files", compared)
	}
}

func TestTheSignatureOfAFileThatIsNoModelIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.onnx")
	whole, err := os.ReadFile("testdata/mlp.onnx")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{nil, []byte("x"), whole[:len(whole)/2]} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if inputs, outputs, err := Signature(file); err == nil {
			t.Errorf("%d bytes: found %+v → %+v", len(text), inputs, outputs)
		}
	}
}
