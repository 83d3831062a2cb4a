package mms

import (
	"context"
	"net/http"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
)

// Authorize returns an error if the caller of ctx may not do the action. Model is "" for the
// server as a whole.
func (s *Store) Authorize(ctx context.Context, action access.Action, model string) error {
	return denied(s.server.Authorize(ctx, action, model))
}

// change makes a change of a model if the caller of ctx may make it.
func (s *Store) change(ctx context.Context, what, model, detail string, do func() error) error {
	return denied(s.server.Change(ctx, access.Change{Action: access.Manage, What: what, Model: model, Detail: detail}, do))
}

// denied gives the errors of callers that may not do something the form of this API.
func denied(err error) error {
	switch infer.CodeOf(err) {
	case infer.Unauthenticated:
		return fail(http.StatusUnauthorized, "UnauthorizedException", "%v", err)
	case infer.Forbidden:
		return fail(http.StatusForbidden, "AccessDeniedException", "%v", err)
	default:
		return err
	}
}
