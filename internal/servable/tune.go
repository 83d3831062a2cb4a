package servable

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/tensor"
)

// measurable reports whether anything about a version is to be found out that
// measuring tells.
func (v *Version) measurable() bool {
	cfg := v.Config
	if !cfg.Automatic || cfg.Ragged() != nil || v.Source.Workers != nil {
		return false
	}
	if careful, ok := v.model.(engine.Careful); ok && !careful.Rehearses() {
		return false // what it does for a request may be more than an answer
	}
	return cfg.Tunes() || v.counted && cfg.Instances > 1 || len(v.threadCounts()) > 1
}

// threadCounts returns with how many threads the version may compute a batch. With
// those of all its instances there are no more than cores.
func (v *Version) threadCounts() []int {
	t, ok := v.runner.Engine.(engine.Threader)
	if !ok || !t.AnyThreads(v.Config) {
		return []int{v.threads}
	}
	cores := v.env.opts.Cores
	if !v.counted {
		cores /= v.Config.Instances
	}
	return calibrate.Threads(cores)
}

// A Replace puts what open returns in the place of a version that serves, and drains
// that one. It reports whether the old one serves no more, for whatever reason.
type Replace func(ctx context.Context, old *Version, open func(context.Context) (*Version, error)) (replaced bool, err error)

// Tune begins to measure a version that serves, in idle moments, if measuring could
// change how it runs. What runs otherwise takes its place with replace.
func (v *Version) Tune(replace Replace) {
	if v.inputs == nil || !v.measurable() {
		return
	}
	t := &tuner{env: v.env, v: v, replace: replace, log: v.env.opts.Log.With("model", v.Config.Name, "version", v.Name()), inputs: *v.inputs, turns: shapes}
	t.begin(t.run)
}

// begin does work about the version, beside everything else.
func (t *tuner) begin(work func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background()) // it ends by itself, or with the version
	done := make(chan struct{})
	t.v.mu.Lock()
	defer t.v.mu.Unlock()
	if t.v.halted {
		cancel()
		return
	}
	t.v.halt, t.v.tuned = cancel, done
	go func() { // Close waits for it
		defer close(done)
		defer cancel()
		if err := work(ctx); err != nil && !over(ctx, err) {
			t.log.Warn("model not measured", "error", err)
			t.v.measured.Store(&explain.Measured{State: explain.Ended, Error: err.Error()})
		}
	}()
}

// ErrUnloading is in the chain of the error of a Replace that came too late: the model
// is being unloaded.
var ErrUnloading = errors.New("the model is being unloaded")

// over reports whether work about a version has failed only because the version is
// to end.
func over(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrUnloading)
}

// A tuner finds out about one version.
type tuner struct {
	env     *Env
	v       *Version
	replace Replace
	log     *slog.Logger

	key   calibrate.Key // without threads and shape
	keeps bool          // there is a key

	inputs calibrate.Inputs // that it measures with
	anew   bool             // the version was not told yet what was found with them, but what was with others
	turns  int              // times that it may still measure with another shape
}

// shapes is how often a version turns to the shape that its traffic has: where that
// changes for ever, no shape is right for long.
const shapes = 4

func (t *tuner) run(ctx context.Context) error {
	if err := t.identify(ctx); err != nil {
		return err
	}
	replaced, err := t.find(ctx)
	if err != nil || replaced {
		return err
	}
	return t.follow(ctx)
}

// follow finds out once more each time that most requests have another shape than
// what the version was measured with.
func (t *tuner) follow(ctx context.Context) error {
	for t.inputs.Guessed() && t.turns > 0 {
		known, err := t.inputs.First(1)
		if err != nil {
			return err
		}
		row, err := t.v.Scheduler.Another(ctx, known.Shape)
		if err != nil {
			return err
		}
		t.turns--
		replaced, err := t.turn(ctx, row)
		if replaced || over(ctx, err) {
			return err
		}
		if err != nil {
			t.log.Info("not measured with the shape of its requests", "error", err)
		}
	}
	return nil
}

// turn finds out with rows of another shape. If it fails before the version was told
// anything of it, the old shape stays.
func (t *tuner) turn(ctx context.Context, row []tensor.Tensor) (replaced bool, err error) {
	next, err := t.inputs.Like(row)
	if err != nil {
		return false, err
	}
	before := t.inputs
	t.inputs, t.anew = next, true
	replaced, err = t.find(ctx)
	if err != nil && t.anew {
		t.inputs, t.anew = before, false
	}
	return replaced, err
}

// find finds out about the version with some inputs, and lets it run as is best for
// it. It reports whether another version has taken its place.
func (t *tuner) find(ctx context.Context) (replaced bool, err error) {
	threads := t.v.threadCounts()
	if t.v.Source.Fleeting {
		threads = []int{t.v.threads} // its files are gone, so that it cannot be loaded otherwise
	}
	var settings []calibrate.Setting
	for _, n := range threads {
		settings = append(settings, calibrate.Setting{Threads: n, Found: t.kept(n)})
	}
	t.tell(settings)
	measured, err := t.measureAll(ctx, settings)
	if err != nil {
		return false, err
	}
	t.tell(settings)
	settings = slices.DeleteFunc(settings, func(s calibrate.Setting) bool { return len(s.Found.Profile.Sizes) == 0 })
	if len(settings) == 0 {
		return false, errUnmeasured
	}
	best := calibrate.Choose(settings)
	t.v.measured.Store(t.told(settings, best))
	how := tuning{
		threads: best.Threads, exclusive: best.ExclusiveThreads, profile: best.Profile(settings), measured: t.v.measured.Load(),
		checked: true, apart: t.v.Config.Apart, inputs: &t.inputs, stats: t.v.Stats,
	}
	if t.v.counted && !t.v.Config.Tunes() { // nobody else would see to it
		how.instances = best.Instances
	}
	fits := best.Threads == t.v.threads && best.ExclusiveThreads == t.v.exclusive && (how.instances == 0 || how.instances == t.v.Config.Instances)
	fits = fits || t.v.Source.Fleeting
	t.log.Info("model measured", "steps", measured,
		"threads", best.Threads, "instances", best.Instances, "exclusiveThreads", best.ExclusiveThreads, "batch", best.Rows, "perSecond", int(best.PerSecond), "alone", best.Alone,
		"disturbed", slices.ContainsFunc(settings, func(s calibrate.Setting) bool { return s.Found.Disturbed }), "runsSo", fits, "shape", t.inputs.Shape())
	if fits {
		return false, nil
	}
	return t.retune(ctx, how)
}

// errUnmeasured is that of a version that serves otherwise than it can be measured.
// Why, the log has said.
var errUnmeasured = errors.New("no number of threads could be measured")

// tell tells the version what is known of it as it runs.
func (t *tuner) tell(settings []calibrate.Setting) {
	runs := calibrate.Choice{Threads: t.v.threads, ExclusiveThreads: t.v.exclusive}
	known := runs.Profile(settings)
	switch {
	case !t.anew:
		t.v.Scheduler.Calibrated(known)
	case len(known.Sizes) > 0:
		t.v.Scheduler.Recalibrated(known)
		t.anew = false
	}
}

// serves reports whether the version that serves computes every batch with so many
// threads, so that it can be measured itself.
func (t *tuner) serves(threads int) bool { return t.v.threads == threads && t.v.exclusive == 0 }

// told is what to tell of a choice.
func (t *tuner) told(settings []calibrate.Setting, best calibrate.Choice) *explain.Measured {
	m := &explain.Measured{State: explain.Ended, Shape: t.inputs.Shape()}
	switch {
	case m.Shape == "":
	case t.inputs.Seen() != "":
		m.ShapeFrom = explain.Traffic
	case len(t.v.Config.Warmup) > 0:
		m.ShapeFrom = explain.Sample
	default:
		m.ShapeFrom = explain.MadeUp
	}
	for _, c := range calibrate.Choices(settings) {
		m.Tried = append(m.Tried, explain.Trial{
			Threads: c.Threads, ExclusiveThreads: c.ExclusiveThreads, Instances: c.Instances, Rows: c.Rows, PerSecond: c.PerSecond, Alone: c.Alone, Chosen: c == best,
		})
	}
	return m
}

// identify makes the key under which findings are kept. Reading a large model takes
// a while, which is why it is done here, where nobody waits for it.
func (t *tuner) identify(ctx context.Context) error {
	if t.v.Source.Fleeting {
		return nil
	}
	cfg := t.v.Config
	settings, err := cfg.Encode()
	if err != nil {
		return err
	}
	path := filepath.Join(t.v.Source.Dir, t.v.Source.File)
	t.env.reading.Lock() // one after the other, so that disks serve those who wait for them
	hash, err := calibrate.Hash(ctx, path, settings)
	t.env.reading.Unlock()
	if err != nil {
		return err
	}
	name := cfg.Backend
	if e, ok := t.v.runner.Engine.(engine.Releaser); ok {
		name += " " + e.Release()
	}
	t.key, t.keeps = calibrate.Key{Model: hash, Engine: name, CPU: t.env.opts.CPU, Cores: t.env.opts.Cores}, true
	return nil
}

// kept returns what is known of a number of threads.
func (t *tuner) kept(threads int) calibrate.Findings {
	if !t.keeps {
		return calibrate.Findings{}
	}
	t.key.Threads, t.key.Shape = threads, t.inputs.Seen()
	found, _ := t.env.opts.Store.Get(t.key)
	return found
}

func (t *tuner) keep(threads int, found calibrate.Findings) {
	if t.keeps {
		t.key.Threads, t.key.Shape = threads, t.inputs.Seen()
		t.env.opts.Store.Put(t.key, found)
	}
}

// measureAll measures what is not known yet, the version as it serves first, and
// returns how many steps that took. One version is measured at a time, of all
// models.
func (t *tuner) measureAll(ctx context.Context, settings []calibrate.Setting) (steps int, err error) {
	unknown := func(s *calibrate.Setting) bool {
		_, more := calibrate.Next(t.bounds(s.Threads), s.Found)
		return more
	}
	var todo []*calibrate.Setting
	for i := range settings {
		if s := &settings[i]; unknown(s) {
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
		s.Found = t.kept(s.Threads) // the same model may have had its turn under another name
		return !unknown(s)
	})
	for _, s := range todo {
		if t.serves(s.Threads) {
			if steps, err = t.measure(ctx, t.v, s); err != nil {
				return steps, err
			}
			t.tell(settings)
		}
	}
	for _, s := range todo {
		if t.serves(s.Threads) {
			continue
		}
		n, err := t.measureBeside(ctx, s)
		steps += n
		if ctx.Err() != nil {
			return steps, context.Cause(ctx)
		}
		if err != nil { // such as too little memory for another one
			t.log.Info("not measured with another number of threads", "threads", s.Threads, "error", err)
		}
	}
	return steps, nil
}

// bounds returns how far the version is measured with a number of threads.
func (t *tuner) bounds(threads int) calibrate.Bounds {
	cfg := t.v.Config
	b := calibrate.Bounds{MaxRows: 1, Instances: cfg.Instances}
	if cfg.Tunes() {
		b.MaxRows = cfg.MaxBatchSize
	}
	if t.v.counted && threads != t.v.threads {
		b.Instances = max(1, t.env.opts.Cores/threads)
	}
	return b
}

// measureBeside loads the version with another number of threads, beside the one
// that serves, and measures it.
func (t *tuner) measureBeside(ctx context.Context, s *calibrate.Setting) (steps int, err error) {
	if err := t.env.spare.Await(ctx, 0); err != nil {
		return 0, err
	}
	v, err := t.env.openTuned(ctx, t.v.Source, tuning{threads: s.Threads, checked: true, apart: t.v.Config.Apart, inputs: &t.inputs})
	if err != nil {
		return 0, err
	}
	steps, err = t.measure(ctx, v, s)
	return steps, errors.Join(err, v.Close())
}

// measure completes the findings of a setting on a version that has it.
func (t *tuner) measure(ctx context.Context, v *Version, s *calibrate.Setting) (steps int, err error) {
	s.Found, err = calibrate.Measure(ctx, calibrate.Job{
		Runner: v.Scheduler, Bounds: t.bounds(s.Threads), Request: t.inputs.First,
		Await: t.env.spare.Await, Memory: t.env.opts.Memory, Waited: t.env.opts.Waited,
		Tell: func(f calibrate.Findings) {
			steps++
			t.v.Stats.Tried()
			if !t.anew { // a part of it would be less than the version has learnt from its traffic
				v.Scheduler.Calibrated(f.Profile)
			}
		},
	}, s.Found)
	if err == nil && s.Found.Ended == "" && !s.Found.Disturbed { // there may be more memory next time, and fewer others
		t.keep(s.Threads, s.Found)
	}
	return steps, err
}

// retune puts a version in the place of one that is the same but for how it is tuned,
// as any new version takes the place of an old one.
func (t *tuner) retune(ctx context.Context, how tuning) (replaced bool, err error) {
	var v *Version
	replaced, err = t.replace(ctx, t.v, func(ctx context.Context) (opened *Version, err error) {
		t.env.spare.Began()
		defer t.env.spare.Ended()
		v, err = t.env.openTuned(ctx, t.v.Source, how)
		return v, err
	})
	if err != nil || v == nil { // or somebody else has replaced it meanwhile
		return replaced, err
	}
	t.log.Info("model runs in another manner", "threads", v.threads, "instances", v.Config.Instances, "exclusiveThreads", v.exclusive)
	if v.inputs != nil {
		next := *t
		next.v, next.inputs = v, *v.inputs
		next.begin(next.follow)
	}
	return replaced, nil
}
