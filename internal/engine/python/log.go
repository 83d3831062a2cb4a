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
	maxLine       = 8 << 10 // bytes of a line; the rest of it is another
	linesInBurst  = 200
	linesAfter    = 50 // a second
	tailOfWriters = 200 * time.Millisecond
)

// A budget says how many lines of a worker go to the log: a burst, and then so many
// each second. It reads no clock.
type budget struct {
	left float64
	at   time.Time
	lost int
}

// spend reports whether a line may be written now, and how many were not since the
// last that was.
func (b *budget) spend(now time.Time) (ok bool, lost int) {
	if b.at.IsZero() {
		b.left = linesInBurst
	} else {
		b.left = min(linesInBurst, b.left+linesAfter*now.Sub(b.at).Seconds())
	}
	b.at = now
	if b.left < 1 {
		b.lost++
		return false, 0
	}
	b.left--
	lost, b.lost = b.lost, 0
	return true, lost
}

// A pen writes what one source of a worker says to the log.
type pen struct {
	log    *slog.Logger // with the model's name
	budget budget
}

func (p *pen) write(level slog.Level, line string) {
	if !p.log.Enabled(context.Background(), level) {
		return
	}
	ok, lost := p.budget.spend(time.Now())
	if lost > 0 {
		p.log.Warn("lines of the model were left out, because there were too many", "lines", lost)
	}
	if ok {
		p.log.Log(context.Background(), level, line)
	}
}

// copyLines writes what comes out of a pipe, line by line, until it is closed.
func (p *pen) copyLines(pipe *os.File, level slog.Level) {
	defer func() { _ = pipe.Close() }() // there is nothing left in it
	r := bufio.NewReaderSize(pipe, maxLine)
	for {
		line, _, err := r.ReadLine()
		if len(line) > 0 {
			p.write(level, string(line))
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
				p.log.Warn("the model's output cannot be read", "error", err)
			}
			return
		}
	}
}
