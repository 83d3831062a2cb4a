package server

import (
	"context"
	"slices"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/servable"
)

// A Demand loads models when requests ask for them.
type Demand interface {
	// Await makes a model serve that does not, and returns when it does, when it cannot, or
	// when ctx ends. An error with the code NotFound means that there is no such model. nested
	// means that a model calls, whose request another model may wait for before it leaves.
	Await(ctx context.Context, model string, nested bool) error
	// Available reports whether a request for a model that does not serve would load it.
	Available(model string) bool
	// Counted returns how much memory is counted for a model, with all its versions; 0 if it is
	// not in memory.
	Counted(model string) int64
}

// SetDemand makes requests for models that do not serve load them. It must be called before
// the server gets requests.
func (s *Server) SetDemand(d Demand) { s.demand = d }

// findOrLoad is Find, except that it loads a model that does not serve, if requests may. If
// waiter is not nil, it is called before. nested is as in [Demand.Await].
func (s *Server) findOrLoad(ctx context.Context, name, version string, waiter infer.Waiter, nested bool) (*servable.Version, error) {
	if v := (*s.serving.Load())[name].find(version); v != nil {
		return v, nil
	}
	if s.demand == nil {
		return nil, s.missing(name, version)
	}
	if waiter != nil {
		waiter.AwaitsModel()
	}
	return s.load(ctx, name, version, nested)
}

// maxAwaits is how often a request waits for its model. A model that was just loaded is too young
// to leave, so that only a client that unloads it can come between its load and the request.
const maxAwaits = 3

// load loads a model and returns the version.
func (s *Server) load(ctx context.Context, name, version string, nested bool) (*servable.Version, error) {
	for range maxAwaits {
		if !s.hasStarted() {
			break // its models are not listed yet
		}
		err := s.demand.Await(ctx, name, nested)
		switch {
		case ctx.Err() != nil:
			return nil, sched.ContextError(ctx)
		case infer.CodeOf(err) == infer.NotFound && err != nil:
			return nil, s.missing(name, version)
		case err != nil:
			return nil, err
		}
		if v := (*s.serving.Load())[name].find(version); v != nil {
			return v, nil
		}
	}
	return nil, s.missing(name, version)
}

// Evict takes a model out of service like [Server.Unload], and returns when its memory is
// free. Requests that have it run to their end. Evict also waits for versions that left the table
// earlier: the caller counts their memory as free, too, and a load that has just ended may
// publish a version between any look at the table and Unload.
func (s *Server) Evict(name string) {
	s.Unload(name)
	s.AwaitClosed(name)
}

// AwaitClosed waits until the versions of a model that have left the table are closed.
func (s *Server) AwaitClosed(name string) {
	for _, v := range s.drainingOf(name) {
		_ = v.Close() // the drain reports the error
	}
}

// Busy reports whether a model has requests, if only in versions that have left the table.
func (s *Server) Busy(name string) bool {
	all := append(s.drainingOf(name), s.Versions(name)...)
	return slices.ContainsFunc(all, func(v *servable.Version) bool { return v.Scheduler.Busy() })
}

// StillClosing reports whether versions of a model have left the table and are not closed yet.
func (s *Server) StillClosing(name string) bool { return len(s.drainingOf(name)) > 0 }

// drainingOf returns the versions of a model that have left the table and are not closed yet.
func (s *Server) drainingOf(name string) []*servable.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.models[name]; m != nil {
		return slices.Clone(m.draining)
	}
	return nil
}
