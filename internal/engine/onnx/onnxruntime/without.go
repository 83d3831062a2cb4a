//go:build !cgo

package onnxruntime

import (
	"context"
	"errors"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// The binding of a program that is built without cgo: Open always fails, so the methods are
// never called.

var errWithout = errors.New("this program was built without cgo, so it cannot open ONNX Runtime; build it with a C compiler and CGO_ENABLED=1")

// Built reports whether the program was built with the binding.
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

// Providers returns the names of the library's execution providers.
func (*Runtime) Providers() []string { return nil }

// Close ends the library's threads.
func (*Runtime) Close() {}

// A Session is a loaded model.
type Session struct{ Inputs, Outputs []Port }

// Load reads a model from a file.
func (*Runtime) Load(context.Context, string, SessionOptions) (*Session, error) {
	return nil, errWithout
}

// Save writes a model as a session runs it.
func (*Runtime) Save(context.Context, string, string, string, SessionOptions) error {
	return errWithout
}

// Weights are what sessions of one model share.
type Weights struct{}

// NewWeights returns weights for sessions to share.
func (*Runtime) NewWeights([]Weight) (*Weights, error) { return nil, errWithout }

// Close frees the weights.
func (*Weights) Close() {}

// Close unloads the model.
func (*Session) Close() {}

// A Call runs a session.
type Call struct{}

// NewCall prepares runs.
func (*Session) NewCall([]string, []string, CallOptions) (*Call, error) { return nil, errWithout }

// Run runs the session once.
func (*Call) Run(_, out []tensor.Tensor) ([]tensor.Tensor, *buf.Buf, error) {
	return out, nil, errWithout
}

// Shrink makes the next run free memory.
func (*Call) Shrink() {}

// Terminate stops the current run.
func (*Call) Terminate(bool) {}

// Close frees the call.
func (*Call) Close() {}
