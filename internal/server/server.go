// Package server holds the models of this process, whatever source they come from, and
// answers requests with them. It has the only table of models, counts what is in flight,
// and drains.
//
// Sources, such as package repository, say which versions are wanted ([Server.Load]). A
// model is changed beside the one that serves: the new version is opened, put in the
// place of the old one, and only then the old one is drained. If any of it fails, the
// old one stays. Requests see none of it: [Server.Find] reads a table that is replaced
// as a whole.
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

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/tensor"
)

// A Server holds models and answers requests with them. Its methods may be called
// concurrently.
type Server struct {
	env      *servable.Env
	lenient  bool
	log      *slog.Logger
	arrivals *arrivals.Writer // nil if they are not recorded
	stopping atomic.Bool
	draining atomic.Bool
	drains   chan struct{}              // closed when draining becomes true
	inside   atomic.Int64               // inferences
	strays   [infer.Codes]atomic.Uint64 // requests for which there was no version, by what they were told

	loads   chan struct{} // one token for each load at a time
	serving atomic.Pointer[map[string]serving]
	closing chan struct{}  // closed by Close
	work    sync.WaitGroup // loads and drains

	mu      sync.Mutex // guards the following
	models  map[string]*model
	started bool // the first loads have been tried
	closed  bool
}

// DefaultLoads is how many models are loaded at once where nobody says; it is Triton's.
const DefaultLoads = 4

// Options of a server. The zero Options work.
type Options struct {
	// Loads is how many models are loaded at once. Zero means [DefaultLoads].
	Loads int
	// Lenient reports the server ready even if an expected model is not.
	Lenient bool
	// Log takes requests that fail for no fault of the client's, and at debug level
	// all of them. Nil means [slog.Default].
	Log *slog.Logger
	// Arrivals takes when requests came that a model can run. It stays the caller's to
	// close. Nil means that nobody wants to know.
	Arrivals *arrivals.Writer
}

// New returns a server without models, which opens them in env. The caller closes it.
func New(env *servable.Env, opts Options) *Server {
	s := &Server{
		env: env, lenient: opts.Lenient, log: cmp.Or(opts.Log, slog.Default()), arrivals: opts.Arrivals, drains: make(chan struct{}),
		loads: make(chan struct{}, cmp.Or(opts.Loads, DefaultLoads)), closing: make(chan struct{}), models: map[string]*model{},
	}
	s.serving.Store(&map[string]serving{})
	return s
}

// Started says that all sources have tried to load what is to be there from the start.
func (s *Server) Started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
}

// Accepts reports whether the server has started, and is not to stop.
func (s *Server) Accepts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started && !s.stopping.Load()
}

// Close ends loads, lets all requests run that are here, refuses others, and closes
// every version.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, m := range s.models {
		if m.halt != nil {
			m.halt(ErrClosing)
		}
	}
	for _, v := range s.All() {
		v.Halt()
	}
	s.mu.Unlock()
	close(s.closing)
	s.work.Wait() // nothing is loaded any more
	last := s.All()
	s.serving.Store(&map[string]serving{})
	var errs []error
	for _, v := range last {
		errs = append(errs, v.Close())
	}
	return errors.Join(errs...)
}

// Stop makes the server tell that it is not ready, so that whoever spreads the
// load goes elsewhere. Requests are answered all the same.
func (s *Server) Stop() { s.stopping.Store(true) }

// Drain refuses inferences from now on, with the advice to go elsewhere. Those that
// are inside go on.
func (s *Server) Drain() {
	s.Stop()
	if !s.draining.Swap(true) {
		close(s.drains)
	}
}

// Stopping is closed by Drain, and not by Stop: until then streams are answered, too.
func (s *Server) Stopping() <-chan struct{} { return s.drains }

// InFlight returns how many inferences are in flight. Those that are refused count for as
// long as that takes.
func (s *Server) InFlight() int { return int(s.inside.Load()) }

// Infer runs req and fills in resp, which the caller owns, and releases if the error is
// nil. Each request is counted once, with the code of its error.
func (s *Server) Infer(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	// Counted first, so that Drain leaves out nobody who came before it.
	s.inside.Add(1)
	if s.draining.Load() {
		return s.end(ctx, &inside{began: time.Now(), req: req}, fresh(req, resp), sched.ErrClosed)
	}
	return s.run(ctx, req, resp)
}

// Call implements [engine.Caller]: models ask for what requests need that are inside.
func (s *Server) Call(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	s.inside.Add(1)
	return s.run(ctx, req, resp)
}

// fresh returns a response that may have been another's.
func fresh(req *infer.Request, resp *infer.Response) *infer.Response {
	resp.Model, resp.Version, resp.Times = req.Model, req.Version, infer.Timeline{}
	resp.Parameters, resp.More, resp.Last, resp.Bare = nil, nil, false, false
	return resp
}

// run runs a request that was counted as inside. It stays there until it has its last
// response.
func (s *Server) run(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	in := inside{began: time.Now(), req: req}
	err := s.submit(ctx, &in, fresh(req, resp))
	if err == nil && resp.More != nil {
		resp.More = &responses{server: s, inside: in, from: resp.More, version: resp.Version, times: resp.Times}
		return nil
	}
	return s.end(ctx, &in, resp, err)
}

// An inside is a request that is being answered.
type inside struct {
	began   time.Time
	req     *infer.Request
	version *servable.Version // nil if there is none
}

// end counts a request that was answered, and tells of it.
func (s *Server) end(ctx context.Context, in *inside, resp *infer.Response, err error) error {
	s.count(in.version, in.req, resp, time.Since(in.began), err)
	s.tell(ctx, in.req, resp, err)
	s.inside.Add(-1)
	return err
}

// count counts a request that was answered. Without a version, nobody ran it.
func (s *Server) count(v *servable.Version, req *infer.Request, resp *infer.Response, took time.Duration, err error) {
	switch {
	case err == nil:
		v.Stats.Succeeded(req.Rows, took, &resp.Times)
	case v != nil:
		v.Stats.Failed(infer.CodeOf(err), took)
	default:
		s.strays[infer.CodeOf(err)].Add(1)
	}
}

// submit runs a request with the version that it asks for, and notes that, if there is
// one. One that was replaced between finding and asking it refuses; then there is
// another to find, or none, and it gets the inputs as they came.
func (s *Server) submit(ctx context.Context, in *inside, resp *infer.Response) error {
	req := in.req
	for came, again := req.Inputs, false; ; req.Inputs, again = came, true {
		v, err := s.Find(req.Model, req.Version)
		in.version = v
		if err != nil {
			return err
		}
		resp.Version = strconv.FormatInt(v.Number(), 10)
		if v.Config.Decoupled && !req.Many {
			return infer.Errorf(infer.Unsupported, "%w", infer.ErrMany)
		}
		if err := v.Config.Check(req); err != nil {
			return err
		}
		if s.arrivals != nil && !again {
			// Under the model's own name: the request's ends with the request.
			s.arrivals.Note(in.began, v.Config.Name, req.Rows, req.Priority)
		}
		err = v.Scheduler.Submit(ctx, req, resp)
		switch {
		case err == nil && resp.More != nil && v.Config.Decoupled:
			return nil
		case err == nil && resp.More != nil:
			err = one(ctx, resp)
		}
		switch {
		case err == nil:
			return finish(v, req, resp)
		case !errors.Is(err, sched.ErrClosed):
			return err
		}
	}
}

// finish makes of what the model gave what the client asked for.
func finish(v *servable.Version, req *infer.Request, resp *infer.Response) error {
	if err := v.Config.Restore(resp); err != nil {
		return err
	}
	if req.Convert != nil {
		if err := req.Convert(resp, v.Config.MaxBatchSize > 0, v.Labels); err != nil {
			return err
		}
	}
	resp.Outputs = choose(resp.Outputs, req.Outputs)
	return nil
}

// choose keeps the outputs that were asked for, in place.
func choose(outputs []tensor.Tensor, names []string) []tensor.Tensor {
	if len(names) == 0 {
		return outputs
	}
	return slices.DeleteFunc(outputs, func(t tensor.Tensor) bool { return !slices.Contains(names, t.Name) })
}

// Ready reports whether the server takes requests, every model that should serve does,
// and can, and the first ones have been loaded. Models that say so themselves are asked,
// which may take some seconds.
func (s *Server) Ready() bool {
	versions, ok := s.expected()
	return ok && !s.stopping.Load() && !slices.ContainsFunc(versions, func(v *servable.Version) bool { return !v.Scheduler.Ready() })
}

// expected returns the versions of all models that should serve, and whether there are
// any of each.
func (s *Server) expected() (all []*servable.Version, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.closed {
		return nil, false
	}
	for name, m := range s.models {
		switch versions := s.Versions(name); {
		case !m.wanted || s.lenient:
		case len(versions) == 0:
			return nil, false
		default:
			all = append(all, versions...)
		}
	}
	return all, true
}

// ModelReady reports whether a version of a model takes requests. Version "" means the
// usual one.
func (s *Server) ModelReady(model, version string) bool {
	v, err := s.Find(model, version)
	return err == nil && v.Scheduler.Ready() && !s.stopping.Load()
}

// Model describes a model. Version "" means the usual one.
func (s *Server) Model(model, version string) (*catalog.Metadata, error) {
	v, err := s.Find(model, version)
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, v := range s.Versions(model) {
		versions = append(versions, strconv.FormatInt(v.Number(), 10))
		if v.Source.Label != "" {
			versions = append(versions, v.Source.Label) // by which it is found, too
		}
	}
	return catalog.Describe(v.Config, versions...), nil
}
