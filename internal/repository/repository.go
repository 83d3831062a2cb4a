// Package repository keeps the models of some directories loaded: which there
// are, which of their versions serve, and the steps from what is served to what
// is wanted.
//
//	DIR/NAME/config.pbtxt     what the model takes and gives; may be left out if its file tells
//	DIR/NAME/VERSION/         a number, with what the model's engine needs
//	DIR/NAME.onnx             a model with nothing but its file; it is version 1
//	app.py, NAME.joblib       files that are models by themselves where they are named
//
// A model is changed beside the one that serves: the new version is loaded, warmed
// up, put in the place of the old one, and only then the old one is drained. If
// any of it fails, the old one stays. Requests see none of it: [Repository.Find]
// reads a table that is replaced as a whole.
package repository

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Options say where models are, which of them are loaded, and what they run on.
type Options struct {
	// Paths are directories of models, and files that are models by themselves.
	Paths []string

	Mode Mode
	// Models are loaded at the start in mode Explicit; "*" stands for all.
	Models []string
	// Poll is how often mode Poll looks for changes. Zero means [DefaultPoll].
	Poll time.Duration

	// Loads is how many models are loaded at once. Zero means [DefaultLoads].
	Loads int
	// Retries is how many more times a load is tried that failed.
	Retries int
	// Timeout ends a load that takes longer, warming up included. Zero means none.
	Timeout time.Duration

	// Queue is how much may wait for a model whose configuration does not say. Zeros
	// mean [DefaultQueue].
	Queue batching.Bound

	// Lenient makes the server ready although a model is not that should be.
	Lenient bool

	// Strict refuses models whose configuration leaves inputs or outputs to them.
	Strict bool

	// Automatic finds out what configurations leave out of batching, instances and
	// threads, where Triton has defaults.
	Automatic bool
	// Store keeps what is found out. Nil means one in memory.
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

// A Mode says who decides which models are loaded.
type Mode uint8

// How models come and go.
const (
	None     Mode = iota // all models of the paths, for as long as the server runs
	Poll                 // all models of the paths, as they come, change and go
	Explicit             // those that clients ask for
)

// What is used where Options do not say; both are Triton's.
const (
	DefaultPoll  = 15 * time.Second
	DefaultLoads = 4
)

// DefaultQueue is how much may wait for a model: enough for any burst that can be
// answered in time, and no more than the memory of a small server.
var DefaultQueue = batching.Bound{Requests: 1000, Bytes: 256 << 20}

// A Repository holds loaded models. Its methods may be called concurrently.
type Repository struct {
	opts  Options
	loads chan struct{} // one token for each load at a time

	// What takes requests, by name, the versions ascending. It is replaced, never
	// changed.
	serving atomic.Pointer[map[string][]*Version]

	closing chan struct{}  // closed by Close
	work    sync.WaitGroup // loads, drains, the poll, and what finds out about models

	spare  sched.Spare   // time in which models are measured
	tuning chan struct{} // size 1: who has put a token in may measure

	reading sync.Mutex // of models' files, to know them again

	mu      sync.Mutex // guards the following
	models  map[string]*model
	claimed int64 // bytes for versions that are being loaded
	started bool  // the first loads have been tried
	closed  bool
}

// A Version is one loaded version of a model, ready to run.
type Version struct {
	Config    *modelconfig.Config
	Labels    map[string][]string // the names of classes, by output
	Number    int64
	Scheduler *sched.Scheduler
	Stats     *stats.Counters
	Took      time.Duration // to load
	Memory    int64         // about how many bytes loading it took, at its peak; 0 means unknown

	model   engine.Model
	stamp   stamp
	rereads bool              // its instances may read its files again
	sent    *upload           // where they are, if a client sent them; nil if not
	threads int               // of one batch, if the engine can be told
	lone    int               // of one that begins while no other runs, if that is more
	counted bool              // the number of instances was left to us
	inputs  *calibrate.Inputs // that it can be measured with; nil if none are known

	measured atomic.Pointer[explain.Measured] // what came of measuring it; nil if that has not ended
	halt     context.CancelFunc               // ends what finds out about it; nil if nothing does
	tuned    chan struct{}                    // closed when that has ended
}

// close lets the requests run that are here, and unloads the version.
func (v *Version) close() error {
	defer v.sent.letGo()
	if v.halt != nil {
		v.halt()
		<-v.tuned
	}
	return errors.Join(v.Scheduler.Close(), v.model.Close())
}

// New returns a repository in which nothing is loaded. The caller closes it.
func New(opts Options) *Repository {
	opts.Poll = cmp.Or(opts.Poll, DefaultPoll)
	opts.Loads = cmp.Or(opts.Loads, DefaultLoads)
	opts.Cores = max(1, opts.Cores)
	opts.Queue.Requests = cmp.Or(opts.Queue.Requests, DefaultQueue.Requests)
	opts.Queue.Bytes = cmp.Or(opts.Queue.Bytes, DefaultQueue.Bytes)
	if opts.Store == nil {
		opts.Store = calibrate.NewStore("", opts.Log)
	}
	r := &Repository{
		opts: opts, loads: make(chan struct{}, opts.Loads), closing: make(chan struct{}), models: map[string]*model{},
		tuning: make(chan struct{}, 1),
	}
	r.serving.Store(&map[string][]*Version{})
	return r
}

// Start loads the models that are to be there from the start, and returns when
// each has been tried. The error says what is wrong with those that failed; the
// others serve.
func (r *Repository) Start(ctx context.Context) error {
	names, err := r.first()
	var all sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		all.Go(func() { errs[i] = r.load(ctx, name, Override{}) })
	}
	all.Wait()
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	if r.opts.Mode == Poll {
		r.work.Go(r.poll)
	}
	return errors.Join(append([]error{err}, errs...)...)
}

// first returns the names of the models that are loaded at the start.
func (r *Repository) first() ([]string, error) {
	if r.opts.Mode == Explicit && !slices.Equal(r.opts.Models, []string{"*"}) {
		return r.opts.Models, nil
	}
	found, err := scan(r.opts.Paths)
	return slices.Sorted(maps.Keys(found)), err
}

// Find returns a version of a model; version "" means the newest one that serves.
func (r *Repository) Find(name, version string) (*Version, error) {
	versions := (*r.serving.Load())[name]
	if version == "" && len(versions) > 0 {
		return versions[len(versions)-1], nil
	}
	if n, err := strconv.ParseInt(version, 10, 64); err == nil {
		for _, v := range versions {
			if v.Number == n {
				return v, nil
			}
		}
	}
	return nil, r.missing(name, version)
}

// missing says why a version does not serve. What is wrong with it is for those
// who look after the server, and in the index.
func (r *Repository) missing(name, version string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[name]
	switch {
	case m == nil:
		return infer.Errorf(infer.NotFound, "there is no model %q", name).Because(infer.UnknownModel, name, version)
	case version == "" && m.loading():
		return infer.Errorf(infer.Unavailable, "model %q is being loaded", name).Because(infer.ModelLoading, name, "")
	case version == "":
		return infer.Errorf(infer.NotFound, "no version of model %q is loaded", name).Because(infer.NoVersionServes, name, "")
	}
	n, err := strconv.ParseInt(version, 10, 64)
	if _, known := m.states[n]; err != nil || !known {
		return infer.Errorf(infer.NotFound, "model %q has no version %q", name, version).Because(infer.UnknownVersion, name, version)
	}
	return infer.Errorf(infer.Unavailable, "version %s of model %q is not ready", version, name).Because(infer.VersionNotReady, name, version)
}

// Versions returns those of a model that serve, ascending.
func (r *Repository) Versions(name string) []*Version { return (*r.serving.Load())[name] }

// All calls f for every version that serves, in the order of names and numbers.
func (r *Repository) All(f func(name string, v *Version)) {
	serving := *r.serving.Load()
	for _, name := range slices.Sorted(maps.Keys(serving)) {
		for _, v := range serving[name] {
			f(name, v)
		}
	}
}

// Ready reports whether every model that should serve does, and can, and the first
// ones have been loaded. Models that say so themselves are asked, which may take some
// seconds.
func (r *Repository) Ready() bool {
	versions, ok := r.expected()
	return ok && !slices.ContainsFunc(versions, func(v *Version) bool { return !v.Scheduler.Ready() })
}

// expected returns the versions of all models that should serve, and whether there are
// any of each.
func (r *Repository) expected() (all []*Version, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed {
		return nil, false
	}
	serving := *r.serving.Load()
	for name, m := range r.models {
		switch {
		case !m.wanted || r.opts.Lenient:
		case len(serving[name]) == 0:
			return nil, false
		default:
			all = append(all, serving[name]...)
		}
	}
	return all, true
}

// publishLocked puts versions in the place of a model's.
func (r *Repository) publishLocked(name string, versions []*Version) {
	next := maps.Clone(*r.serving.Load())
	if len(versions) > 0 {
		next[name] = versions
	} else {
		delete(next, name)
	}
	r.serving.Store(&next)
}

// Close ends loads, lets all requests run that are here, refuses others, and
// unloads every model.
func (r *Repository) Close() error {
	r.mu.Lock()
	r.closed = true
	for _, m := range r.models {
		if m.halt != nil {
			m.halt(errClosing)
		}
	}
	r.All(func(_ string, v *Version) {
		if v.halt != nil {
			v.halt()
		}
	})
	r.mu.Unlock()
	close(r.closing)
	r.work.Wait() // nothing is loaded or polled any more
	last := *r.serving.Swap(&map[string][]*Version{})
	var errs []error
	for _, versions := range last {
		for _, v := range versions {
			errs = append(errs, v.close())
		}
	}
	return errors.Join(errs...)
}
