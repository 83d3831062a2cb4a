// Package server holds the models of this process, whatever source they come from, and
// answers requests with them. It owns the table of models, counts in-flight requests, and
// drains them when the process stops.
//
// Sources, such as package repository, call [Server.Load] with the versions that should
// serve. The server opens a new version while the old one serves, replaces the old one in
// the table, and then drains it. If opening fails, the old version stays. Requests are not
// affected: [Server.Find] reads a table that is never modified, only replaced as a whole.
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/cache"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/tensor"
)

// A Server holds models and answers requests with them. Its methods may be called
// concurrently.
type Server struct {
	env     *servable.Env
	lenient bool
	log     *slog.Logger

	logRequests    bool         // at info level
	failures       logLimit     // of failed loads
	failedRequests logLimit     // of requests that failed in the model
	freedMemory    atomic.Int64 // Unix time in tens of seconds when freeMemory last did

	gate         *access.Gate                  // nil if clients are not authenticated
	cache        *cache.Cache                  // nil if responses are not cached
	arrivals     *arrivals.Writer              // nil if they are not recorded
	demand       Demand                        // nil if requests do not load models
	unready      atomic.Bool                   // set by Stop: not ready, but still answers requests
	draining     atomic.Bool                   // set by Drain: rejects new inferences
	drainStarted chan struct{}                 // closed when draining becomes true
	inFlight     atomic.Int64                  // number of in-flight inferences
	unknown      [infer.NumCodes]atomic.Uint64 // requests for models and versions that do not serve, by code

	loads   chan struct{} // one token for each load at a time that is not nested
	serving atomic.Pointer[map[string]serving]
	closing chan struct{}  // closed by Close
	changes sync.WaitGroup // loads and drains

	mu      sync.Mutex // guards the following
	models  map[string]*model
	started bool // the first loads have been tried
	closed  bool
	changed chan struct{} // see Changed; nil if no caller has it
}

// defaultLoads is the default number of models that load in parallel, as in Triton.
const defaultLoads = 4

// Options of a server. The zero Options work.
type Options struct {
	// Loads is how many models are loaded at once, without those of [Server.LoadNested]. Zero
	// means 4, as in Triton.
	Loads int
	// Lenient reports the server ready even if an expected model is not.
	Lenient bool
	// Log receives requests that failed through no fault of the client, and all requests
	// at debug level. Nil means [slog.Default].
	Log *slog.Logger
	// LogRequests logs all requests at info level instead.
	LogRequests bool
	// Access decides what callers may do. Nil means that everyone may do everything.
	Access *access.Gate
	// Cache keeps the responses of models that ask for it. Nil means that none are kept.
	Cache *cache.Cache
	// Arrivals records when requests that a model can run arrived. The caller closes it.
	// Nil means that arrivals are not recorded.
	Arrivals *arrivals.Writer
}

// New returns a server without models. It opens models in env. The caller closes it.
func New(env *servable.Env, opts Options) *Server {
	s := &Server{
		env: env, lenient: opts.Lenient, log: cmp.Or(opts.Log, slog.Default()), logRequests: opts.LogRequests, gate: opts.Access, cache: opts.Cache, arrivals: opts.Arrivals, drainStarted: make(chan struct{}),
		loads: make(chan struct{}, cmp.Or(opts.Loads, defaultLoads)), closing: make(chan struct{}), models: map[string]*model{},
	}
	s.serving.Store(&map[string]serving{})
	return s
}

// MarkStarted reports to the server that all sources have tried to load their first models.
func (s *Server) MarkStarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	s.changedLocked()
}

// Changed returns a channel that is closed when the state of a version changes, or when the
// server has started or begins to stop.
func (s *Server) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *Server) changedLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *Server) hasStarted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// Accepting reports whether the server has started and is not stopping.
func (s *Server) Accepting() bool { return s.hasStarted() && !s.unready.Load() }

// Close cancels loads, rejects new requests, runs the queued ones, and closes every
// version.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, m := range s.models {
		if m.cancel != nil {
			m.cancel(ErrClosing)
		}
	}
	for _, v := range s.AllVersions() {
		v.CancelTuning()
	}
	s.mu.Unlock()
	close(s.closing)
	s.changes.Wait() // for loads and drains
	s.mu.Lock()      // not while SetDefault publishes what it has read before
	last := s.AllVersions()
	s.serving.Store(&map[string]serving{})
	s.mu.Unlock()
	var errs []error
	for _, v := range last {
		errs = append(errs, v.Close())
	}
	return errors.Join(errs...)
}

// SetUnready makes the server report that it is not ready, so that load balancers send requests
// elsewhere. Requests are still answered.
func (s *Server) SetUnready() {
	s.unready.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changedLocked()
}

// Unready reports whether SetUnready or Drain was called.
func (s *Server) Unready() bool { return s.unready.Load() }

// Drain rejects new inferences as unavailable. In-flight ones complete.
func (s *Server) Drain() {
	s.SetUnready()
	if !s.draining.Swap(true) {
		close(s.drainStarted)
	}
}

// Stopping returns a channel that Drain closes. SetUnready does not: streams are answered until
// the server drains.
func (s *Server) Stopping() <-chan struct{} { return s.drainStarted }

// InFlight returns the number of in-flight inferences, including those that are being
// rejected.
func (s *Server) InFlight() int { return int(s.inFlight.Load()) }

// Infer runs req and fills in resp, which the caller owns, and releases if the error is
// nil. Each request is counted once, with the code of its error.
func (s *Server) Infer(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	// Counted before draining is read, so that a request that passes the check is always
	// among those that Drain's caller waits for.
	s.inFlight.Add(1)
	if s.draining.Load() {
		return s.end(ctx, &inference{began: time.Now(), req: req}, reset(req, resp), sched.ErrClosed)
	}
	return s.run(ctx, inference{req: req}, resp)
}

// Call implements [engine.ModelCaller]. It also works while the server drains, because
// in-flight requests of clients may need it.
func (s *Server) Call(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	s.inFlight.Add(1)
	return s.run(ctx, inference{req: req, nested: true}, resp)
}

// reset prepares a pooled response for req.
func reset(req *infer.Request, resp *infer.Response) *infer.Response {
	resp.Model, resp.Version, resp.Times = req.Model, req.Version, infer.Timeline{}
	resp.Parameters, resp.Stream, resp.Last, resp.Empty = nil, nil, false, false
	return resp
}

// run runs a request that was counted as in flight. It stays in flight until it has its
// last response.
func (s *Server) run(ctx context.Context, in inference, resp *infer.Response) error {
	in.began = time.Now()
	err := s.submit(ctx, &in, reset(in.req, resp))
	if err == nil && resp.Stream != nil {
		resp.Stream = &responses{server: s, request: in, stream: resp.Stream, version: resp.Version, times: resp.Times}
		return nil
	}
	return s.end(ctx, &in, resp, err)
}

// An inference is an in-flight request, with the version that answers it.
type inference struct {
	began   time.Time
	req     *infer.Request
	version *servable.Version // that runs it; nil if none was found
	nested  bool              // a model calls, within a request that was admitted
	lookup  lookup            // of its response in the cache
	tenant  *access.Tenant    // that it counts for; nil if for none
	bytes   int64             // that it counts for
}

// end counts and logs a request that was answered.
func (s *Server) end(ctx context.Context, in *inference, resp *infer.Response, err error) error {
	took := time.Since(in.began)
	s.count(in, resp, took, err)
	s.logRequest(ctx, in.req, resp, took, err)
	if in.req.Trace != nil {
		exportSpans(in, resp, took, err)
	}
	if in.tenant != nil {
		in.tenant.End(in.bytes)
	}
	s.inFlight.Add(-1)
	return err
}

// count counts an answered request for its version, or as one for an unknown model if it has
// none.
func (s *Server) count(in *inference, resp *infer.Response, took time.Duration, err error) {
	v := in.version
	switch {
	case err == nil && in.lookup.hit:
		v.Stats.CacheHit(took, in.lookup.took)
	case err == nil:
		v.Stats.Succeeded(in.req.Rows, took, &resp.Times)
	case v != nil:
		code := infer.CodeOf(err)
		v.Stats.Failed(code, took)
		if code == infer.Unavailable && !notLoaded(err) && !s.unready.Load() {
			v.Stats.Unavailable() // an instance died, for example: the version may be the reason
		}
	default:
		s.unknown[infer.CodeOf(err)].Add(1)
	}
}

// notLoaded reports whether a request failed because its model, or one that its model calls, is not
// loaded at the moment, which is not the doing of the version.
func notLoaded(err error) bool {
	return infer.HasReason(err, infer.ShuttingDown, infer.ModelLoading, infer.VersionNotReady, infer.NotInMemory, infer.NoMemory)
}

// submit runs a request with the version that it asks for, which it stores in in.version.
// If the version is replaced between Find and Submit, submit looks it up again and retries
// with the original inputs, because Check may have replaced them for the old version.
func (s *Server) submit(ctx context.Context, in *inference, resp *infer.Response) error {
	req := in.req
	if err := s.authorizeRun(ctx, req); err != nil {
		return err
	}
	if err := s.admit(in); err != nil {
		return err
	}
	for original, retry := req.Inputs, false; ; req.Inputs, retry = original, true {
		v, pinned, err := s.versionFor(ctx, in)
		in.version = v
		if err != nil {
			return err
		}
		resp.Version = strconv.FormatInt(v.Number(), 10)
		if v.Config.Decoupled && !req.AcceptStream {
			return infer.Errorf(infer.Unsupported, "%w", infer.ErrDecoupled)
		}
		if err := v.Config.Check(req); err != nil {
			return err
		}
		if s.lookUp(in, resp) {
			return buildResponse(v, req, resp)
		}
		if s.arrivals != nil && !retry {
			// The name comes from the configuration: the request's is only valid as long as
			// the request.
			s.arrivals.Note(in.began, v.Config.Name, req.Rows, req.Priority)
		}
		err = v.Scheduler.Submit(ctx, req, resp)
		switch {
		case err == nil && resp.Stream != nil && v.Config.Decoupled:
			return nil // the caller reads the stream
		case err == nil && resp.Stream != nil:
			err = takeFirst(ctx, resp)
		}
		switch {
		case err == nil:
			s.keep(in, resp)
			err = buildResponse(v, req, resp)
			if err != nil && in.lookup.asked {
				s.cache.Forget(in.lookup.key)
			}
			return err
		case !errors.Is(err, sched.ErrClosed) || pinned:
			return err
		}
		// The version was replaced.
	}
}

// versionFor returns the version that runs a request, and whether it is pinned.
func (s *Server) versionFor(ctx context.Context, in *inference) (v *servable.Version, pinned bool, err error) {
	req := in.req
	if all, ok := req.Pinned.(pins); ok {
		if v, pinned = all[pin{req.Model, req.Version}]; pinned && v == nil {
			err = s.missing(req.Model, req.Version)
		}
		if pinned {
			return v, true, err
		}
	}
	v, err = s.findOrLoad(ctx, req.Model, req.Version, req.Waiter, in.nested)
	return v, false, err
}

// buildResponse converts the model's outputs to what the client asked for.
func buildResponse(v *servable.Version, req *infer.Request, resp *infer.Response) error {
	if err := v.Config.Restore(resp); err != nil {
		return err
	}
	if v.Stats.Compared() && !asDeclared(v.Config, resp.Outputs) {
		v.Stats.Misshapen()
	}
	if req.Convert != nil {
		if err := req.Convert(resp, v.Config.MaxBatchSize > 0, v.Labels); err != nil {
			return err
		}
	}
	if areAll(resp.Outputs, req.Outputs) {
		return nil
	}
	resp.Outputs = selectOutputs(resp.Outputs, req.Outputs)
	for _, name := range req.Outputs {
		if !slices.ContainsFunc(resp.Outputs, func(t tensor.Tensor) bool { return t.Name == name }) {
			resp.Release()
			return infer.Errorf(infer.Internal, "the model returned no output '%s', which the request asks for", name)
		}
	}
	return nil
}

// areAll reports whether a client asked for all outputs of the model: with no name, or with each, in the
// model's order. Most do.
func areAll(outputs []tensor.Tensor, names []string) bool {
	if len(names) == 0 {
		return true
	}
	if len(names) != len(outputs) {
		return false
	}
	for i := range outputs {
		if outputs[i].Name != names[i] {
			return false
		}
	}
	return true
}

// selectOutputs removes the outputs that the client did not ask for, in place.
func selectOutputs(outputs []tensor.Tensor, names []string) []tensor.Tensor {
	return slices.DeleteFunc(outputs, func(t tensor.Tensor) bool { return !slices.Contains(names, t.Name) })
}

// Ready reports whether the server has started, is not stopping, does not panic
// frequently, and every expected model is loaded and ready. It calls the readiness checks
// that models have, which may take seconds.
func (s *Server) Ready() bool {
	versions, ok := s.expected()
	return ok && !s.unready.Load() && !panics.Frequent() && !slices.ContainsFunc(versions, func(v *servable.Version) bool { return !v.Scheduler.Ready() })
}

// expected returns the versions of all expected models. ok is false if one of the models
// has no version that serves.
func (s *Server) expected() (all []*servable.Version, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.closed {
		return nil, false
	}
	for name, m := range s.models {
		switch versions := s.Versions(name); {
		case !m.expected || s.lenient:
		case len(versions) == 0:
			return nil, false
		default:
			all = append(all, versions...)
		}
	}
	return all, true
}

// Exists reports whether a model serves, or is loaded by the first request.
func (s *Server) Exists(model string) bool {
	return len(s.Versions(model)) > 0 || s.demand != nil && s.demand.Available(model)
}

// ModelReady reports whether a version of a model takes requests. Version "" means the
// default one. A model that a request would load takes requests.
func (s *Server) ModelReady(model, version string) bool {
	if s.unready.Load() {
		return false
	}
	if v := (*s.serving.Load())[model].find(version); v != nil {
		return v.Scheduler.Ready()
	}
	return s.demand != nil && s.hasStarted() && s.demand.Available(model)
}

// Model describes a model. Version "" means the default one.
func (s *Server) Model(ctx context.Context, model, version string) (*catalog.Metadata, error) {
	v, err := s.findFor(ctx, access.Describe, model, version)
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, v := range s.Versions(model) {
		versions = append(versions, strconv.FormatInt(v.Number(), 10))
		if v.Source.Label != "" {
			versions = append(versions, v.Source.Label) // clients may ask for it by its label
		}
	}
	return catalog.Describe(v.Config, versions...), nil
}
