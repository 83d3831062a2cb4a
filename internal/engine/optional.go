package engine

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A PerRequest is an instance that takes the requests of a batch as separate requests, and
// answers each with any number of rows, or with an error. The scheduler calls RunEach
// instead of Run, and does not join inputs.
type PerRequest interface {
	Instance
	// RunEach runs the requests of a batch, and writes the outcome to each Call. An error
	// applies to all of them. The caller owns the requests, as it owns the inputs of Run;
	// ctx has the same meaning as there.
	RunEach(ctx context.Context, calls []Call) error
}

// A Call is one request of a batch and its outcome.
type Call struct {
	// Request has been checked: its inputs are in the order of the configuration.
	Request *infer.Request

	// Opened receives the stream of responses, if the model sends responses instead of
	// returning outputs: at most once, while RunEach runs. The receiver closes the stream.
	// The model may send responses after RunEach has returned. Nil means that the request
	// does not support streams.
	Opened chan<- infer.ResponseStream

	// Left, if not nil, is true once the client has left, which may be before RunEach is called. It
	// is valid until RunEach returns. Nil means that the client stays.
	Left *atomic.Bool

	// Outputs are as in Run, with a reference count of their own. Outputs that the model
	// did not return are missing. Outputs is empty if Err is not nil.
	Outputs    Outputs
	Parameters []infer.Parameter // response parameters
	Err        error

	// Again means that the model wants the request to run once more, in a later batch, and has
	// returned no outputs. Only models with iterative sequences may ask for it.
	Again bool

	// Streaming means that the model answers over a stream. RunEach sets it when the model opens
	// one. The caller sets it if the model has opened one when the request ran before, or if
	// no client waits for the answer.
	Streaming bool
}

// A Sender is an instance whose model may send any number of responses to a request, at any
// time. Decoupled models need one.
type Sender interface {
	PerRequest
	// Left reports that the client of a request in a batch has left, once, after Left of its Call
	// has become true. It may be called at any time, also before the batch has begun and between
	// two runs of it.
	Left(req *infer.Request)
}

// A ModelCaller lets models run requests on other models, and load and unload them.
type ModelCaller interface {
	// Call runs req, as Infer of a kserve.Backend does. It also works while the server
	// drains, because in-flight requests of clients may need it.
	Call(ctx context.Context, req *infer.Request, resp *infer.Response) error
	// ModelReady reports whether a version of a model takes requests. Version "" means
	// any.
	ModelReady(model, version string) bool
	// LoadModel loads a model, or reloads a changed one, if the model control mode allows
	// it. config, if not "", and files, if any, replace those on disk; the callee owns them.
	LoadModel(ctx context.Context, model, config string, files map[string][]byte) error
	// UnloadModel unloads a model. It returns before the model has drained.
	UnloadModel(ctx context.Context, model string) error
}

// A DelegateRunner is an instance whose model may call other models, and takes the rows of a batch
// joined, so that it does not see the requests.
type DelegateRunner interface {
	// RunFor is Run, and names the caller whose rights the model's calls have: that of all requests
	// of the batch together. It is nil if one has none, which may do nothing if callers are
	// authenticated.
	RunFor(ctx context.Context, caller *access.Caller, in []tensor.Tensor, out *Outputs) error
}

// A HealthChecker is an instance whose model has a readiness check.
type HealthChecker interface {
	Instance
	// Ready runs the check. It may be called at any time, and takes seconds at most. A
	// model that does not answer is not ready.
	Ready() bool
}

// A Restartable is an instance that can die and be restarted, such as a process. While it is
// dead, its batches fail at once, with ErrDied in the error chain.
type Restartable interface {
	Instance
	// Died returns a channel that is closed when the instance dies. Each restart creates a
	// new channel.
	Died() <-chan struct{}
	// Restart makes one attempt to start a dead instance, after a delay if it has died
	// often. After an error it is still dead, and Restart may be called again. Only the
	// goroutine that calls Run calls it.
	Restart(ctx context.Context) error
	// Failing returns why a dead instance is not expected to be back soon: the last attempt
	// to start it failed, or it dies whenever it is started. It returns nil if the instance
	// is alive, or may be back at any moment. RetryAfter of the error is the time until the
	// next attempt. Failing does not block. Only the goroutine that calls Run calls it.
	Failing() *infer.Error
}

// An Aborter is an instance whose model may not return from a run, such as a process.
type Aborter interface {
	// Abort makes the run in progress and all later ones fail. It may be called at any time, and
	// does not wait. The instance must be closed then.
	Abort(reason string)
}

// ErrDied is in the error chain of a Run if the instance died during it, or was dead.
var ErrDied = errors.New("the instance died")

// A RetryPolicy is a model whose requests may have side effects. Models without it may be retried
// and measured.
type RetryPolicy interface {
	// Retries reports whether parts of a failed batch may be run again, to find the bad
	// requests, and whether a batch whose instance died may be run again.
	Retries() (inParts, afterDeath bool)
	// Rehearses reports whether the model may be run with synthetic inputs, to measure it.
	Rehearses() bool
}
