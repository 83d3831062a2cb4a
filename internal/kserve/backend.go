package kserve

import (
	"context"
	"sync"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// A Backend answers inference requests. It is a server with models of its own, or a
// gateway that forwards to others.
type Backend interface {
	// Infer runs req and fills in resp. The caller owns resp, and must release it if the error
	// is nil. resp.Times is set even if Infer returns an error. Infer does not touch resp
	// after it returns, but may still read req; see [infer.Request].
	Infer(ctx context.Context, req *infer.Request, resp *infer.Response) error
}

// Infer runs req with backend and converts its error with [TritonError]. charge has what the
// outputs will probably take while it runs, and what they take afterwards.
func Infer(ctx context.Context, backend Backend, req *infer.Request, resp *infer.Response, charge *budget.Charge) error {
	if !charge.Reserve(infer.DataSize(req.Inputs)) {
		return ErrOverBudget
	}
	if err := backend.Infer(ctx, req, resp); err != nil {
		return TritonError(err, req)
	}
	if resp.Stream != nil {
		return nil // its responses have outputs
	}
	return Settle(req, resp, charge)
}

// Settle charges the outputs of a response to req. If they do not fit, it releases them.
func Settle(req *infer.Request, resp *infer.Response, charge *budget.Charge) error {
	if !charge.Settle(infer.DataSize(resp.Outputs)) {
		resp.Release()
		return ResponseOverBudget(req)
	}
	return nil
}

var responses = sync.Pool{New: func() any { return new(infer.Response) }}

// GetResponse returns a pooled response for one request. Infer overwrites what an earlier
// request left in it. The caller returns it with [PutResponse].
func GetResponse() *infer.Response { return responses.Get().(*infer.Response) }

// PutResponse returns resp to the pool. The caller has released it, unless Infer
// returned an error.
func PutResponse(resp *infer.Response) {
	// A backend may only set what differs from a new response.
	resp.Stream, resp.Last, resp.Empty = nil, false, false
	responses.Put(resp)
}

// An Authorizer decides what the caller of a context may do. It is the same for every
// protocol. Errors have the codes Unauthenticated and Forbidden.
type Authorizer interface {
	// Authorize returns an error if the caller may not do the action. Model is "" for the server
	// as a whole.
	Authorize(ctx context.Context, action access.Action, model string) error
	// Change makes a change with do if the caller may make it, and records it.
	Change(ctx context.Context, c access.Change, do func() error) error
}

// A Catalog describes the models of a server, their readiness and their statistics, to
// callers that may know them.
type Catalog interface {
	Authorizer

	// Ready reports whether the server accepts requests: all its models are loaded and it is
	// not shutting down.
	Ready() bool
	// Accepting reports whether the server has tried to load all its models, whatever became of
	// them, and is not shutting down.
	Accepting() bool
	// ModelReady reports whether a version of a model accepts requests. Version "" means any.
	// The protocol has authorized the caller; see [ModelReady].
	ModelReady(model, version string) bool
	// Model describes a model. Version "" means the default version.
	Model(ctx context.Context, model, version string) (*catalog.Metadata, error)
	// Config returns the complete configuration that is in effect for a version of a model.
	// Version "" means the default version. The caller must not modify it.
	Config(ctx context.Context, model, version string) (*modelconfig.Config, error)
	// Statistics returns the counters of the named versions. Model "" means all models,
	// version "" all versions of the model. It returns nil if none match.
	Statistics(ctx context.Context, model, version string) ([]catalog.Statistics, error)
}

// A Stopper is a Catalog that reports when its server shuts down, so that long-running
// watches can be ended.
type Stopper interface {
	// Stopping returns a channel that is closed when the server stops accepting requests.
	Stopping() <-chan struct{}
}

// An Explainer is a Catalog that explains why its models run the way they do.
type Explainer interface {
	// Explain explains a version of a model. Version "" means the default version. This is an
	// extension of Shoal: other servers do not have it.
	Explain(ctx context.Context, model, version string) (*explain.Model, error)
}

// A Control loads and unloads models, if the server allows its clients to. Model names
// come from clients unchecked: they may be empty, or paths. Errors are sent to the client:
// they say what is wrong with a model, and where.
type Control interface {
	// Index lists every model that the repository has or had, and the state of its versions.
	// If ready is set, only those that accept requests are listed.
	Index(ctx context.Context, ready bool) []catalog.IndexEntry
	// Load loads or reloads a model, and returns when it accepts requests. If it fails, the
	// versions that were loaded before keep serving.
	Load(ctx context.Context, model string, opts catalog.LoadOptions) error
	// Unload unloads a model. It is not an error if the model is not loaded.
	Unload(ctx context.Context, model string, opts catalog.UnloadOptions) error
}

// Index lists models as [Control] does, with reasons that clients may see.
func Index(ctx context.Context, c Control, ready bool) []catalog.IndexEntry {
	all := c.Index(ctx, ready)
	for i := range all {
		all[i].Reason = infer.WithoutPaths(all[i].Name, all[i].Reason)
	}
	return all
}

// ModelReady reports whether a version of a model accepts requests, to a caller that may
// know it.
func ModelReady(ctx context.Context, c Catalog, model, version string) (bool, error) {
	if err := c.Authorize(ctx, access.Describe, model); err != nil {
		return false, err
	}
	return c.ModelReady(model, version), nil
}
