package repository

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
)

// measurable reports whether anything about a version is to be found out that
// measuring tells.
func (r *Repository) measurable(v *Version) bool {
	cfg := v.Config
	if !cfg.Automatic || cfg.Ragged() != nil {
		return false
	}
	if careful, ok := v.model.(engine.Careful); ok && !careful.Rehearses() {
		return false // what it does for a request may be more than an answer
	}
	return cfg.Tunes() || v.counted && cfg.Instances > 1 || len(r.threads(v)) > 1
}

// threads returns with how many threads a version may compute a batch. With those
// of all its instances there are no more than cores.
func (r *Repository) threads(v *Version) []int {
	t, ok := r.opts.Runners[v.Config.Backend].Engine.(engine.Threader)
	if !ok || !t.AnyThreads(v.Config) {
		return []int{v.threads}
	}
	cores := r.opts.Cores
	if !v.counted {
		cores /= v.Config.Instances
	}
	return calibrate.Threads(cores)
}

// note is what the index says of a version that is ready.
func (v *Version) note() string {
	if v.Config.Apart == "" {
		return ""
	}
	return "requests are not combined: " + v.Config.Apart
}

// findOut begins to measure a version that serves, beside everything else.
func (r *Repository) findOut(m *model, w *wish, v *Version) {
	if v.inputs == nil || !r.measurable(v) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background()) // it ends by itself, or with the version
	done := make(chan struct{})
	t := &tuner{r: r, m: m, w: w, v: v}
	work := func() {
		defer close(done)
		defer cancel()
		if err := t.run(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, errUnloaded) && !errors.Is(err, errClosing) {
			r.opts.Log.Warn("model not measured", "model", m.name, "version", v.Number, "error", err)
			v.measured.Store(&explain.Measured{State: explain.Ended, Error: err.Error()})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		cancel()
		return
	}
	v.halt, v.tuned = cancel, done
	r.work.Go(work)
}

// A tuner finds out about one version.
type tuner struct {
	r *Repository
	m *model
	w *wish
	v *Version

	key   calibrate.Key // without threads
	keeps bool          // there is a key
}

func (t *tuner) run(ctx context.Context) error {
	if err := t.identify(ctx); err != nil {
		return err
	}
	threads := t.r.threads(t.v)
	if len(t.w.with.Files) > 0 {
		threads = []int{t.v.threads} // its files are gone, so that it cannot be loaded otherwise
	}
	var settings []calibrate.Setting
	for _, n := range threads {
		settings = append(settings, calibrate.Setting{Threads: n, Found: t.kept(n)})
	}
	t.tell(settings)
	measured, err := t.measureAll(ctx, settings)
	if err != nil {
		return err
	}
	t.tell(settings)
	settings = slices.DeleteFunc(settings, func(s calibrate.Setting) bool { return len(s.Found.Profile.Sizes) == 0 })
	best := calibrate.Choose(settings)
	t.r.opts.Log.Info("model measured", "model", t.m.name, "version", t.v.Number, "steps", measured,
		"threads", best.Threads, "instances", best.Instances, "batch", best.Rows, "perSecond", int(best.PerSecond), "alone", best.Alone,
		"disturbed", slices.ContainsFunc(settings, func(s calibrate.Setting) bool { return s.Found.Disturbed }))
	t.v.measured.Store(told(settings, best))
	how := manner{threads: best.Threads, measured: t.v.measured.Load(), checked: true, apart: t.v.Config.Apart, stats: t.v.Stats}
	for _, s := range settings {
		if s.Threads == best.Threads {
			how.found = s.Found
		}
	}
	fewer := t.v.counted && !t.v.Config.Tunes() && best.Instances != t.v.Config.Instances // nobody else would see to it
	if fewer {
		how.instances = best.Instances
	}
	if !fewer && best.Threads == t.v.threads || len(t.w.with.Files) > 0 {
		return nil
	}
	return t.r.retune(ctx, t.m, t.w, t.v, how)
}

// tell tells the version what is known of it as it runs.
func (t *tuner) tell(settings []calibrate.Setting) {
	for _, s := range settings {
		if s.Threads == t.v.threads {
			t.v.Scheduler.Calibrated(s.Found.Profile)
		}
	}
}

// told is what to tell of a choice.
func told(settings []calibrate.Setting, best calibrate.Choice) *explain.Measured {
	m := &explain.Measured{State: explain.Ended}
	for _, c := range calibrate.Choices(settings) {
		m.Tried = append(m.Tried, explain.Trial{
			Threads: c.Threads, Instances: c.Instances, Rows: c.Rows, PerSecond: c.PerSecond, Alone: c.Alone, Chosen: c == best,
		})
	}
	return m
}

// identify makes the key under which findings are kept. Reading a large model takes
// a while, which is why it is done here, where nobody waits for it.
func (t *tuner) identify(ctx context.Context) error {
	if len(t.w.with.Files) > 0 {
		return nil
	}
	cfg := t.v.Config
	settings, err := proto.MarshalOptions{Deterministic: true}.Marshal(cfg.Proto)
	if err != nil {
		return err
	}
	path := t.w.dir(t.v.Number)
	if t.w.found.file != "" {
		path = filepath.Join(path, t.w.found.file)
	}
	t.r.reading.Lock() // one after the other, so that disks serve those who wait for them
	hash, err := calibrate.Hash(ctx, path, settings)
	t.r.reading.Unlock()
	if err != nil {
		return err
	}
	name := cfg.Backend
	if e, ok := t.r.opts.Runners[cfg.Backend].Engine.(engine.Releaser); ok {
		name += " " + e.Release()
	}
	t.key, t.keeps = calibrate.Key{Model: hash, Engine: name, CPU: t.r.opts.CPU, Cores: t.r.opts.Cores}, true
	return nil
}

// kept returns what is known of a number of threads.
func (t *tuner) kept(threads int) calibrate.Findings {
	if !t.keeps {
		return calibrate.Findings{}
	}
	t.key.Threads = threads
	found, _ := t.r.opts.Store.Get(t.key)
	return found
}

func (t *tuner) keep(threads int, found calibrate.Findings) {
	if t.keeps {
		t.key.Threads = threads
		t.r.opts.Store.Put(t.key, found)
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
	case t.r.tuning <- struct{}{}:
		defer func() { <-t.r.tuning }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	todo = slices.DeleteFunc(todo, func(s *calibrate.Setting) bool {
		s.Found = t.kept(s.Threads) // the same model may have had its turn under another name
		return !unknown(s)
	})
	for _, s := range todo {
		if s.Threads == t.v.threads {
			if steps, err = t.measure(ctx, t.v, s); err != nil {
				return steps, err
			}
		}
	}
	for _, s := range todo {
		if s.Threads == t.v.threads {
			continue
		}
		n, err := t.measureBeside(ctx, s)
		steps += n
		if ctx.Err() != nil {
			return steps, context.Cause(ctx)
		}
		if err != nil { // such as too little memory for another one
			t.r.opts.Log.Info("not measured with another number of threads", "model", t.m.name, "version", t.v.Number, "threads", s.Threads, "error", err)
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
		b.Instances = max(1, t.r.opts.Cores/threads)
	}
	return b
}

// measureBeside loads the version with another number of threads, beside the one
// that serves, and measures it.
func (t *tuner) measureBeside(ctx context.Context, s *calibrate.Setting) (steps int, err error) {
	if err := t.r.spare.Await(ctx, 0); err != nil {
		return 0, err
	}
	v, err := t.r.openPatiently(ctx, t.w, t.v.Number, manner{threads: s.Threads, checked: true, apart: t.v.Config.Apart})
	if err != nil {
		return 0, err
	}
	steps, err = t.measure(ctx, v, s)
	return steps, errors.Join(err, v.close())
}

// measure completes the findings of a setting on a version that has it.
func (t *tuner) measure(ctx context.Context, v *Version, s *calibrate.Setting) (steps int, err error) {
	s.Found, err = calibrate.Measure(ctx, calibrate.Job{
		Runner: v.Scheduler, Bounds: t.bounds(s.Threads), Request: func(rows int) (*infer.Request, error) { return t.v.inputs.First(rows) },
		Await: t.r.spare.Await, Memory: t.r.opts.Memory, Waited: t.r.opts.Waited,
		Tell: func(f calibrate.Findings) {
			steps++
			t.v.Stats.Tried()
			v.Scheduler.Calibrated(f.Profile)
		},
	}, s.Found)
	if err == nil && s.Found.Ended == "" && !s.Found.Disturbed { // there may be more memory next time, and fewer others
		t.keep(s.Threads, s.Found)
	}
	return steps, err
}

// retune puts a version in the place of one that is the same but for the manner in
// which it runs, as any new version takes the place of an old one.
func (r *Repository) retune(ctx context.Context, m *model, w *wish, old *Version, how manner) error {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !r.remembers(m) || !slices.Contains(r.Versions(m.name), old) {
		return nil // somebody else has replaced it meanwhile
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.mu.Lock()
	m.halt = cancel // an unload ends it, as it ends any load
	r.mu.Unlock()
	r.spare.Began()
	v, err := r.openPatiently(ctx, w, old.Number, how)
	r.spare.Ended()
	r.mu.Lock()
	m.halt = nil
	r.mu.Unlock()
	if err != nil {
		return err
	}
	c := change{load: []int64{v.Number}}
	for _, other := range r.Versions(m.name) {
		if other != old {
			c.keep = append(c.keep, other.Number)
		}
	}
	r.replace(m, c, []*Version{v})
	r.opts.Log.Info("model runs in another manner", "model", m.name, "version", v.Number, "threads", v.threads, "instances", v.Config.Instances)
	return nil
}
