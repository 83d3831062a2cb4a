package engine

import (
	"context"
	"errors"

	"github.com/shoal-serving/shoal/internal/infer"
)

// An Each is an instance whose model takes the requests of a batch one by one, as
// they came, and answers each by itself: with as many rows as it likes, or with an
// error. What runs such an instance calls RunEach, and joins nothing.
type Each interface {
	Instance
	// RunEach computes the requests of one batch together, and writes to each Call
	// what became of it. An error is that of all of them. The requests belong to the
	// caller, as inputs do in Run, and ctx is as there.
	RunEach(ctx context.Context, calls []Call) error
}

// A Call is one request of a batch, and what became of it.
type Call struct {
	// Request has been checked: its inputs are in the order of the configuration.
	Request *infer.Request

	// Opened takes where the responses come from, if the model sends them instead of
	// giving outputs: once at most, while RunEach runs. Who receives it closes it. The
	// model may send after RunEach has returned, too. Nil means that nobody would look.
	Opened chan<- infer.More

	// Outputs are as in Run, with a count of their own, except that those may be
	// missing that the model did not give. They are empty if Err is not nil.
	Outputs    Outputs
	Parameters []infer.Parameter // that the model adds to its answer
	Err        error
}

// A Sender is an instance whose model may send its responses to a request, as many as
// it likes and when it likes. Models that are configured as decoupled need one.
type Sender interface {
	Each
	// Left says that nobody waits any more for one request of the batch that runs. It
	// may be called at any time.
	Left(req *infer.Request)
}

// A Caller does what models ask of their server: it runs requests, and loads and
// unloads models.
type Caller interface {
	// Call is as kserve.Backend has it for requests of clients, except that it goes on
	// while the server stops: in-flight requests of clients may need it.
	Call(ctx context.Context, req *infer.Request, resp *infer.Response) error
	// ModelReady reports whether a version of a model takes requests. Version "" means
	// any.
	ModelReady(model, version string) bool
	// LoadModel loads a model, or what has changed of it, as a client may where the
	// server was started so. Config, if not "", and files, if there are any, are taken
	// in place of those of the model's directory; they belong to the callee.
	LoadModel(ctx context.Context, model, config string, files map[string][]byte) error
	// UnloadModel takes a model away. It returns before the model has run what it has.
	UnloadModel(ctx context.Context, model string) error
}

// A Judge is an instance whose model may say itself whether it is ready.
type Judge interface {
	Instance
	// Ready asks it. It may be called at any time, and takes some seconds at most. What
	// does not answer is not ready.
	Ready() bool
}

// A Mortal is an instance that can die, such as one that is a process, and be
// brought back. While it is dead its batches fail at once, with ErrDied in the
// chain.
type Mortal interface {
	Instance
	// Died returns a channel that is closed when the instance dies. After Revive
	// there is another.
	Died() <-chan struct{}
	// Revive makes one attempt to start a dead instance, after a pause if it has died
	// often. An error means that it is still dead, and that Revive may be called again.
	// The goroutine that calls Run calls it.
	Revive(ctx context.Context) error
	// Failing returns why a dead instance is not expected back soon: the last attempt to
	// start it failed, or it dies whenever it is started. It returns nil if the instance
	// lives, or may be back at any moment. RetryAfter of the error is when the next
	// attempt is due. It does not block. The goroutine that calls Run calls it.
	Failing() *infer.Error
}

// ErrDied is in the chain of a Run's error if the instance died of it, or was dead.
var ErrDied = errors.New("the instance died")

// A Careful is a model that says what may be asked of it beside what clients ask.
// Others may be asked anything without harm.
type Careful interface {
	// Retries says whether parts of a batch that failed may be run again, to find
	// those that are the reason, and whether a batch whose instance died may be run
	// once more.
	Retries() (apart, died bool)
	// Rehearses says whether it may be run with inputs that are made up, to see how
	// long that takes.
	Rehearses() bool
}
