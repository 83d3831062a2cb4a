// Package servable has one loaded version of a model: opened, warmed up, checked,
// measured, scaled, explained and closed. It knows no protocol, no table of models and
// no directory of them: a [Source] says what to load, and an [Env] what there is to run
// it on.
//
//	v, err := env.Open(ctx, source)   // loads, checks, warms up
//	v.Tune(replace)                   // measures what the configuration leaves open
//	v.Scheduler.Submit(ctx, req, resp)
//	v.Close()                         // lets its requests run, and unloads it
package servable

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A Source says what a version is loaded from. Two sources of a number are the same
// version if their stamps are equal.
type Source struct {
	Model  string
	Number int64
	Label  string // the version's name where it is not its number, such as "1.0"
	Stamp  uint64

	Dir  string // has the version's files
	File string // the only file of Dir that belongs to it; "" means all of them
	Home string // has what belongs to all versions of the model: labels, samples to warm up with

	// Config reads the configuration. Each version has one of its own, because what is
	// left out is completed from its files.
	Config func() (*modelconfig.Config, error)

	// Fleeting says that the files may be gone once the version is loaded: it cannot be
	// opened a second time.
	Fleeting bool
	// Keep, if not nil, keeps the files for a version that reads them again while it
	// serves, until it calls what is returned.
	Keep func() (release func())

	About any // what the source wants to know again of the version

	// Workers, if not nil, says that clients scale the version's instances.
	Workers *Workers
}

// Workers are the instances of a version that clients scale. It is opened without any.
type Workers struct {
	// Policy combines requests. Nil means that of the configuration.
	Policy batching.Policy
	Queue  batching.Bound
	// Apart runs the requests of a batch that failed once more, one by one.
	Apart bool
	// Startup is how long one may take to start.
	Startup time.Duration
}

// A Version is one loaded version of a model, ready to run. It owns its scheduler, the
// model that its engine loaded, and the goroutine that measures it. Its methods may be
// called concurrently.
//
// Two locks, of which no goroutine holds both but in this order: scaling is held while
// workers start and leave, which takes as long as that takes, and mu for moments.
//
// A version never changes how many threads it has, or what it was loaded from: another
// takes its place (see Tune). Changing a version that serves was tried, and meant that
// every request had to ask which of two models it ran on.
type Version struct {
	Source    Source
	Config    *modelconfig.Config
	Labels    map[string][]string // the names of classes, by output
	Scheduler *sched.Scheduler
	Stats     *stats.Counters
	Took      time.Duration // to load
	Memory    int64         // about how many bytes loading it took, at its peak; 0 means unknown

	env       *Env
	runner    Runner
	release   func()            // of the files that a client sent; nil if nothing is kept
	threads   int               // of one batch, if the engine can be told
	exclusive int               // of an exclusive batch, if that is more
	counted   bool              // the number of instances was left to us
	inputs    *calibrate.Inputs // that it can be measured with; nil if none are known

	measured atomic.Pointer[explain.Measured] // what came of measuring it; nil if that has not ended
	closing  sync.Once
	closed   chan struct{} // when Close has returned
	err      error         // of Close

	scaling sync.Mutex   // who holds it may change the workers. It guards the following
	model   engine.Model // nil until the first worker is wanted
	vacant  bool         // there are no workers, and a placeholder answers for them
	ended   bool         // no workers are started any more

	mu       sync.Mutex         // guards the following
	halt     context.CancelFunc // ends what measures it; nil if nothing does
	tuned    chan struct{}      // closed when that has ended
	halted   bool               // nothing shall measure it any more
	min, max int                // workers that were asked for
	workers  []*worker
}

// Number returns the version's number.
func (v *Version) Number() int64 { return v.Source.Number }

// Name returns what clients call the version: its label, or its number.
func (v *Version) Name() string {
	if v.Source.Label != "" {
		return v.Source.Label
	}
	return strconv.FormatInt(v.Source.Number, 10)
}

// Note is what there is to say of a version that is ready; "" if nothing.
func (v *Version) Note() string {
	if v.Config.Apart == "" {
		return ""
	}
	return "requests are not combined: " + v.Config.Apart
}

// Halt ends what measures the version, and does not wait for it.
func (v *Version) Halt() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.halted = true
	if v.halt != nil {
		v.halt()
	}
}

// Close lets the requests run that are here, and unloads the version. Who calls it
// while another does waits for the same end.
func (v *Version) Close() error {
	v.closing.Do(func() {
		defer close(v.closed)
		v.Halt()
		v.mu.Lock()
		tuned := v.tuned
		v.mu.Unlock()
		if tuned != nil {
			<-tuned
		}
		v.scaling.Lock()
		defer v.scaling.Unlock()
		v.ended = true
		v.err = v.Scheduler.Close()
		if v.model != nil {
			v.err = errors.Join(v.err, v.model.Close())
		}
		if v.release != nil {
			v.release()
		}
	})
	<-v.closed
	return v.err
}
