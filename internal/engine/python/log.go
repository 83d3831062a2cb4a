package python

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"
)

const (
	maxLogLine  = 8 << 10 // bytes; longer lines are split
	logBurst    = 200
	logRate     = 50 // lines per second
	outputGrace = 200 * time.Millisecond
)

// A logLimiter is a token bucket for the log lines of a worker. It does not read the
// clock.
type logLimiter struct {
	tokens  float64
	last    time.Time
	dropped int
}

// allow reports whether a line may be written now, and how many lines were dropped since
// the last one that was written.
func (b *logLimiter) allow(now time.Time) (ok bool, dropped int) {
	if b.last.IsZero() {
		b.tokens = logBurst
	} else {
		b.tokens = min(logBurst, b.tokens+logRate*now.Sub(b.last).Seconds())
	}
	b.last = now
	if b.tokens < 1 {
		b.dropped++
		return false, 0
	}
	b.tokens--
	dropped, b.dropped = b.dropped, 0
	return true, dropped
}

// A lineLogger writes the lines of one stream of a worker to the log.
type lineLogger struct {
	log     *slog.Logger // has the model's name
	limiter logLimiter
}

// write logs a line with attributes, unless the worker logs too fast.
func (p *lineLogger) write(level slog.Level, line string, attributes ...any) {
	if !p.log.Enabled(context.Background(), level) {
		return
	}
	ok, dropped := p.limiter.allow(time.Now())
	if dropped > 0 {
		p.log.Warn("dropped log lines of the model: it logs too fast", "lines", dropped)
	}
	if ok {
		p.log.Log(context.Background(), level, line, attributes...)
	}
}

// copyLines logs each line read from pipe, until it is closed.
func (p *lineLogger) copyLines(pipe *os.File, level slog.Level) {
	defer func() { _ = pipe.Close() }() // it was only read
	r := bufio.NewReaderSize(pipe, maxLogLine)
	for {
		line, _, err := r.ReadLine()
		if len(line) > 0 {
			p.write(level, string(line))
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
				p.log.Warn("failed to read the model's output", "error", err)
			}
			return
		}
	}
}
