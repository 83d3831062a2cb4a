// Package servable implements a loaded version of a model: it opens, warms up, checks,
// tunes, scales, explains and closes it. It does not depend on protocols, the server's
// table or a model repository: a [Source] describes what to load, and an [Env] provides
// what all versions share, such as engines.
//
//	v, err := env.Open(ctx, source)   // loads, checks, warms up
//	v.Tune(replace)                   // measures what the configuration omits
//	v.Scheduler.Submit(ctx, req, resp)
//	v.Close()                         // runs the queued requests, and unloads it
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

// A Source describes what a version is loaded from. Two sources with the same number and
// the same fingerprint are the same version.
type Source struct {
	Model       string
	Number      int64
	Label       string // a name for the version besides its number, such as "1.0"; "" if none
	Fingerprint uint64

	Dir      string // directory of the version's files
	File     string // the only file in Dir that belongs to the version; "" means all files
	ModelDir string // directory of files that all versions share: labels, warm-up samples

	// Config reads the configuration. Each version needs its own copy, because missing
	// fields are completed from the version's files.
	Config func() (*modelconfig.Config, error)

	// Temporary means that the files may be removed once the version is loaded, so that it
	// cannot be opened a second time.
	Temporary bool
	// Changed reports whether the files are no longer those of the fingerprint. Such a version
	// cannot be opened a second time either: the source decides when new files are served. Nil
	// means that they do not change.
	Changed func() bool
	// KeepFiles, if not nil, keeps the files for a version that reads them again while it
	// serves. The version calls release when it is closed.
	KeepFiles func() (release func())
	// AlwaysKeep means that every version keeps its files while it is open, because it may be
	// opened again with other threads.
	AlwaysKeep bool

	// Resume, if not nil, is what is known of the version from when it was open before. It is
	// ignored if the fingerprint has changed since.
	Resume *Resume

	Data any // for the package that made the source; not used here

	// Workers, if not nil, makes the instances workers that clients scale.
	Workers *Workers
}

// Workers configure a version whose instances are scaled by clients. It is opened without
// instances.
type Workers struct {
	// Policy is the batching policy. Nil means that of the configuration.
	Policy batching.Policy
	Queue  batching.Bound
	// Bisect retries the parts of a failed batch, so that only bad requests fail.
	Bisect bool
	// Startup limits the time that a worker may take to start, also when it is restarted.
	Startup time.Duration
}

// A Version is a loaded version of a model. It owns its scheduler, the model that the
// engine loaded, and the goroutine that tunes it. Its methods are safe for concurrent use.
//
// Locks: scaling, a channel, is held while workers start and stop, which may take minutes; mu is
// held for moments. A goroutine that needs both locks scaling first.
//
// The number of threads and the source of a version never change; another version replaces
// it instead (see Tune). Changing a serving version in place was tried: every request then
// had to check which of two models it ran on.
type Version struct {
	ID        uint64 // unique among all versions that were ever opened
	Source    Source
	Config    *modelconfig.Config
	Labels    map[string][]string // class names, by output
	Scheduler *sched.Scheduler
	Stats     *stats.Counters
	LoadTime  time.Duration // time to load and warm up
	Memory    int64         // approximate peak memory of loading, in bytes; 0 means unknown

	env              *Env
	runner           Runner
	device           *sched.Device     // that it shares with other models; nil if none
	releaseFiles     func()            // releases the files; nil if none are kept
	threads          int               // threads of a batch, if the engine supports that
	exclusiveThreads int               // threads of an exclusive batch, if more
	padUnsafeReason  string            // why requests are not padded although the model suggests it; "" if they are
	autoInstances    bool              // the configuration has no number of instances
	inputs           *calibrate.Inputs // for calibration; nil if none are known
	noInputsReason   string            // why none are known although the version is measurable; "" if they are, or it is not
	params           tuning            // that it was opened with

	calibration atomic.Pointer[explain.Calibration] // the result of calibration; nil before its end
	closeCalled atomic.Bool                         // by Close
	closed      chan struct{}                       // closed when the version is
	closeErr    error                               // of Close

	scaling     chan struct{} // size 1: the goroutine whose token is in it starts and stops workers, and uses the following
	model       engine.Model  // nil until the first worker starts
	placeholder bool          // there are no workers, and a placeholder answers requests

	mu                     sync.Mutex         // guards the following
	cancelTuning           context.CancelFunc // cancels tuning; nil if it never began
	tuningDone             chan struct{}      // closed when tuning has ended
	tuningCancelled        bool               // tuning must not begin any more
	cancelScaling          context.CancelFunc // cancels the last ScaleTo; nil if there was none
	key                    *calibrate.Key     // of its calibration results; nil if it is not known yet
	minWorkers, maxWorkers int                // number of workers that clients asked for
	workers                []*worker
	holds                  int           // see Hold
	unheld                 chan struct{} // closed when the last hold ends after Close began; nil before
}

// Number returns the version's number.
func (v *Version) Number() int64 { return v.Source.Number }

// Name returns the version's label, or its number if it has none.
func (v *Version) Name() string {
	if v.Source.Label != "" {
		return v.Source.Label
	}
	return strconv.FormatInt(v.Source.Number, 10)
}

// Note returns a remark about a ready version for the index; "" if there is none.
func (v *Version) Note() string {
	if v.Config.CombineUnsafeReason == "" {
		return ""
	}
	return "requests are not combined: " + v.Config.CombineUnsafeReason
}

// CancelTuning cancels tuning, and does not wait for it to end.
func (v *Version) CancelTuning() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tuningCancelled = true
	if v.cancelTuning != nil {
		v.cancelTuning()
	}
}

// Hold keeps the version open for requests to come, until the caller calls Unhold. It returns
// false if Close has begun.
func (v *Version) Hold() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.unheld != nil {
		return false
	}
	v.holds++
	return true
}

// Unhold ends a hold.
func (v *Version) Unhold() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.holds--; v.holds == 0 && v.unheld != nil {
		close(v.unheld)
	}
}

// awaitHolds refuses further holds, and waits for the end of those that there are.
func (v *Version) awaitHolds() {
	v.mu.Lock()
	v.unheld = make(chan struct{})
	if v.holds == 0 {
		close(v.unheld)
	}
	v.mu.Unlock()
	<-v.unheld
}

// Close waits until the version is not held, rejects new requests, runs the queued ones, and
// unloads the version. Concurrent calls return when the version is closed.
func (v *Version) Close() error {
	if !v.closeCalled.Swap(true) {
		v.close()
	}
	<-v.closed // not a sync.Once, whose callers wait for a lock: fake time stands still meanwhile
	return v.closeErr
}

// close does the work of Close, once.
func (v *Version) close() {
	defer close(v.closed)
	v.CancelTuning()
	v.mu.Lock()
	cancelScaling := v.cancelScaling
	v.mu.Unlock()
	if cancelScaling != nil {
		cancelScaling()
	}
	v.awaitHolds()
	v.mu.Lock()
	tuned := v.tuningDone
	v.mu.Unlock()
	if tuned != nil {
		<-tuned
	}
	v.scaling <- struct{}{}
	defer func() { <-v.scaling }()
	v.closeErr = v.Scheduler.Close()
	if v.model != nil {
		v.closeErr = errors.Join(v.closeErr, v.model.Close())
	}
	if v.releaseFiles != nil {
		v.releaseFiles()
	}
}
