// Package onnxruntime is a thin binding to ONNX Runtime's C API: what a server
// needs of it, and the only package here that is written with cgo.
//
// The library is opened when it is needed, by its path, and not linked, so that
// everything builds and most tests run without it. A [Runtime] is the opened
// library, a [Session] a loaded model that any number of goroutines may run, and a
// [Call] what one of them needs to run it again and again with little to allocate.
//
// It knows tensors and their memory and nothing of models' configurations; that
// is for package onnx.
package onnxruntime

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/shoal-serving/shoal/tensor"
)

// Options say how the library is opened.
type Options struct {
	// Library is the path of the library; see [Find].
	Library string

	// Threads is how many threads compute together in the pool that sessions
	// share, that of the caller included. 0 means that there is no such pool.
	Threads int

	// Log gets what the library reports. Nil means nobody.
	Log *slog.Logger
}

// SessionOptions say how a model is loaded.
type SessionOptions struct {
	// Threads is how many threads compute one run. 0 means one, the caller's, or
	// those of the shared pool if there is one.
	Threads int

	// Parallel runs operators of one run side by side where the graph has
	// branches, on that many threads. 0 means one operator after the other.
	Parallel int

	// CUDA is the number of the GPU that computes. Nil means the CPU.
	CUDA *int

	// Optimise is how much the graph is rewritten. The zero value is all that the
	// library knows.
	Optimise Optimise

	NoArena   bool // ask the system for memory each time, instead of keeping it
	NoPattern bool // do not plan the memory of a run ahead from that of the last one

	// Config are further settings by the library's own keys, such as
	// "session.intra_op.allow_spinning". Threads do not spin unless it says so.
	Config map[string]string
}

// CallOptions are further settings.
type CallOptions struct {
	// CanShrink prepares for [Call.Shrink]. The session must have an arena.
	CanShrink bool

	// Config are settings of each run by the library's own keys, such as
	// "memory.enable_memory_arena_shrinkage".
	Config map[string]string
}

// Optimise is how much a model's graph is rewritten when it is loaded.
type Optimise uint8

// The levels of optimisation.
const (
	OptimiseAll Optimise = iota
	OptimiseExtended
	OptimiseBasic
	OptimiseNothing
)

// The library's own numbers for them.
var optimiseLevels = [...]int{OptimiseAll: 99, OptimiseExtended: 2, OptimiseBasic: 1, OptimiseNothing: 0}

// A Port is an input or an output of a model.
type Port struct {
	Name string
	Type tensor.Type // Invalid if it is no tensor, or one of elements that have no type here
	Kind string      // what it is in the library's words, such as "tensor(float)"

	AnyShape bool // the model does not say how many dimensions it has

	// Dims are its dimensions, with -1 for those of any size. A scalar has none.
	Dims []int64
	// Symbols are the names of the dimensions of any size, "" for the others and
	// for those without a name.
	Symbols []string
}

// A Code is the kind of an [Error], with the library's own numbers.
type Code int

// The codes of the library that a caller may want to tell apart.
const (
	Fail             Code = 1
	InvalidArgument  Code = 2
	NoSuchFile       Code = 3
	NoModel          Code = 4
	EngineError      Code = 5
	RuntimeException Code = 6
	InvalidProtobuf  Code = 7
	ModelLoaded      Code = 8
	NotImplemented   Code = 9
	InvalidGraph     Code = 10
	ProviderFail     Code = 11
	LoadCancelled    Code = 12
)

var codeNames = map[Code]string{
	Fail: "FAIL", InvalidArgument: "INVALID_ARGUMENT", NoSuchFile: "NO_SUCHFILE", NoModel: "NO_MODEL", EngineError: "ENGINE_ERROR",
	RuntimeException: "RUNTIME_EXCEPTION", InvalidProtobuf: "INVALID_PROTOBUF", ModelLoaded: "MODEL_LOADED", NotImplemented: "NOT_IMPLEMENTED",
	InvalidGraph: "INVALID_GRAPH", ProviderFail: "EP_FAIL", LoadCancelled: "MODEL_LOAD_CANCELED",
}

// String returns the library's name of the code.
func (c Code) String() string {
	if name, ok := codeNames[c]; ok {
		return name
	}
	return fmt.Sprintf("Code(%d)", int(c))
}

// ErrCUDA is in the chain of a Load's error if the GPU that was asked for cannot
// be used.
var ErrCUDA = errors.New("CUDA device")

// An Error is what the library answered instead of a result.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("ONNX Runtime: %s: %s", e.Code, e.Text) }
