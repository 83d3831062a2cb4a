package server

import (
	"context"
	"errors"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/servable"
)

// Authorize returns an error if the caller of ctx may not do the action. Whatever a
// protocol answers about a model, or about the server as a whole, has passed Authorize or
// Change: there is no other way to the models. Model is "" for the server as a whole.
func (s *Server) Authorize(ctx context.Context, action access.Action, model string) error {
	return accessError(s.gate.Check(ctx, action, model))
}

// Change makes a change with do if the caller of ctx may make it, and records it with its
// outcome.
func (s *Server) Change(ctx context.Context, c access.Change, do func() error) error {
	return accessError(s.gate.Change(ctx, c, do))
}

// accessError gives the errors of package access their codes.
func accessError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, access.ErrUnauthenticated) {
		return infer.Errorf(infer.Unauthenticated, "%w", err)
	}
	if _, ok := errors.AsType[*access.DeniedError](err); ok || errors.Is(err, access.ErrNotAdminPort) {
		return infer.Errorf(infer.Forbidden, "%w", err)
	}
	return err
}

// authorizeRun returns an error if the caller may not run the model of req. It sets the
// caller of the request, for whom the model may call other models.
func (s *Server) authorizeRun(ctx context.Context, req *infer.Request) error {
	if !s.gate.Required() {
		return nil
	}
	req.Caller = access.CallerOf(ctx)
	return accessError(s.gate.CheckCaller(req.Caller, access.Run, req.Model))
}

// admit counts a request for its tenant, or returns an error if that may not send another. A
// request that a model makes has the share of its caller, but is part of a request that was
// admitted: refusing it would waste what was done.
func (s *Server) admit(in *inference) error {
	in.req.Tenant, in.req.Weight = 0, 0
	if s.gate == nil || s.gate.Tenants == nil {
		return nil
	}
	t := s.gate.Tenants.Of(in.req.Caller)
	in.req.Tenant, in.req.Weight = t.Number, t.Weight()
	if in.nested {
		return nil
	}
	in.bytes = infer.DataSize(in.req.Inputs)
	if err := t.Begin(in.began, in.bytes); err != nil {
		e := infer.Errorf(infer.Overloaded, "%w", err)
		if limit, ok := errors.AsType[*access.LimitError](err); ok {
			e.RetryAfter = limit.RetryAfter
		}
		return e
	}
	in.tenant = t
	return nil
}

// findFor is findOrLoad for a caller that may do the action. A caller that may not does not learn
// whether the model exists.
func (s *Server) findFor(ctx context.Context, action access.Action, name, version string) (*servable.Version, error) {
	if err := s.Authorize(ctx, action, name); err != nil {
		return nil, err
	}
	return s.findOrLoad(ctx, name, version, nil, false)
}

// Visible returns the entries of an index whose models the caller of ctx may know.
func (s *Server) Visible(ctx context.Context, index []catalog.IndexEntry) []catalog.IndexEntry {
	if !s.gate.Required() {
		return index
	}
	var visible []catalog.IndexEntry
	for _, e := range index {
		if s.Authorize(ctx, access.Describe, e.Name) == nil {
			visible = append(visible, e)
		}
	}
	return visible
}
