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
	"syscall"
	"time"
)

const (
	defaultLimit = 256 << 20 // about nine million arrivals
	queueSize    = 8192      // arrivals that wait to be written
	flushSize    = 64 << 10  // bytes that are written before the next flush is due
	flushEvery   = time.Second
)

// Options configure a [Writer]. The zero value is valid.
type Options struct {
	// Limit is the maximum size of the file in bytes. The recording ends before it would
	// exceed it. 0 means 256 MiB.
	Limit int64
	// Log receives a line when the recording ends. Nil means [slog.Default].
	Log *slog.Logger
}

// A Writer records arrivals to a file. A nil Writer records nothing. Callers of Note never
// wait for the disk: if it is too slow, arrivals are dropped and counted. Its methods may
// be called concurrently, except for Close.
type Writer struct {
	file    file
	name    string
	began   time.Time
	limit   int64
	log     *slog.Logger
	notes   chan Arrival  // buffered, so that the disk may be slow for a moment
	stop    chan struct{} // closed by Close
	ended   atomic.Bool   // arrivals are no longer recorded
	dropped atomic.Uint64
	work    sync.WaitGroup

	// Used only by the goroutine that writes.
	lines   []byte // complete lines that are not written yet
	written int64  // size of the file in bytes
	count   uint64 // arrivals in the file
	pending uint64 // arrivals in lines
}

// file has the methods of [os.File] that a writer needs.
type file interface {
	io.WriteCloser
	Truncate(size int64) error
}

var errLimit = errors.New("the file has reached its maximum size")

// Create begins a recording. It replaces an existing file, unless another process records to
// it. The caller must close the writer.
func Create(name string, opts Options) (*Writer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := claim(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	w, err := record(f, name, opts)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// claim locks a file until it is closed, and empties it. What is not a regular file may have
// several writers.
func claim(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	// Some file systems have no locks, which is no reason not to record.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another server records to this file; name another one")
	}
	return f.Truncate(0)
}

// record writes the header, so that a file that is not writable is an error immediately,
// and starts the goroutine that writes.
func record(f file, name string, opts Options) (*Writer, error) {
	w := &Writer{
		file: f, name: name, began: time.Now(), limit: cmp.Or(opts.Limit, defaultLimit), log: cmp.Or(opts.Log, slog.Default()),
		notes: make(chan Arrival, queueSize), stop: make(chan struct{}),
		lines: append(make([]byte, 0, flushSize+maxLine), Header+"\n"+columns+"\n"...),
	}
	if err := w.flush(); err != nil {
		return nil, fmt.Errorf("cannot record arrivals: %w", err)
	}
	w.work.Go(w.run)
	return w, nil
}

// Note records the arrival of a request. It does not block.
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

// Close writes all noted arrivals to the file, and closes it.
func (w *Writer) Close() error {
	if w == nil {
		return nil
	}
	close(w.stop)
	w.work.Wait()
	return w.file.Close()
}

// run writes until the writer is closed or writing fails.
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
			err = w.drain()
			stopped = true
		}
	}
	w.ended.Store(true)
	if err != nil {
		w.log.Error("recording of arrivals stopped; requests are still served",
			"file", w.name, "error", err, "arrivals", w.count, "dropped", w.dropped.Load())
		return
	}
	w.log.Info("arrivals recorded", "file", w.name, "arrivals", w.count, "dropped", w.dropped.Load())
}

// drain writes all arrivals in the queue.
func (w *Writer) drain() error {
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
	if len(w.lines) < flushSize {
		return nil
	}
	return w.flush()
}

// flush writes the complete lines. If that fails, it truncates the file to its previous
// size, so that the file is always readable.
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
