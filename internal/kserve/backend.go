package kserve

import (
	"context"
	"sync"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// A Backend answers inference requests: a server with its own models, or a
// gateway that asks others.
type Backend interface {
	// Infer runs req and fills in resp, which the caller owns, and releases if the
	// error is nil. Its times say how far the request came also if there is one.
	// Nothing touches resp after Infer has returned, whereas req may still be read;
	// see there.
	Infer(ctx context.Context, req *infer.Request, resp *infer.Response) error
}

// Infer runs req with backend and words its error; see [Worded].
func Infer(ctx context.Context, backend Backend, req *infer.Request, resp *infer.Response) error {
	return Worded(backend.Infer(ctx, req, resp), req)
}

var responses = sync.Pool{New: func() any { return new(infer.Response) }}

// GetResponse returns a pooled response for one request. Infer overwrites what an earlier
// request left in it. The caller returns it with [PutResponse].
func GetResponse() *infer.Response { return responses.Get().(*infer.Response) }

// PutResponse returns resp to the pool. The caller has released it, unless Infer
// returned an error.
func PutResponse(resp *infer.Response) { responses.Put(resp) }

// A Catalog tells which models there are, whether they can be asked, and what
// they have done.
type Catalog interface {
	// Ready reports whether the server takes requests: all its models are
	// loaded and it is not shutting down.
	Ready() bool
	// ModelReady reports whether a version of a model takes requests. Version
	// "" means any.
	ModelReady(model, version string) bool
	// Model describes a model. Version "" means the one its policy serves.
	Model(model, version string) (*catalog.Metadata, error)
	// Config returns the configuration that is in effect for a version of a
	// model, complete. Version "" means the one its policy serves. The caller
	// does not change it.
	Config(model, version string) (*modelconfig.Config, error)
	// Statistics returns what was counted for the versions that are named: model
	// "" means all models, version "" all its versions. If there are none, it returns
	// none.
	Statistics(model, version string) []catalog.Statistics
}

// A Stopper is a Catalog that tells when its server takes no more requests, so that
// nobody is kept who only watches.
type Stopper interface {
	// Stopping is closed then.
	Stopping() <-chan struct{}
}

// An Explainer is a Catalog that tells why its models are run as they are.
type Explainer interface {
	// Explain tells it of a version of a model. Version "" means the one its policy
	// serves. It is Shoal's own: no other server has it.
	Explain(model, version string) (*explain.Model, error)
}

// A Control changes which models are loaded, where the server was started so
// that clients may. Names of models are the client's word: they may be none, or
// paths. Errors are for the client who asked: they say what is wrong with a
// model, and where.
type Control interface {
	// Index lists every model that the repository has or had, and the state of
	// its versions. Ready leaves out those that take no requests.
	Index(ready bool) []catalog.IndexEntry
	// Load loads a model, or what has changed of one that is loaded, and returns
	// when it takes requests. If it fails, what was loaded before stays.
	Load(ctx context.Context, model string, opts catalog.LoadOptions) error
	// Unload takes a model away. One that is not loaded is no error.
	Unload(ctx context.Context, model string, opts catalog.UnloadOptions) error
}
