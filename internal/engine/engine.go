// Package engine is the seam between the server and whatever computes.
//
// Three steps make the life of a model. An [Engine] loads a version of it once,
// the [Model] that it returns opens as many instances as batches shall run at the
// same time, and an [Instance] runs one batch after the other. The server needs no
// more than this; what only some engines can do is a small interface of its own
// that the server looks for.
//
// Package enginetest has the suite that every engine passes.
package engine

import (
	"context"
	"errors"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// ErrExhausted is in the chain of a Run's error if memory ran out. Trying again
// with less would only take longer to fail.
var ErrExhausted = errors.New("out of memory")

// An Engine loads models. Its methods may be called concurrently.
type Engine interface {
	// Load reads a version of a model. It may take minutes, and gives up when ctx
	// ends. The caller closes the model.
	Load(ctx context.Context, src Source) (Model, error)
}

// A Source says what to load.
type Source struct {
	// Config is what is known of the model. Where it leaves inputs and outputs to
	// the model, Load completes it, if the model's own file tells.
	Config  *modelconfig.Config
	Version int64
	Dir     string // the version's directory

	// Bare means that the model is only a file, and Dir that of the file, in which
	// others may be.
	Bare bool

	// Threads is how many compute one batch, if the configuration does not say and
	// the engine is a [Threader]. 0 means that the engine chooses.
	Threads int

	// ExclusiveThreads is how many compute an exclusive batch, if that is to be more
	// than Threads; see [ExclusiveRunner]. It costs the memory of the model once more.
	ExclusiveThreads int
}

// A Threader is an engine that can let several threads compute one batch.
type Threader interface {
	// AnyThreads reports whether a configuration leaves to others how many.
	AnyThreads(cfg *modelconfig.Config) bool
}

// A Releaser is an engine whose speed may change with the release of a library.
type Releaser interface {
	// Release returns it. It may be asked once a model has been loaded.
	Release() string
}

// A Model is a loaded version of a model. Its instances share what they can,
// such as its weights.
type Model interface {
	// Instance opens a place where batches run. The caller closes it.
	Instance(ctx context.Context) (Instance, error)
	// Close gives back what the model holds. All its instances have been closed.
	Close() error
}

// An Instance runs batches, one at a time. The caller does not call Run and Close
// concurrently.
type Instance interface {
	// Run computes one batch: inputs in the order of the model's configuration, then
	// its batch inputs, in the shapes of [modelconfig.Config.ModelShape], joined
	// along the batch dimension, and outputs likewise, with as many rows.
	//
	// The inputs belong to the caller: Run does not change them, nor keep them
	// after it returns. The outputs are written to out; see there. When ctx ends,
	// nobody waits for the outputs any more, and Run returns ctx's error as soon
	// as it can.
	Run(ctx context.Context, in []tensor.Tensor, out *Outputs) error
	Close() error
}

// An ExclusiveRunner is an instance that may run a batch on more threads while it has
// the device to itself.
type ExclusiveRunner interface {
	Instance
	// RunExclusive is Run for an exclusive batch. The caller decides which batches are,
	// when they begin; one keeps its threads when another begins beside it.
	RunExclusive(ctx context.Context, in []tensor.Tensor, out *Outputs) error
}

// Outputs are what a batch produced.
type Outputs struct {
	// Tensors is the caller's slice, for Run to append to and to use again next
	// time. Names and shapes in it may belong to the instance, and are good until
	// its next Run.
	Tensors []tensor.Tensor

	// Memory is what the tensors' data are views of, with one count, which is the
	// caller's. It outlives the instance. Nil means that the data are left to the
	// garbage collector.
	Memory *buf.Buf
}
