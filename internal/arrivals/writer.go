package arrivals

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultLimit = 256 << 20   // some nine million arrivals
	waiting      = 8192        // arrivals that may wait to be written
	enough       = 64 << 10    // bytes that are written without waiting for the second to end
	flushEvery   = time.Second // of those that are fewer
)

// Options of a [Writer]. The zero Options work.
type Options struct {
	// Limit is the most bytes that the file may have. The recording ends before it
	// would have more. 0 means 256 MiB.
	Limit int64
	// Log receives how the recording ended. Nil means [slog.Default].
	Log *slog.Logger
}

// A Writer records arrivals to a file. A nil Writer records nothing. Callers never wait for
// the disk: arrivals that cannot be written in time are left out, and counted.
type Writer struct {
	file    file
	name    string
	began   time.Time
	limit   int64
	log     *slog.Logger
	notes   chan Arrival  // buffered, so that a disk may be slow for a moment
	stop    chan struct{} // closed by Close
	ended   atomic.Bool   // nothing is taken any more
	dropped atomic.Uint64
	work    sync.WaitGroup

	// Of the goroutine that writes.
	lines   []byte // whole ones, that wait to be written
	written int64  // bytes of the file
	count   uint64 // arrivals in the file
	pending uint64 // arrivals in lines
}

// file is what a writer needs of an [os.File].
type file interface {
	io.WriteCloser
	Truncate(size int64) error
}

var errLimit = errors.New("the file has reached its largest size")

// Create begins a recording. A file of that name is replaced.
func Create(name string, opts Options) (*Writer, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	w, err := record(f, name, opts)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// record writes the header, so that a file that cannot be written to is known at once.
func record(f file, name string, opts Options) (*Writer, error) {
	w := &Writer{
		file: f, name: name, began: time.Now(), limit: cmp.Or(opts.Limit, defaultLimit), log: cmp.Or(opts.Log, slog.Default()),
		notes: make(chan Arrival, waiting), stop: make(chan struct{}),
		lines: append(make([]byte, 0, enough+maxLine), Header+"\n"+columns+"\n"...),
	}
	if err := w.flush(); err != nil {
		return nil, fmt.Errorf("arrivals cannot be recorded: %w", err)
	}
	w.work.Go(w.run)
	return w, nil
}

// Note records a request that arrived. It does not wait.
func (w *Writer) Note(at time.Time, model string, rows int, priority uint64) {
	if w == nil || w.ended.Load() {
		return
	}
	select {
	case w.notes <- Arrival{At: max(0, at.Sub(w.began)), Model: model, Rows: rows, Priority: priority}:
	default:
		w.dropped.Add(1)
	}
}

// Close ends the recording. What was noted before is in the file.
func (w *Writer) Close() error {
	if w == nil {
		return nil
	}
	close(w.stop)
	w.work.Wait()
	return w.file.Close()
}

// run writes until the writer is closed or the file takes no more.
func (w *Writer) run() {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var err error
	for stopped := false; err == nil && !stopped; {
		select {
		case a := <-w.notes:
			err = w.add(a)
		case <-tick.C:
			err = w.flush()
		case <-w.stop:
			err = w.rest()
			stopped = true
		}
	}
	w.ended.Store(true)
	if err != nil {
		w.log.Error("the recording of arrivals has ended; requests are served as before",
			"file", w.name, "error", err, "arrivals", w.count, "dropped", w.dropped.Load())
		return
	}
	w.log.Info("arrivals were recorded", "file", w.name, "arrivals", w.count, "dropped", w.dropped.Load())
}

// rest writes what waits.
func (w *Writer) rest() error {
	for {
		select {
		case a := <-w.notes:
			if err := w.add(a); err != nil {
				return err
			}
		default:
			return w.flush()
		}
	}
}

func (w *Writer) add(a Arrival) error {
	before := len(w.lines)
	w.lines = append(a.Append(w.lines), '\n')
	if w.written+int64(len(w.lines)) > w.limit {
		w.lines = w.lines[:before]
		return errors.Join(errLimit, w.flush())
	}
	w.pending++
	if len(w.lines) < enough {
		return nil
	}
	return w.flush()
}

// flush writes whole lines, or takes back what it wrote of them, so that the file can
// be read however the recording ends.
func (w *Writer) flush() error {
	if len(w.lines) == 0 {
		return nil
	}
	if _, err := w.file.Write(w.lines); err != nil {
		return errors.Join(err, w.file.Truncate(w.written))
	}
	w.written += int64(len(w.lines))
	w.count += w.pending
	w.lines, w.pending = w.lines[:0], 0
	return nil
}
