//go:build !cgo

package onnxruntime

import (
	"context"
	"errors"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// What a program without cgo has in place of the binding: it opens nothing, so
// that nothing below Open is ever reached.

var errWithout = errors.New("this program was built without cgo, so it cannot open ONNX Runtime; build it with a C compiler and CGO_ENABLED=1")

// Built says whether the program has the binding.
const Built = false

// A Runtime is the opened library.
type Runtime struct{}

// Open opens the library.
func Open(Options) (*Runtime, error) { return nil, errWithout }

// Version returns the version of the library.
func (*Runtime) Version() string { return "" }

// Library returns the path of the library.
func (*Runtime) Library() string { return "" }

// CUDA reports whether the library was built to compute on NVIDIA's GPUs.
func (*Runtime) CUDA() bool { return false }

// Close ends the library's threads.
func (*Runtime) Close() {}

// A Session is a loaded model.
type Session struct{ Inputs, Outputs []Port }

// Load reads a model from a file.
func (*Runtime) Load(context.Context, string, SessionOptions) (*Session, error) {
	return nil, errWithout
}

// Close unloads the model.
func (*Session) Close() {}

// A Call runs a session.
type Call struct{}

// NewCall prepares runs.
func (*Session) NewCall([]string, []string, CallOptions) (*Call, error) { return nil, errWithout }

// Run computes once.
func (*Call) Run(_, out []tensor.Tensor) ([]tensor.Tensor, *buf.Buf, error) {
	return out, nil, errWithout
}

// Shrink lets the next run give memory back.
func (*Call) Shrink() {}

// Terminate stops the run that is under way.
func (*Call) Terminate(bool) {}

// Close gives back what the call holds.
func (*Call) Close() {}
