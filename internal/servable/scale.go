package servable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
)

// A Worker describes an instance that clients scale.
type Worker struct {
	Number  int64 // from 0, counting all start attempts of the process
	Started time.Time
	Ready   bool
	Process int // its id; 0 if it is not a process
}

// Scale returns the minimum and maximum number of workers that clients asked for.
func (v *Version) Scale() (minWorkers, maxWorkers int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.minWorkers, v.maxWorkers
}

// Workers describes the workers that have started.
func (v *Version) Workers() []Worker {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Worker
	for _, w := range v.workers {
		all = append(all, w.snapshot())
	}
	return all
}

// Alive returns the number of instances that can run requests.
func (v *Version) Alive() int {
	if v.ScaledToZero() {
		return 0 // the placeholder does not count
	}
	return v.Scheduler.Alive()
}

// ScaledToZero reports whether clients scaled the version to no workers.
func (v *Version) ScaledToZero() bool { return v.Source.Workers != nil && v.workerCount() == 0 }

func (v *Version) workerCount() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.workers)
}

// ScaleTo starts workers until there are minWorkers, or stops some until there are no more
// than maxWorkers. A worker finishes its batch before it stops. Source.Workers must not be
// nil.
func (v *Version) ScaleTo(ctx context.Context, minWorkers, maxWorkers int) error {
	v.mu.Lock()
	v.minWorkers, v.maxWorkers = minWorkers, maxWorkers
	v.mu.Unlock()
	v.scaling <- struct{}{}
	defer func() { <-v.scaling }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v.mu.Lock()
	v.cancelScaling = cancel // before closeCalled is read, so that Close is not missed
	v.mu.Unlock()
	if v.closeCalled.Load() {
		return infer.Errorf(infer.Unavailable, "%w", ErrUnloading)
	}
	var closeErr error
	for v.workerCount() > maxWorkers {
		_, err := v.Scheduler.Remove()
		closeErr = errors.Join(closeErr, err) // the worker has ended in either case
	}
	if maxWorkers == 0 && !v.placeholder {
		v.Scheduler.Add(placeholder{}) // it answers the queued requests
		v.placeholder = true
	}
	if closeErr != nil {
		return closeErr
	}
	for v.workerCount() < minWorkers {
		w, err := v.startWorker(ctx)
		if v.closeCalled.Load() {
			if err == nil {
				err = w.Close()
			}
			return infer.Errorf(infer.Unavailable, "%w", errors.Join(ErrUnloading, err))
		}
		if err != nil {
			return err
		}
		if v.placeholder {
			_, _ = v.Scheduler.Remove() // a placeholder closes without an error
			v.placeholder = false
		}
		v.mu.Lock()
		v.workers = append(v.workers, w)
		v.mu.Unlock()
		v.Scheduler.Add(w)
	}
	return nil
}

// startWorker starts a worker. The caller holds scaling.
func (v *Version) startWorker(ctx context.Context) (*worker, error) {
	number, limit := v.env.startAttempts.Add(1)-1, v.Source.Workers.Startup
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	inst, err := v.newInstance(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("no worker has started after %v; raise startup_timeout if the handler only takes long to start", limit)
	}
	if err != nil {
		return nil, err
	}
	p, ok := inst.(process)
	if !ok {
		return nil, errors.Join(fmt.Errorf("instances of backend %q cannot be scaled", v.Config.Backend), inst.Close())
	}
	w := &worker{process: p, version: v, number: number}
	w.setReady(true)
	return w, nil
}

// newInstance opens an instance. It loads the model first if this is the first one: a
// version without workers needs no model.
func (v *Version) newInstance(ctx context.Context) (engine.Instance, error) {
	if v.model == nil {
		loaded, err := v.runner.Engine.Load(ctx, v.engineSource())
		if err != nil {
			return nil, err
		}
		v.model = loaded
	}
	return v.model.Instance(ctx)
}

// A process is an instance that runs in a process of its own.
type process interface {
	engine.PerRequest
	engine.Restartable
	Process() int
}

// A worker is a process with the state that clients can query.
type worker struct {
	process
	version *Version
	number  int64

	mu      sync.Mutex // guards the following
	started time.Time
	ready   bool
	pid     int
}

func (w *worker) snapshot() Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Worker{w.number, w.started, w.ready, w.pid}
}

// setReady records that the process has started, or that it is being restarted.
func (w *worker) setReady(ready bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready = ready
	if ready {
		w.started, w.pid = time.Now(), w.Process()
	}
}

// Restart implements [engine.Restartable].
func (w *worker) Restart(ctx context.Context) error {
	w.setReady(false)
	err := w.process.Restart(ctx)
	if err == nil {
		w.setReady(true)
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

// A placeholder is the only instance of a version that has no workers. It answers requests
// immediately, with ErrNoWorker.
type placeholder struct{ engine.Instance }

// ErrNoWorker is in the error chain of requests to a version without workers. It wraps
// engine.ErrDied, so that the scheduler does not count it as a failure of the client.
var ErrNoWorker = infer.Errorf(infer.Unavailable, "%w: the model has no workers", engine.ErrDied)

// RunEach implements [engine.PerRequest].
func (placeholder) RunEach(context.Context, []engine.Call) error { return ErrNoWorker }

// Close implements [engine.Instance].
func (placeholder) Close() error { return nil }
