package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// logRequest logs an answered request: as an error if it failed through no fault of the
// client, and otherwise at info level if requests are logged, or at debug level. took is
// the time from arrival to answer.
func (s *Server) logRequest(ctx context.Context, req *infer.Request, resp *infer.Response, took time.Duration, err error) {
	level, message := slog.LevelDebug, "request"
	if s.logRequests {
		level = slog.LevelInfo
	}
	skipped := 0
	if err != nil && infer.CodeOf(err) == infer.Internal {
		level, message = slog.LevelError, "request failed"
		if !s.logRequests { // a client may know an input on which the model fails
			var ok bool
			if ok, skipped = s.failedRequests.allow(time.Now()); !ok {
				return
			}
		}
	}
	if s.log.Enabled(ctx, level) {
		attrs := requestAttrs(req, resp, took, err)
		if skipped > 0 {
			attrs = append(attrs, slog.Int("records_skipped", skipped))
		}
		s.log.LogAttrs(ctx, level, message, attrs...)
	}
}

// maxLoggedID is how much of an id is logged.
const maxLoggedID = 256

// requestAttrs describes a request for the log. It omits the id if the client gave none,
// and the times if the request did not run.
func requestAttrs(req *infer.Request, resp *infer.Response, took time.Duration, err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("model", resp.Model), slog.String("version", resp.Version)}
	if req.ID != "" {
		attrs = append(attrs, slog.String("id", req.ID[:min(len(req.ID), maxLoggedID)]))
	}
	attrs = append(attrs, slog.Duration("latency", took), slog.Int("rows", req.Rows))
	if t := &resp.Times; !t.RunEnded.IsZero() {
		attrs = append(attrs, slog.Int("batch", t.Batch), slog.String("closed", t.CloseReason),
			slog.Duration("queue", t.Taken.Sub(t.Queued)), slog.Duration("compute", t.RunEnded.Sub(t.RunStarted)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("code", infer.CodeOf(err).String()), slog.String("error", err.Error()))
	}
	return attrs
}
