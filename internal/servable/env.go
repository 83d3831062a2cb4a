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
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/sched"
)

// Options configure an [Env].
type Options struct {
	// Retries is how often a failed load is retried.
	Retries int
	// Timeout limits the time of a load, including the warm-up, and that of the restart of an
	// instance that died. Zero means no limit.
	Timeout time.Duration

	// Queue bounds the queue of models whose configuration has no bound. Zeros mean
	// [DefaultQueue].
	Queue batching.Bound

	// InputBytes is the limit of a request's decoded inputs. It also limits what direct
	// sequences make of them, see [sched.Sequences]. Zero means no limit.
	InputBytes int64

	// Strict rejects models whose configuration omits the inputs or the outputs.
	Strict bool

	// Automatic measures what configurations omit of batching, instances and threads,
	// instead of using Triton's defaults.
	Automatic bool
	// Store keeps calibration results. Nil means in memory only.
	Store *calibrate.Store
	// CPU is the CPU model, which is part of the store's keys.
	CPU string

	// Cached means that the server caches the responses of models that ask for it.
	Cached bool

	// Defaults are settings for models whose configuration omits them, by backend name.
	Defaults map[string]modelconfig.Defaults
	// Runners are the engines, by backend name.
	Runners map[string]Runner
	// Cores is the number of cores that models may use.
	Cores int
	// Memory returns the total and the free memory. Nil means unknown.
	Memory func() machine.Memory
	// Waited returns how long threads have waited for a core; see [machine.Waited]. Nil
	// means unknown.
	Waited func() time.Duration

	Pacer *pacer.Pacer
	Log   *slog.Logger
}

// A Runner is an engine with the defaults of its models.
type Runner struct {
	Engine engine.Engine

	// Device is shared by models without a configured number of instances: they take
	// turns, so that ten models do not run twenty threads on two cores. Nil means that
	// models do not take turns.
	Device *sched.Device

	// Instances is the default number of instances. Zero means one.
	Instances int
}

// DefaultQueue is the default queue bound of a model: enough for any burst that can be
// answered in time, and within the memory of a small server.
var DefaultQueue = batching.Bound{Requests: 1000, Bytes: 256 << 20}

// An Env is what all versions of a process share: the options, the idle time for
// calibration, and the memory claimed by loads. Its methods are safe for concurrent use.
type Env struct {
	opts Options

	idleGate      sched.IdleGate // idle time, in which versions are calibrated
	measuring     chan struct{}  // size 1: the tuner whose token is in it may measure
	hashing       chan struct{}  // size 1: the tuner whose token is in it may hash model files
	opened        atomic.Uint64  // number of versions opened so far, which gives them their IDs
	startAttempts atomic.Int64   // number of attempts to start a worker so far, which numbers the workers

	mu      sync.Mutex               // guards the following
	claimed int64                    // bytes that current loads will need
	devices map[string]*sched.Device // that models name, by backend and name
}

// NewEnv returns an Env without versions.
func NewEnv(opts Options) *Env {
	opts.Cores = max(1, opts.Cores)
	opts.Queue.Requests = cmp.Or(opts.Queue.Requests, DefaultQueue.Requests)
	opts.Queue.Bytes = cmp.Or(opts.Queue.Bytes, DefaultQueue.Bytes)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	if opts.Store == nil {
		opts.Store = calibrate.NewStore("", opts.Log)
	}
	return &Env{opts: opts, measuring: make(chan struct{}, 1), hashing: make(chan struct{}, 1)}
}

// claimMemory checks that a version fits into memory together with all other current
// loads, claims the memory, and returns about how many bytes it needs.
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
	memory := e.opts.Memory()
	memory.Free = max(0, memory.Free-e.claimed)
	if err := engine.Room(need, memory); err != nil {
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

// deviceOf returns the device on which a model takes turns: the one that it names, or that of
// all models of its engine; nil if there is none.
func (e *Env) deviceOf(r Runner, cfg *modelconfig.Config) *sched.Device {
	sharer, ok := r.Engine.(engine.DeviceSharer)
	if !ok {
		return r.Device
	}
	name := sharer.SharedDevice(cfg)
	if name == "" {
		return r.Device
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := cfg.Backend + "/" + name
	if e.devices[key] == nil {
		if e.devices == nil {
			e.devices = map[string]*sched.Device{}
		}
		e.devices[key] = sched.NewDevice(1)
	}
	return e.devices[key]
}
