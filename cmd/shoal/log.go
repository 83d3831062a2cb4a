package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
)

type logOptions struct {
	format             string
	verbose            int
	info, warning, err bool
	file               string
}

// openLog returns the log, and what closes it. What cannot be written, because a
// disk is full or nobody reads stderr any more, is lost: the server goes on.
func openLog(opts logOptions, stderr io.Writer) (*slog.Logger, func() error, error) {
	if opts.file == "" {
		return newLog(opts, stderr), func() error { return nil }, nil
	}
	f, err := os.OpenFile(opts.file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("log: %w; choose another with --log-file", err)
	}
	return newLog(opts, f), f.Close, nil
}

// newLog writes each record as one line, whatever is in it: both formats escape
// what would begin another.
func newLog(opts logOptions, w io.Writer) *slog.Logger {
	all := &slog.HandlerOptions{Level: slog.LevelDebug}
	var h slog.Handler = slog.NewTextHandler(w, all)
	if opts.format == "json" {
		h = slog.NewJSONHandler(w, all)
	}
	return slog.New(levels{h, opts})
}

// levels turns levels on and off one by one, as Triton does.
type levels struct {
	slog.Handler
	opts logOptions
}

func (h levels) Enabled(_ context.Context, level slog.Level) bool {
	switch {
	case level >= slog.LevelError:
		return h.opts.err
	case level >= slog.LevelWarn:
		return h.opts.warning
	case level >= slog.LevelInfo:
		return h.opts.info
	}
	return h.opts.verbose > 0
}

func (h levels) WithAttrs(attrs []slog.Attr) slog.Handler {
	return levels{h.Handler.WithAttrs(attrs), h.opts}
}

func (h levels) WithGroup(name string) slog.Handler { return levels{h.Handler.WithGroup(name), h.opts} }
