// Package onnxruntime is a thin binding to the parts of ONNX Runtime's C API that a server
// needs. It is the only package here that uses cgo.
//
// The library is not linked: it is opened by its path when it is needed, so that everything
// builds and most tests run without it. A [Runtime] is the open library. A [Session] is a
// loaded model, which any number of goroutines may run. A [Call] is what one goroutine needs
// to run a session repeatedly with few allocations.
//
// The package handles tensors and their memory. Package onnx handles the configurations of
// models.
package onnxruntime

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/shoal-serving/shoal/tensor"
)

// Options configure a [Runtime].
type Options struct {
	// Library is the path of the library; see [Find].
	Library string

	// Log, if not nil, receives the library's log messages.
	Log *slog.Logger
}

// SessionOptions configure a [Session].
type SessionOptions struct {
	// Threads is the number of threads that compute one run. 0 means the caller's thread
	// only.
	Threads int

	// Parallel is the number of threads that run branches of the graph in parallel. 0
	// means one operator after the other.
	Parallel int

	// CUDA is the number of the GPU to run on. Nil means the CPU.
	CUDA *int
	// CUDAOptions are options of the CUDA provider by the library's keys, such as
	// "gpu_mem_limit". They have no effect on the CPU, and neither has TensorRT.
	CUDAOptions map[string]string
	// TensorRT are options of the TensorRT provider, such as "trt_fp16_enable". Operators
	// that it has run there, and the others with CUDA. Nil means that it is not used.
	TensorRT map[string]string

	// Weights, if not nil, are the weights of the model, which it shares with other
	// sessions.
	Weights *Weights

	// Operators are the paths of libraries with operators that the model uses.
	Operators []string

	// Optimise is the level of graph optimisation. The zero value enables all.
	Optimise Optimise

	NoArena   bool // disable the memory arena: allocate and free memory for each run
	NoPattern bool // disable memory patterns: do not plan a run's memory from the last run

	// Config are session options by the library's keys, such as
	// "session.intra_op.allow_spinning". Threads do not spin unless that is set here.
	Config map[string]string
}

// A Weight is a tensor that is part of a model.
type Weight struct {
	Name    string
	Element int // the library's and ONNX's number of the type
	Shape   []int64

	// Data is not in Go's memory: the library keeps its address.
	Data []byte
}

// CallOptions configure a [Call].
type CallOptions struct {
	// CanShrink enables [Call.Shrink]. The session must have an arena.
	CanShrink bool

	// Config are run options by the library's keys, such as
	// "memory.enable_memory_arena_shrinkage".
	Config map[string]string
}

// Optimise is a level of graph optimisation.
type Optimise uint8

// The levels of optimisation.
const (
	OptimiseAll Optimise = iota
	OptimiseExtended
	OptimiseBasic
	OptimiseNothing
)

// The library's values of the levels.
var optimiseLevels = [...]int{OptimiseAll: 99, OptimiseExtended: 2, OptimiseBasic: 1, OptimiseNothing: 0}

// A Port is an input or an output of a model.
type Port struct {
	Name string
	Type tensor.Type // Invalid if it is not a tensor, or one of an unsupported type
	Kind string      // the library's name of the type, such as "tensor(float)"

	AnyShape bool // the model does not define the number of dimensions
	Optional bool // a run may omit the input: the model has a value for it

	// Dims are its dimensions, with -1 for variable ones. A scalar has none.
	Dims []int64
	// Symbols are the names of variable dimensions, by index; "" for dimensions without a
	// name.
	Symbols []string
}

// A Code is the library's code of an [Error].
type Code int

// The library's codes.
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

// ErrCUDA is wrapped by an error of Load if the requested GPU cannot be used.
var ErrCUDA = errors.New("CUDA device")

// ErrTensorRT is wrapped by an error of Load if the TensorRT provider cannot be used.
var ErrTensorRT = errors.New("TensorRT on device")

// ErrOperators is wrapped by an error of Load if a library of operators cannot be used.
var ErrOperators = errors.New("library of custom operators")

// An Error is an error of the library.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("ONNX Runtime: %s: %s", e.Code, e.Text) }
