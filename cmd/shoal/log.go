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
	"time"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/kserve"
)

type logOptions struct {
	format             string
	verbose            int
	info, warning, err bool
	file               string
}

// A logOutput is a log, and what it is written to.
type logOutput struct {
	*slog.Logger
	file *logFile // nil if it is written to stderr
	// screen is the terminal that short lines for people are written to instead of
	// records, or nil.
	screen *screen
}

// openLog opens the log. What cannot be written, because a disk is full or nothing reads
// stderr any more, is lost: the server goes on.
func openLog(opts logOptions, stderr io.Writer) (*logOutput, error) {
	if opts.file != "" {
		f := &logFile{name: opts.file}
		if err := f.reopen(); err != nil {
			return nil, fmt.Errorf("%w; choose another with --log-file", err)
		}
		return &logOutput{Logger: newLog(opts, f), file: f}, nil
	}
	if opts.format == formatAuto && console.IsTerminal(stderr) {
		s := newScreen(stderr)
		return &logOutput{Logger: newLogger(opts, s), screen: s}, nil
	}
	return &logOutput{Logger: newLog(opts, stderr)}, nil
}

// Close closes the file of the log, if it has one.
func (o *logOutput) Close() error {
	if o.file == nil {
		return nil
	}
	return o.file.close()
}

// reopenOn opens the file of the log again at each SIGHUP until ctx ends, so that it can be
// rotated.
func (o *logOutput) reopenOn(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		if err := o.file.reopen(); err != nil {
			o.Error("the log file cannot be reopened, so the log continues in the old one", "error", err)
		} else {
			o.Info("log file reopened", "file", o.file.name)
		}
	}
}

// A logFile is a file that is appended to, and that can be opened again under its name.
type logFile struct {
	name string

	mu   sync.RWMutex // held for reading while a record is written; guards the following
	file *os.File
}

// Write implements [io.Writer].
func (f *logFile) Write(b []byte) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.file.Write(b)
}

// reopen opens the file, and closes the one that was open before.
func (f *logFile) reopen() error {
	file, err := os.OpenFile(f.name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	f.mu.Lock()
	old := f.file
	f.file = file
	f.mu.Unlock()
	if old != nil {
		_ = old.Close() // what was written to it is complete
	}
	return nil
}

func (f *logFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

// formatAuto is the log format that depends on where the log is written.
const formatAuto = "auto"

// newLog returns a log that writes each record as one line, whatever is in it: both formats
// escape what would begin another.
func newLog(opts logOptions, w io.Writer) *slog.Logger {
	all := &slog.HandlerOptions{Level: slog.LevelDebug}
	if opts.format == "json" {
		all.ReplaceAttr = inMilliseconds
		return newLogger(opts, slog.NewJSONHandler(w, all))
	}
	return newLogger(opts, slog.NewTextHandler(w, all))
}

// inMilliseconds gives a duration, which JSON has as a number, its unit.
func inMilliseconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Float64(a.Key+"_ms", float64(a.Value.Duration())/float64(time.Millisecond))
}

// newLogger returns a log with the levels of the options, which clients may change.
func newLogger(opts logOptions, h slog.Handler) *slog.Logger {
	if opts.format == formatAuto {
		opts.format = "text"
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
