// Package onnxtest finds what tests of the ONNX engine need: the library, which may not be
// installed, and the small models in the engine's testdata.
package onnxtest

import (
	"os"
	"testing"

	"github.com/shoal-serving/shoal/internal/checkout"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
)

// Library returns the path of the ONNX Runtime library: the one in the environment, or the
// one in ./lib. If there is neither, it skips the test.
func Library(t testing.TB) string {
	t.Helper()
	if !onnxruntime.Built {
		t.Skip("Without cgo there is no binding to ONNX Runtime: install a C compiler.")
	}
	path := os.Getenv(onnxruntime.Variable)
	if path == "" {
		path = checkout.File("lib", "libonnxruntime.so.1")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("The ONNX Runtime library is not at %s: run `make deps`, or name it in %s.", path, onnxruntime.Variable)
	}
	return path
}

// Model returns the path of a test model, such as "mlp", whichever package is being tested.
func Model(name string) string {
	return checkout.File("internal", "engine", "onnx", "testdata", name+".onnx")
}
