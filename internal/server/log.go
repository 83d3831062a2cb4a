package server

import (
	"context"
	"log/slog"

	"github.com/shoal-serving/shoal/internal/infer"
)

// tell logs what became of a request: always if it failed for no fault of the
// client's, which nobody else may notice, and otherwise at debug level.
func (s *Server) tell(ctx context.Context, req *infer.Request, resp *infer.Response, err error) {
	level, message := slog.LevelDebug, "request"
	if err != nil && infer.CodeOf(err) == infer.Internal {
		level, message = slog.LevelError, "request failed"
	}
	if s.log.Enabled(ctx, level) {
		s.log.LogAttrs(ctx, level, message, describeRequest(req, resp, err)...)
	}
}

// describeRequest leaves out what there is not: an id that the client did not give,
// and times of a request that did not run.
func describeRequest(req *infer.Request, resp *infer.Response, err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("model", resp.Model), slog.String("version", resp.Version)}
	if req.ID != "" {
		attrs = append(attrs, slog.String("id", req.ID))
	}
	attrs = append(attrs, slog.Int("rows", req.Rows))
	if t := &resp.Times; !t.Ran.IsZero() {
		attrs = append(attrs, slog.Int("batch", t.Batch), slog.String("closed", t.Why),
			slog.Duration("queue", t.Taken.Sub(t.Queued)), slog.Duration("compute", t.Ran.Sub(t.Run)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("code", infer.CodeOf(err).String()), slog.String("error", err.Error()))
	}
	return attrs
}
