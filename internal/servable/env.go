package servable

import (
	"cmp"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/sched"
)

// Options say what there is to run models on, and how they are loaded.
type Options struct {
	// Retries is how often a failed load is retried.
	Retries int
	// Timeout ends a load that takes longer, warming up included. Zero means none.
	Timeout time.Duration

	// Queue is how much may wait for a model whose configuration does not say. Zeros
	// mean [DefaultQueue].
	Queue batching.Bound

	// Strict refuses models whose configuration leaves inputs or outputs to them.
	Strict bool

	// Automatic measures what configurations leave out of batching, instances and
	// threads, where Triton has defaults.
	Automatic bool
	// Store keeps what was measured. Nil means one in memory.
	Store *calibrate.Store
	// CPU says what kind there is, for the store.
	CPU string

	// Runners by the name that a model's configuration gives as its backend.
	Runners map[string]Runner
	// Cores are those that may be used.
	Cores int
	// Memory returns what there is, and is free. Nil means that nobody knows.
	Memory func() machine.Memory
	// Waited returns for how long cores were waited for so far; see [machine.Waited].
	// Nil means that nobody knows.
	Waited func() time.Duration

	Pacer *pacer.Pacer
	Log   *slog.Logger
}

// A Runner is an engine, and what its models get that do not say.
type Runner struct {
	Engine engine.Engine

	// Device is shared by the models whose number of instances is not written
	// down: they take turns, so that ten models do not run twenty threads on two
	// cores. Nil means that nothing is shared.
	Device *sched.Device

	// Instances of a model whose configuration names no number. Zero means one.
	Instances int
}

// DefaultQueue is how much may wait for a model: enough for any burst that can be
// answered in time, and no more than the memory of a small server.
var DefaultQueue = batching.Bound{Requests: 1000, Bytes: 256 << 20}

// An Env is what all versions of a process share: options, idle time to measure in, and
// the memory that loads have claimed. Its methods may be called concurrently.
type Env struct {
	opts Options

	spare     sched.Spare   // time in which models are measured
	measuring chan struct{} // size 1: who has put a token in may measure
	reading   sync.Mutex    // of models' files, to identify them
	workers   atomic.Int64  // that were ever started for clients

	mu      sync.Mutex // guards the following
	claimed int64      // bytes for versions that are being loaded
}

// NewEnv returns an Env in which nothing is loaded.
func NewEnv(opts Options) *Env {
	opts.Cores = max(1, opts.Cores)
	opts.Queue.Requests = cmp.Or(opts.Queue.Requests, DefaultQueue.Requests)
	opts.Queue.Bytes = cmp.Or(opts.Queue.Bytes, DefaultQueue.Bytes)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	if opts.Store == nil {
		opts.Store = calibrate.NewStore("", opts.Log)
	}
	return &Env{opts: opts, measuring: make(chan struct{}, 1)}
}

// claimMemory makes sure that a version has room, beside those that are loaded at
// the same time, and returns about how many bytes it will take.
func (e *Env) claimMemory(eng engine.Engine, src engine.Source) (int64, error) {
	sizer, ok := eng.(engine.Sizer)
	if !ok || e.opts.Memory == nil {
		return 0, nil
	}
	need, err := sizer.Size(src)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	there := e.opts.Memory()
	there.Free = max(0, there.Free-e.claimed)
	if err := engine.Room(need, there); err != nil {
		return 0, err
	}
	e.claimed += need
	return need, nil
}

func (e *Env) releaseMemory(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.claimed -= n
}
