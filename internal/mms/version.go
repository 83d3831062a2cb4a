package mms

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A Version is a registered version of a model.
type Version struct {
	Name, Version   string
	Written         string // the version as the archive says; "" if it does not
	URL             string // as it was registered
	Runtime, Engine string // as the archive says
	BatchSize       int
	MaxBatchDelay   time.Duration
	ResponseTimeout time.Duration // after which a worker that has not answered is ended
	StartupTimeout  time.Duration // after which one is that is not there
	AtStart         bool

	server *Server
	source engine.Source
	sched  *sched.Scheduler
	stats  *stats.Counters
	done   func() error // gives back what was unpacked

	changing sync.Mutex   // who holds it may change the workers. It guards the following
	loaded   engine.Model // nil until the first worker is wanted
	vacant   bool         // there are no workers, and nobody is in their place
	closed   bool

	mu       sync.Mutex // guards the following
	min, max int
	workers  []*worker
}

// A Worker is what is known of one, for those who ask.
type Worker struct {
	ID      string
	Started time.Time
	Ready   bool
	Process int   // its id
	Memory  int64 // bytes of it; 0 if it is not known
}

// Scale returns how many workers there should be at least and at most.
func (v *Version) Scale() (least, most int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.min, v.max
}

// Living returns how many workers can run requests.
func (v *Version) Living() int {
	if v.count() == 0 {
		return 0 // nobody is no worker
	}
	return v.sched.Living()
}

// Workers returns those that there are.
func (v *Version) Workers() []Worker {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := []Worker{}
	for _, w := range v.workers {
		all = append(all, w.told())
	}
	return all
}

// Waiting returns how many requests wait.
func (v *Version) Waiting() int { return v.sched.Waiting() }

// Queue returns how many may.
func (v *Version) Queue() int { return max(1, v.server.opts.Settings.Queue) }

// Snapshot returns what the version has done.
func (v *Version) Snapshot() stats.Snapshot { return v.stats.Snapshot() }

// ScaleTo sees to it that a version has at least and at most so many workers. If it is
// asynchronous, it only begins to.
func (s *Server) ScaleTo(ctx context.Context, v *Version, least, most int, synchronous bool) error {
	switch {
	case least < 0 || most < least || most > maxWorkers:
		return badRequest("min_worker, max_worker: found %d and %d, expected numbers up to %d", least, most, maxWorkers)
	case synchronous:
		if err := v.scale(ctx, least, most); err != nil {
			return failedToStart(v, err)
		}
		return nil
	}
	s.beside(func(ctx context.Context) {
		if err := v.scale(ctx, least, most); err != nil {
			s.opts.Log.Error("workers not scaled", "model", v.Name, "version", v.Version, "error", err)
		}
	})
	return nil
}

// scale starts workers until there are least, or lets some leave until there are no
// more than most. Each ends its batch before.
func (v *Version) scale(ctx context.Context, least, most int) error {
	v.mu.Lock()
	v.min, v.max = least, most
	v.mu.Unlock()
	v.changing.Lock()
	defer v.changing.Unlock()
	if v.closed {
		return notFound("Model not found: %s", v.Name)
	}
	for v.count() > most {
		if _, err := v.sched.Remove(); err != nil {
			return err
		}
	}
	if most == 0 && !v.vacant {
		v.sched.Add(nobody{}) // who wait are told, and wait no more
		v.vacant = true
	}
	for v.count() < least {
		w, err := v.open(ctx)
		if err != nil {
			return err
		}
		if v.vacant {
			_, _ = v.sched.Remove() // nobody has nothing to close
			v.vacant = false
		}
		v.mu.Lock()
		v.workers = append(v.workers, w)
		v.mu.Unlock()
		v.sched.Add(w)
	}
	return nil
}

func (v *Version) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.workers)
}

// open starts a worker. The caller may change the workers.
func (v *Version) open(ctx context.Context) (*worker, error) {
	number := v.server.workers.Add(1) - 1 // also of one that does not start, as there
	within, cancel := context.WithTimeout(ctx, v.StartupTimeout)
	defer cancel()
	inst, err := v.instance(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("found no worker after %v, which startup_timeout allows for one to start", v.StartupTimeout)
	}
	if err != nil {
		return nil, err
	}
	w := &worker{process: inst.(process), version: v, id: strconv.FormatInt(firstWorker+number, 10)}
	w.set(true)
	return w, nil
}

func (v *Version) instance(ctx context.Context) (engine.Instance, error) {
	if v.loaded == nil {
		loaded, err := v.server.opts.Engine.Load(ctx, v.source)
		if err != nil {
			return nil, err
		}
		v.loaded = loaded
	}
	return v.loaded.Instance(ctx)
}

// firstWorker is the number of the first one, which is a port in MMS.
const firstWorker = 9000

// close lets requests run that are here, and takes all workers away.
func (v *Version) close() error {
	v.changing.Lock()
	defer v.changing.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	errs := []error{v.sched.Close()}
	if v.loaded != nil {
		errs = append(errs, v.loaded.Close())
	}
	if v.done != nil {
		errs = append(errs, v.done())
	}
	return errors.Join(append(errs, os.RemoveAll(filepath.Dir(v.source.Dir)))...)
}

// A process is an instance of the engine of Python models.
type process interface {
	engine.Each
	engine.Mortal
	Process() int
}

// A worker is a process, with what clients are told of it.
type worker struct {
	process
	version *Version
	id      string

	mu      sync.Mutex // guards the following
	started time.Time
	ready   bool
	pid     int
}

func (w *worker) told() Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Worker{w.id, w.started, w.ready, w.pid, python.Resident(w.pid)}
}

func (w *worker) set(ready bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready = ready
	if ready {
		w.started, w.pid = time.Now(), w.Process()
	}
}

// Revive implements [engine.Mortal].
func (w *worker) Revive(ctx context.Context) error {
	w.set(false)
	err := w.process.Revive(ctx)
	if err == nil {
		w.set(true)
	}
	return err
}

// Close implements [engine.Instance].
func (w *worker) Close() error {
	v := w.version
	v.mu.Lock()
	v.workers = slices.DeleteFunc(v.workers, func(other *worker) bool { return other == w })
	v.mu.Unlock()
	return w.process.Close()
}

// nobody is in the place of workers where there are none: who waits is told so.
type nobody struct{ engine.Instance }

// It is as if a worker had died, so that no request is blamed for it.
var errNobody = infer.Errorf(infer.Unavailable, "%w: the model has no workers", engine.ErrDied)

// RunEach implements [engine.Each].
func (nobody) RunEach(context.Context, []engine.Call) error { return errNobody }

// Close implements [engine.Instance].
func (nobody) Close() error { return nil }
