// Package server answers requests with the models of this process. It is what
// the faces see of a [repository.Repository].
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/tensor"
)

// A Server answers requests, says which models there are, and loads and unloads them.
// Its methods may be called concurrently.
type Server struct {
	models   *repository.Repository
	log      *slog.Logger
	arrivals *arrivals.Writer // nil if they are not recorded
	stopping atomic.Bool
	draining atomic.Bool
	drains   chan struct{}              // closed when draining becomes true
	inside   atomic.Int64               // inferences
	strays   [infer.Codes]atomic.Uint64 // requests for which there was no version, by what they were told
}

var _ engine.Caller = (*Server)(nil)

// Options of a server. The zero Options work.
type Options struct {
	// Log takes requests that fail for no fault of the client's, and at debug level
	// all of them. Nil means [slog.Default].
	Log *slog.Logger
	// Arrivals takes when requests came that a model can run. It stays the caller's to
	// close. Nil means that nobody wants to know.
	Arrivals *arrivals.Writer
}

// New returns a server over models, which stay the caller's to close.
func New(models *repository.Repository, opts Options) *Server {
	return &Server{models: models, log: cmp.Or(opts.Log, slog.Default()), arrivals: opts.Arrivals, drains: make(chan struct{})}
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

// Inside returns how many inferences are inside. Those that are refused count for as
// long as that takes.
func (s *Server) Inside() int { return int(s.inside.Load()) }

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
	version *repository.Version // nil if there is none
}

// end counts a request that was answered, and tells of it.
func (s *Server) end(ctx context.Context, in *inside, resp *infer.Response, err error) error {
	s.count(in.version, in.req, resp, time.Since(in.began), err)
	s.tell(ctx, in.req, resp, err)
	s.inside.Add(-1)
	return err
}

// count counts a request that was answered. Without a version, nobody ran it.
func (s *Server) count(v *repository.Version, req *infer.Request, resp *infer.Response, took time.Duration, err error) {
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
		v, err := s.models.Find(req.Model, req.Version)
		in.version = v
		if err != nil {
			return err
		}
		resp.Version = strconv.FormatInt(v.Number, 10)
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
func finish(v *repository.Version, req *infer.Request, resp *infer.Response) error {
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

// Ready reports whether all models are loaded and the server is not stopping.
func (s *Server) Ready() bool { return !s.stopping.Load() && s.models.Ready() }

// ModelReady implements [engine.Caller].
func (s *Server) ModelReady(model, version string) bool {
	v, err := s.models.Find(model, version)
	return err == nil && v.Scheduler.Ready() && !s.stopping.Load()
}

// Model describes a model. Version "" means the one that its policy serves.
func (s *Server) Model(model, version string) (*catalog.Metadata, error) {
	v, err := s.models.Find(model, version)
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, v := range s.models.Versions(model) {
		versions = append(versions, strconv.FormatInt(v.Number, 10))
	}
	return catalog.Describe(v.Config, versions...), nil
}
