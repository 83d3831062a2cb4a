package servable

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/tensor"
)

// measurable reports whether measuring the version could change how it runs.
func (v *Version) measurable() bool {
	cfg := v.Config
	if !cfg.Automatic || cfg.Ragged() != nil || cfg.Sequence != nil || v.Source.Workers != nil {
		return false
	}
	if policy, ok := v.model.(engine.RetryPolicy); ok && !policy.Rehearses() {
		return false // its requests may have side effects
	}
	return cfg.Tunes() || v.autoInstances && cfg.Instances > 1 || len(v.threadCounts()) > 1
}

// threadCounts returns the possible numbers of threads of a batch. All instances together
// never have more threads than there are cores.
func (v *Version) threadCounts() []int {
	t, ok := v.runner.Engine.(engine.Threader)
	if !ok || !t.AnyThreads(v.Config) {
		return []int{v.threads}
	}
	cores := v.env.opts.Cores
	if !v.autoInstances {
		cores /= v.Config.Instances
	}
	return calibrate.ThreadCounts(cores)
}

// A Replace replaces a serving version with the one that open returns, and drains the old
// one. It reports whether the old version no longer serves, for whatever reason.
type Replace func(ctx context.Context, old *Version, open func(context.Context) (*Version, error)) (replaced bool, err error)

// Tune starts to measure a serving version in idle moments, if that could change how it
// runs. If other parameters are better, it opens another version with them, and calls
// replace.
func (v *Version) Tune(replace Replace) {
	if !v.measurable() {
		return
	}
	if v.inputs == nil {
		v.calibration.Store(&explain.Calibration{State: explain.CalibrationDone, Error: v.noInputsReason})
		return
	}
	t := &tuner{env: v.env, v: v, replace: replace, log: v.env.opts.Log.With("model", v.Config.Name, "version", v.Name()), inputs: *v.inputs, reshapesLeft: maxReshapes}
	t.start(t.run)
}

// A tuner measures one version and chooses its run-time parameters.
type tuner struct {
	env     *Env
	v       *Version
	replace Replace
	log     *slog.Logger

	key    calibrate.Key // without threads and shape
	hasKey bool          // key is known: findings are read from the store, and written to it

	inputs       calibrate.Inputs // to measure with
	staleProfile bool             // the scheduler still has the profile of other inputs
	reshapesLeft int              // how many more times it may switch to another shape
}

// maxReshapes limits how often a version is measured again with the shape of its traffic:
// if shapes keep changing, none is right for long.
const maxReshapes = 4

// start runs work in a goroutine that Close of the version waits for.
func (t *tuner) start(work func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background()) // CancelTuning cancels it
	done := make(chan struct{})
	t.v.mu.Lock()
	defer t.v.mu.Unlock()
	if t.v.tuningCancelled {
		cancel()
		return
	}
	t.v.cancelTuning, t.v.tuningDone = cancel, done
	go func() {
		defer close(done)
		defer cancel()
		if err := t.safely(ctx, work); err != nil && !cancelled(ctx, err) {
			t.log.Warn("model not measured", "error", err)
			t.v.calibration.Store(&explain.Calibration{State: explain.CalibrationDone, Error: err.Error()})
		}
	}()
}

// safely runs work. A panic is an error.
func (t *tuner) safely(ctx context.Context, work func(context.Context) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			panics.Report(t.log, "calibration", cause)
			err = errors.New("internal error; the server's log has the details")
		}
	}()
	panics.Point("calibration")
	return work(ctx)
}

// ErrUnloading is in the error chain of a Replace that failed because the model is being
// unloaded.
var ErrUnloading = errors.New("the model is being unloaded")

// cancelled reports whether err only says that the version is being closed.
func cancelled(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrUnloading)
}

// run measures the version once, and then again whenever the shape of its traffic changes.
func (t *tuner) run(ctx context.Context) error {
	if err := t.identify(ctx); err != nil {
		return err
	}
	replaced, err := t.tune(ctx)
	if err != nil || replaced {
		return err
	}
	return t.followTraffic(ctx)
}

// followTraffic measures the version again whenever most requests have a shape other than
// the one it was measured with.
func (t *tuner) followTraffic(ctx context.Context) error {
	for t.inputs.SizesGuessed() && t.reshapesLeft > 0 {
		known, err := t.inputs.Request(1)
		if err != nil {
			return err
		}
		row, err := t.v.Scheduler.AwaitShapeChange(ctx, known.Shape)
		if err != nil {
			return err
		}
		t.reshapesLeft--
		replaced, err := t.measureShape(ctx, row)
		if replaced || cancelled(ctx, err) {
			return err
		}
		if err != nil {
			t.log.Info("not measured with the shape of its requests", "error", err)
		}
	}
	return nil
}

// measureShape measures with rows of another shape. If that fails before the scheduler has
// a new profile, the old shape stays.
func (t *tuner) measureShape(ctx context.Context, row []tensor.Tensor) (replaced bool, err error) {
	next, err := t.inputs.WithSizesOf(row)
	if err != nil {
		return false, err
	}
	before := t.inputs
	t.inputs, t.staleProfile = next, true
	replaced, err = t.tune(ctx)
	if err != nil && t.staleProfile {
		t.inputs, t.staleProfile = before, false
	}
	return replaced, err
}

// tune measures the version with the current inputs, chooses the best parameters, and
// applies them. It reports whether another version has replaced it.
func (t *tuner) tune(ctx context.Context) (replaced bool, err error) {
	threads := t.v.threadCounts()
	if t.v.Source.Temporary {
		threads = []int{t.v.threads} // its files are gone: it cannot be opened again
	}
	var settings []calibrate.Setting
	for _, n := range threads {
		settings = append(settings, calibrate.Setting{Threads: n, Findings: t.stored(n)})
	}
	t.passProfile(settings) // stored findings are of use while the rest is measured
	steps, err := t.measureAll(ctx, settings)
	if err != nil {
		return false, err
	}
	t.passProfile(settings)
	settings = slices.DeleteFunc(settings, func(s calibrate.Setting) bool { return len(s.Findings.Profile.Sizes) == 0 })
	if len(settings) == 0 {
		return false, errUnmeasured
	}
	best := calibrate.Choose(settings)
	t.v.calibration.Store(t.report(settings, best))
	params := tuning{
		threads: best.Threads, exclusiveThreads: best.ExclusiveThreads, profile: t.withElements(best.Profile(settings)), calibration: t.v.calibration.Load(),
		checked: true, combineUnsafeReason: t.v.Config.CombineUnsafeReason, padding: t.v.Config.Padding, padUnsafeReason: t.v.padUnsafeReason, inputs: &t.inputs, stats: t.v.Stats,
		key: t.v.calibrationKey(),
	}
	if t.v.autoInstances && !t.v.Config.Tunes() { // otherwise the policy limits them
		params.instances = best.Instances
	}
	inUse := best.Threads == t.v.threads && best.ExclusiveThreads == t.v.exclusiveThreads && (params.instances == 0 || params.instances == t.v.Config.Instances)
	inUse = inUse || t.v.Source.Temporary
	t.log.Info("model measured", "steps", steps,
		"threads", best.Threads, "instances", best.Instances, "exclusive_threads", best.ExclusiveThreads, "batch", best.Rows, "rows_per_second", int(best.PerSecond), "single_row", best.SingleLatency,
		"disturbed", slices.ContainsFunc(settings, func(s calibrate.Setting) bool { return s.Findings.Disturbed }), "in_use", inUse, "shape", t.inputs.Shape())
	if inUse {
		return false, nil
	}
	return t.replaceVersion(ctx, params)
}

// errUnmeasured is the error of a version that could not be measured with any number of
// threads. The log has the details.
var errUnmeasured = errors.New("no number of threads could be measured")

// passProfile passes the profile of the current parameters to the scheduler. If the
// scheduler has the profile of other inputs, the new one replaces it as soon as it has
// measurements.
func (t *tuner) passProfile(settings []calibrate.Setting) {
	current := calibrate.Choice{Threads: t.v.threads, ExclusiveThreads: t.v.exclusiveThreads}
	known := t.withElements(current.Profile(settings))
	switch {
	case !t.staleProfile:
		t.v.Scheduler.Calibrated(known)
	case len(known.Sizes) > 0:
		t.v.Scheduler.Recalibrated(known)
		t.staleProfile = false
	}
}

// withElements returns the profile with the number of elements of the rows that it was
// measured with.
func (t *tuner) withElements(p batching.Profile) batching.Profile {
	if req, err := t.inputs.Request(1); err == nil {
		p.Elements = req.Elements
	}
	return p
}

// servesWith reports whether the serving version runs all its batches with the given
// number of threads. It can then be measured itself, without a second version beside it.
func (t *tuner) servesWith(threads int) bool {
	return t.v.threads == threads && t.v.exclusiveThreads == 0
}

// report describes a choice for explain.
func (t *tuner) report(settings []calibrate.Setting, best calibrate.Choice) *explain.Calibration {
	m := &explain.Calibration{State: explain.CalibrationDone, Shape: t.inputs.Shape()}
	switch {
	case m.Shape == "":
	case t.inputs.SeenShape() != "":
		m.ShapeOrigin = explain.TrafficShape
	case len(t.v.Config.Warmup) > 0:
		m.ShapeOrigin = explain.SampleShape
	default:
		m.ShapeOrigin = explain.SyntheticShape
	}
	for _, c := range calibrate.Choices(settings) {
		m.Trials = append(m.Trials, explain.Trial{
			Threads: c.Threads, ExclusiveThreads: c.ExclusiveThreads, Instances: c.Instances, Rows: c.Rows, PerSecond: c.PerSecond, SingleLatency: c.SingleLatency, Chosen: c == best,
		})
	}
	return m
}

// identify computes the key under which results are stored. Hashing a large model takes a
// while, so it is done here, where no client waits for it.
func (t *tuner) identify(ctx context.Context) error {
	if t.v.Source.Temporary {
		return nil
	}
	if known := t.v.calibrationKey(); known != nil { // from when it was open before
		t.key, t.hasKey = *known, true
		return nil
	}
	cfg := t.v.Config
	settings, err := cfg.Encode()
	if err != nil {
		return err
	}
	path := filepath.Join(t.v.Source.Dir, t.v.Source.File)
	select {
	case t.env.hashing <- struct{}{}: // one model at a time, to leave disk bandwidth to loads
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	hash, err := calibrate.Hash(ctx, path, settings)
	<-t.env.hashing
	if err != nil {
		return err
	}
	if t.filesChanged() { // the hash may be that of other files: nothing is stored for it
		return nil
	}
	name := cfg.Backend
	if e, ok := t.v.runner.Engine.(engine.LibraryVersioner); ok {
		name += " " + e.LibraryVersion()
	}
	t.key, t.hasKey = calibrate.Key{Model: hash, Engine: name, CPU: t.env.opts.CPU, Cores: t.env.opts.Cores}, true
	key := t.key
	t.v.mu.Lock()
	defer t.v.mu.Unlock()
	t.v.key = &key
	return nil
}

// stored returns the stored findings for a number of threads.
func (t *tuner) stored(threads int) calibrate.Findings {
	if !t.hasKey {
		return calibrate.Findings{}
	}
	t.key.Threads, t.key.Shape = threads, t.inputs.SeenShape()
	found, _ := t.env.opts.Store.Get(t.key)
	return found
}

// store stores the findings for a number of threads.
func (t *tuner) store(threads int, found calibrate.Findings) {
	if t.hasKey {
		t.key.Threads, t.key.Shape = threads, t.inputs.SeenShape()
		t.env.opts.Store.Put(t.key, found)
	}
}

// measureAll measures the settings without complete findings, the current one first, and
// returns the number of steps. Only one version of the process is measured at a time.
func (t *tuner) measureAll(ctx context.Context, settings []calibrate.Setting) (steps int, err error) {
	incomplete := func(s *calibrate.Setting) bool {
		_, more := calibrate.Next(t.bounds(s.Threads), s.Findings)
		return more
	}
	var todo []*calibrate.Setting
	for i := range settings {
		if s := &settings[i]; incomplete(s) {
			todo = append(todo, s)
		}
	}
	if len(todo) == 0 {
		return 0, nil
	}
	select {
	case t.env.measuring <- struct{}{}:
		defer func() { <-t.env.measuring }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	todo = slices.DeleteFunc(todo, func(s *calibrate.Setting) bool {
		s.Findings = t.stored(s.Threads) // the same model may have been measured under another name
		return !incomplete(s)
	})
	for _, s := range todo {
		if t.servesWith(s.Threads) {
			if steps, err = t.measure(ctx, t.v, s); err != nil {
				return steps, err
			}
			t.passProfile(settings)
		}
	}
	for _, s := range todo {
		if t.servesWith(s.Threads) {
			continue
		}
		n, err := t.measureBeside(ctx, s)
		steps += n
		if ctx.Err() != nil {
			return steps, context.Cause(ctx)
		}
		if err != nil { // such as too little memory for a second version
			t.log.Info("not measured with another number of threads", "threads", s.Threads, "error", err)
		}
	}
	return steps, nil
}

// bounds returns the largest batch and the number of instances to measure with a number of
// threads: no more than there are of a version with these threads, and than the cores allow.
func (t *tuner) bounds(threads int) calibrate.Bounds {
	cfg := t.v.Config
	b := calibrate.Bounds{MaxRows: 1, Instances: cfg.Instances}
	if cfg.Tunes() {
		b.MaxRows = cfg.MaxBatchSize
	}
	if t.v.autoInstances && threads != t.v.threads {
		b.Instances = min(t.v.defaultInstances(threads), max(1, t.env.opts.Cores/threads))
	}
	return b
}

// measureBeside opens the version a second time with another number of threads, and
// measures that.
func (t *tuner) measureBeside(ctx context.Context, s *calibrate.Setting) (steps int, err error) {
	if err := t.env.idleGate.Await(ctx, 0); err != nil {
		return 0, err
	}
	v, err := t.openAgain(ctx, tuning{threads: s.Threads, checked: true, combineUnsafeReason: t.v.Config.CombineUnsafeReason, padding: t.v.Config.Padding, padUnsafeReason: t.v.padUnsafeReason, inputs: &t.inputs})
	if err != nil {
		return 0, err
	}
	steps, err = t.measure(ctx, v, s)
	return steps, errors.Join(err, v.Close())
}

// errChanged is the error of a version whose files have changed since it was loaded.
var errChanged = errors.New("its files have changed since it was loaded")

// openAgain opens the version a second time, with other run-time parameters.
func (t *tuner) openAgain(ctx context.Context, params tuning) (*Version, error) {
	if t.filesChanged() {
		return nil, errChanged
	}
	v, err := t.env.openWithRetries(ctx, t.v.Source, params)
	if err == nil && t.filesChanged() { // maybe before they were read
		return nil, errors.Join(errChanged, v.Close())
	}
	return v, err
}

func (t *tuner) filesChanged() bool {
	changed := t.v.Source.Changed
	return changed != nil && changed()
}

// measure completes the findings of a setting, on a version with that setting.
func (t *tuner) measure(ctx context.Context, v *Version, s *calibrate.Setting) (steps int, err error) {
	s.Findings, err = calibrate.Measure(ctx, calibrate.Job{
		Runner: v.Scheduler, Bounds: t.bounds(s.Threads), Request: t.inputs.Request,
		Await: t.env.idleGate.Await, Memory: t.env.opts.Memory, Waited: t.env.opts.Waited,
		OnProgress: func(f calibrate.Findings) {
			steps++
			t.v.Stats.CalibrationStep()
			if !t.staleProfile { // otherwise partial findings would replace what the policy learned from traffic
				v.Scheduler.Calibrated(t.withElements(f.Profile))
			}
		},
	}, s.Findings)
	if err == nil && s.Findings.StopReason == "" && !s.Findings.Disturbed { // otherwise the next start may measure better
		t.store(s.Threads, s.Findings)
	}
	return steps, err
}

// replaceVersion replaces the version with one that has other run-time parameters, and
// starts a tuner that follows the traffic of the new version.
func (t *tuner) replaceVersion(ctx context.Context, params tuning) (replaced bool, err error) {
	var v *Version
	replaced, err = t.replace(ctx, t.v, func(ctx context.Context) (opened *Version, err error) {
		t.env.idleGate.BeginWork()
		defer t.env.idleGate.EndWork()
		v, err = t.openAgain(ctx, params)
		return v, err
	})
	if errors.Is(err, errChanged) { // what was measured is true of the version that serves
		t.log.Info("other threads would be better, but the files of the model have changed; they are tried when it is loaded again")
		return false, nil
	}
	if err != nil || v == nil { // v is nil if the version was replaced in the meantime
		return replaced, err
	}
	t.log.Info("reloaded with tuned settings", "threads", v.threads, "instances", v.Config.Instances, "exclusive_threads", v.exclusiveThreads)
	if v.inputs != nil {
		next := *t
		next.v, next.inputs = v, *v.inputs
		next.start(next.followTraffic)
	}
	return replaced, nil
}
