// Package engine defines the interface between the server and the engines that run models.
//
// An [Engine] loads a version of a model. The [Model] that it returns opens one instance for
// each batch that runs at the same time, and an [Instance] runs one batch after the other.
// Optional features are small interfaces of their own, which the server checks for.
//
// Package enginetest has the suite that every engine passes.
package engine

import (
	"context"
	"errors"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// ErrExhausted is in the error chain of a Run that ran out of memory. The scheduler does not
// retry such a batch in parts.
var ErrExhausted = errors.New("out of memory")

// An Engine loads models. Its methods are safe for concurrent use.
type Engine interface {
	// Load loads a version of a model. It may take minutes, and returns when ctx ends. The
	// caller closes the model.
	Load(ctx context.Context, src Source) (Model, error)
}

// A Source says what to load.
type Source struct {
	// Config is the configuration. Load completes missing inputs and outputs from the
	// model file, if the file describes them.
	Config  *modelconfig.Config
	Version int64
	Dir     string // the version's directory

	// Bare means that the model is a single file, and Dir may contain unrelated files.
	Bare bool

	// Threads is the number of threads of a batch, if the engine is a [Threader] and the
	// configuration has no number. 0 means that the engine chooses.
	Threads int

	// ExclusiveThreads is the number of threads of an exclusive batch, if more than
	// Threads; see [ExclusiveRunner]. An engine
	// may need more memory for it.
	ExclusiveThreads int

	// RestartTimeout limits how long an instance that died may take to start again; see
	// [Restartable]. 0 means no limit.
	RestartTimeout time.Duration
}

// A Threader is an engine that can run a batch on several threads.
type Threader interface {
	// AnyThreads reports whether the configuration leaves the number of threads open.
	AnyThreads(cfg *modelconfig.Config) bool
}

// A DeviceSharer is an engine whose models may name the device that they run on. Models of
// the same device take turns.
type DeviceSharer interface {
	// SharedDevice returns the name of the device; empty if the model does not name one.
	SharedDevice(cfg *modelconfig.Config) string
}

// A LibraryVersioner is an engine whose speed depends on the version of a library.
type LibraryVersioner interface {
	// LibraryVersion returns that version. A model must have been loaded before.
	LibraryVersion() string
}

// A Model is a loaded version of a model. Its instances share what they can, such as the
// weights.
type Model interface {
	// Instance opens an instance. The caller closes it.
	Instance(ctx context.Context) (Instance, error)
	// Close releases the model. All its instances must be closed.
	Close() error
}

// An Instance runs batches, one at a time. The caller does not call Run and Close
// concurrently.
type Instance interface {
	// Run runs one batch. Inputs are in the order of the configuration, followed by its
	// batch inputs, in the shapes of [modelconfig.Config.ModelShape], joined along the batch
	// dimension. Outputs have the same form and the same number of rows.
	//
	// The caller owns the inputs: Run does not change them, and does not keep them after it
	// returns. Run writes the outputs to out; see [Outputs]. When ctx ends, Run returns its
	// error as soon as it can.
	Run(ctx context.Context, in []tensor.Tensor, out *Outputs) error
	Close() error
}

// An ExclusiveRunner is an instance that can run a batch on more threads while no other batch
// runs on the device.
type ExclusiveRunner interface {
	Instance
	// RunExclusive is Run for an exclusive batch. The caller decides at the start of a batch
	// whether it is exclusive; it keeps its threads when another batch starts.
	RunExclusive(ctx context.Context, in []tensor.Tensor, out *Outputs) error
}

// Outputs are what a batch produced.
type Outputs struct {
	// Tensors is the caller's slice, which Run appends to. Names and shapes in it may belong
	// to the instance, and are valid until its next Run.
	Tensors []tensor.Tensor

	// Memory holds the tensors' data, with one reference, which the caller owns. It may
	// outlive the instance. Nil means that the data are garbage collected.
	Memory *buf.Buf
}
