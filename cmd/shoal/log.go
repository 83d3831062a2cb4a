package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/kserve"
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
	c := &logControl{}
	c.now.Store(&kserve.LogSettings{
		File: opts.file, Info: opts.info, Warning: opts.warning, Error: opts.err,
		Verbose: uint32(min(max(0, opts.verbose), math.MaxUint32)), Format: opts.format,
	})
	return slog.New(levels{h, c})
}

// A logControl says what is logged. Clients may change it while the log is in use.
type logControl struct {
	changing sync.Mutex // one change at a time, so that none is lost
	now      atomic.Pointer[kserve.LogSettings]
}

// ChangeLog implements [kserve.Logging].
func (c *logControl) ChangeLog(change kserve.LogChange) (kserve.LogSettings, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	s, err := c.now.Load().With(change)
	if err == nil {
		c.now.Store(&s)
	}
	return s, err
}

// loggingOf returns what changes the log, or nil if newLog did not make it.
func loggingOf(log *slog.Logger) kserve.Logging {
	if h, ok := log.Handler().(levels); ok {
		return h.control
	}
	return nil
}

// levels turns levels on and off one by one, as Triton does.
type levels struct {
	slog.Handler
	control *logControl
}

func (h levels) Enabled(_ context.Context, level slog.Level) bool {
	now := h.control.now.Load()
	switch {
	case level >= slog.LevelError:
		return now.Error
	case level >= slog.LevelWarn:
		return now.Warning
	case level >= slog.LevelInfo:
		return now.Info
	}
	return now.Verbose > 0
}

func (h levels) WithAttrs(attrs []slog.Attr) slog.Handler {
	return levels{h.Handler.WithAttrs(attrs), h.control}
}

func (h levels) WithGroup(name string) slog.Handler {
	return levels{h.Handler.WithGroup(name), h.control}
}
