package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Load brings a model to what is on disk, or to what the client sent instead. If
// the client leaves, the load goes on.
func (r *Repository) Load(ctx context.Context, name string, with Override) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	return r.load(ctx, name, with)
}

func (r *Repository) load(ctx context.Context, name string, with Override) error {
	done := make(chan error, 1) // so that the load does not wait for a client that has left
	if !r.begin(func() { done <- r.change(name, with) }) {
		return errClosing
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "nobody waits for the load of '%s' any more; it goes on", name)
	}
}

// Why loads end early.
var (
	errClosing  = infer.Errorf(infer.Unavailable, "the server is shutting down")
	errUnloaded = errors.New("the model was unloaded while it was being loaded")
)

// change is Load, one at a time for each model.
func (r *Repository) change(name string, with Override) error {
	m := r.claim(name)
	select {
	case m.turn <- struct{}{}:
	case <-r.closing:
		return errClosing
	}
	ctx, cancel := context.WithCancelCause(context.Background()) // a load ends by itself, or is ended
	defer cancel(nil)
	r.mu.Lock()
	m.halt = cancel
	if r.closed {
		cancel(errClosing)
	}
	m.wanted = m.wanted || !r.started
	r.mu.Unlock()

	began := time.Now()
	c, err := r.bring(ctx, m, with)

	r.mu.Lock()
	m.halt = nil
	r.mu.Unlock()
	<-m.turn
	switch {
	case err != nil:
		r.opts.Log.Error("model not loaded", "model", name, "error", err)
	case len(c.load)+len(c.drop) > 0:
		r.opts.Log.Info("model loaded", "model", name, "loaded", c.load, "kept", c.keep, "replaced", c.drop, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// bring loads what is new, and puts it in the place of what is old.
func (r *Repository) bring(ctx context.Context, m *model, with Override) (change, error) {
	f, with, err := r.source(m, with)
	if err != nil {
		return change{}, r.refuse(m, err)
	}
	if len(with.Files) > 0 {
		defer func() { _ = os.RemoveAll(f.dir) }() // once a model is loaded, its files are not needed
	}
	r.mu.Lock()
	m.over = look{tried: f.whole(), seen: f.whole()}
	r.mu.Unlock()
	w, err := newWish(f, with)
	if err != nil {
		return change{}, r.refuse(m, err)
	}
	have := map[int64]stamp{}
	for _, v := range r.Versions(m.name) {
		have[v.Number] = v.stamp
	}
	c := plan(have, w.versions)
	loaded, err := r.openAll(ctx, m, w, c.load)
	if err != nil {
		return c, err
	}
	r.replace(m, c, loaded)
	r.mu.Lock()
	m.with, m.at = with, f.whole()
	r.mu.Unlock()
	return c, nil
}

// source finds a model on disk, or in what the client sent. A plain load keeps the
// configuration that a client sent before, as long as the files are the same.
func (r *Repository) source(m *model, with Override) (*found, Override, error) {
	if len(with.Files) > 0 {
		f, err := with.unpack(m.name)
		return f, with, err
	}
	f, err := lookup(r.opts.Paths, m.name)
	if err != nil {
		return nil, with, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if with.Config == "" && len(m.with.Files) == 0 && m.at == f.whole() {
		with = m.with
	}
	return f, with, nil
}

// lookup finds one model on disk.
func lookup(paths []string, name string) (*found, error) {
	if !modelconfig.ValidName(name) {
		return nil, infer.Errorf(infer.NotFound, "found %q as a model's name, expected %s", name, modelconfig.NameRule)
	}
	var all []*found
	for _, path := range paths {
		candidates := []string{filepath.Join(path, name), filepath.Join(path, name+".onnx")}
		if filepath.Base(path) == name+".onnx" {
			candidates = []string{path}
		}
		for _, c := range candidates {
			m, err := scanEntry(c)
			if err == nil && m != nil {
				all = append(all, m)
			}
		}
	}
	switch len(all) {
	case 0:
		return nil, infer.Errorf(infer.NotFound, "found no directory %s and no file %s.onnx in %v", name, name, paths)
	case 1:
		return all[0], all[0].err
	}
	return nil, infer.Errorf(infer.Invalid, "it is in two places, %s and %s, expected one", all[0].place(), all[1].place())
}

// refuse answers a load that cannot begin. A model that nobody has heard of
// before is forgotten again.
func (r *Repository) refuse(m *model, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(m.states) == 0 && !m.wanted {
		delete(r.models, m.name)
	}
	code := infer.CodeOf(err)
	if code == infer.Internal {
		code = infer.Invalid // it is about what the client wants to have loaded
	}
	return infer.Errorf(code, "failed to load '%s', failed to poll from model repository: %w", m.name, err)
}

// A wish is what a model's files ask for.
type wish struct {
	found    *found
	with     Override
	versions map[int64]stamp
}

func newWish(f *found, with Override) (*wish, error) {
	w := &wish{found: f, with: with, versions: map[int64]stamp{}}
	cfg, err := w.config()
	if err != nil {
		return nil, err
	}
	all := slices.Collect(maps.Keys(f.versions))
	served := choose(slices.Clone(all), cfg.VersionPolicy)
	if len(served) == 0 {
		slices.Sort(all)
		return nil, fmt.Errorf("at least one version must be available under the version policy of model '%s': found %v in %s, expected a directory such as %s",
			f.name, all, f.dir, filepath.Join(f.dir, "1"))
	}
	for _, n := range served {
		w.versions[n] = f.versions[n] + f.config*31 + with.stamp()
	}
	return w, nil
}

// config reads the configuration. Each version has one of its own, because what
// is left out is completed from the version itself.
func (w *wish) config() (*modelconfig.Config, error) {
	cfg, err := w.parse()
	if err != nil {
		return nil, err
	}
	if cfg.Name != "" && cfg.Name != w.found.name {
		return nil, cfg.Wrong("name", fmt.Sprintf("%q", cfg.Name), "%q, the name of its directory", w.found.name)
	}
	cfg.Name = w.found.name
	if w.found.file != "" {
		cfg.Proto.DefaultModelFilename = w.found.file
	}
	if cfg.Backend == "" {
		cfg.Backend = w.backend(cfg)
	}
	return cfg, nil
}

func (w *wish) parse() (*modelconfig.Config, error) {
	if w.with.Config != "" {
		return modelconfig.ParseJSON([]byte(w.with.Config))
	}
	if w.found.file != "" {
		return modelconfig.Parse("", nil)
	}
	file := filepath.Join(w.found.dir, "config.pbtxt")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return modelconfig.Parse("", nil) // all is left to the model
	}
	if err != nil {
		return nil, err
	}
	return modelconfig.Parse(file, text)
}

// backend returns the one that the files of the first version are for; "" if none
// is known.
func (w *wish) backend(cfg *modelconfig.Config) string {
	first := slices.Min(append(slices.Collect(maps.Keys(w.found.versions)), bareVersion))
	file := cfg.Proto.GetDefaultModelFilename()
	if file == "" {
		file = "model.onnx"
	}
	if _, err := os.Stat(filepath.Join(w.dir(first), file)); err == nil && filepath.Ext(file) == ".onnx" {
		return "onnxruntime"
	}
	return ""
}

// dir returns the directory of a version.
func (w *wish) dir(version int64) string {
	if w.found.file != "" {
		return w.found.dir
	}
	return filepath.Join(w.found.dir, strconv.FormatInt(version, 10))
}

// openAll opens versions, all or none. If one fails, the others are closed, and
// what serves is left as it is.
func (r *Repository) openAll(ctx context.Context, m *model, w *wish, numbers []int64) ([]*Version, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	r.note(m, numbers, Loading, "")
	select {
	case r.loads <- struct{}{}:
		defer func() { <-r.loads }()
	case <-ctx.Done():
		err := context.Cause(ctx)
		r.note(m, numbers, Unavailable, err.Error())
		return nil, err
	}
	var opened []*Version
	for _, n := range numbers {
		v, err := r.openPatiently(ctx, w, n)
		if err != nil {
			for _, other := range opened {
				err = errors.Join(err, other.close())
			}
			r.note(m, numbers, Unavailable, err.Error())
			return nil, failed(m.name, n, err)
		}
		opened = append(opened, v)
	}
	return opened, nil
}

func failed(name string, version int64, err error) error {
	code := infer.CodeOf(err)
	if code == infer.Internal || code == infer.NotFound {
		code = infer.Invalid // it is about the files that the client wants to have loaded
	}
	return infer.Errorf(code, "load failed for model '%s': version %d is at UNAVAILABLE state: %w;", name, version, err)
}

// note sets the states of versions, except that those which serve stay ready.
func (r *Repository) note(m *model, numbers []int64, s State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range numbers {
		if m.states[n].state == Ready {
			if reason != "" {
				m.states[n] = status{Ready, "the version that was loaded before still serves, because the last load failed: " + reason}
			}
			continue
		}
		m.states[n] = status{s, reason}
	}
}

// openPatiently opens a version, within the time and the number of tries that
// there are.
func (r *Repository) openPatiently(ctx context.Context, w *wish, n int64) (v *Version, err error) {
	if r.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.opts.Timeout, infer.Errorf(infer.Deadline,
			"the load has not ended after %v; if the model is only slow, allow more with --model-load-timeout-secs, and otherwise look at its model_warmup", r.opts.Timeout))
		defer cancel()
	}
	for range r.opts.Retries + 1 {
		v, err = r.open(ctx, w, n)
		if ctx.Err() != nil && err != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			return v, nil
		}
	}
	return nil, err
}

func (r *Repository) open(ctx context.Context, w *wish, n int64) (*Version, error) {
	began := time.Now()
	cfg, err := w.config()
	if err != nil {
		return nil, err
	}
	runner, ok := r.opts.Runners[cfg.Backend]
	if !ok {
		return nil, cfg.Wrong("backend", fmt.Sprintf("%q", cfg.Backend), "one of %q", slices.Sorted(maps.Keys(r.opts.Runners)))
	}
	if r.opts.Strict && cfg.Incomplete() {
		return nil, cfg.Wrong("input", "none, or no output", "both, because --disable-auto-complete-config takes nothing from the model")
	}
	src := engine.Source{Config: cfg, Version: n, Dir: w.dir(n)}
	need, err := r.claimMemory(runner.Engine, src)
	if err != nil {
		return nil, err
	}
	defer r.releaseMemory(need) // what it takes by then is not free any more
	loaded, err := runner.Engine.Load(ctx, src)
	if err != nil {
		return nil, err
	}
	v := &Version{Config: cfg, Number: n, Stats: stats.New(cfg.MaxBatchSize), Memory: need, model: loaded, stamp: w.versions[n]}
	if v.Scheduler, err = r.schedule(ctx, v, runner, w.bare()); err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	if err := warm(ctx, v, filepath.Join(w.found.dir, "warmup")); err != nil {
		return nil, errors.Join(err, v.close())
	}
	for _, warning := range cfg.Warnings {
		r.opts.Log.Warn("model configuration", "model", cfg.Name, "version", n, "at", warning.Where, "field", warning.Field, "warning", warning.Text)
	}
	v.Took = time.Since(began)
	return v, nil
}

// claimMemory makes sure that a version has room, beside those that are loaded at
// the same time, and returns about how many bytes it will take.
func (r *Repository) claimMemory(eng engine.Engine, src engine.Source) (int64, error) {
	sizer, ok := eng.(engine.Sizer)
	if !ok || r.opts.Memory == nil {
		return 0, nil
	}
	need, err := sizer.Size(src)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	there := r.opts.Memory()
	there.Free = max(0, there.Free-r.claimed)
	if err := engine.Room(need, there); err != nil {
		return 0, err
	}
	r.claimed += need
	return need, nil
}

func (r *Repository) releaseMemory(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claimed -= n
}

// bare reports whether nothing is known of the model but its file.
func (w *wish) bare() bool {
	if w.with.Config != "" {
		return false
	}
	_, err := os.Stat(filepath.Join(w.found.dir, "config.pbtxt"))
	return w.found.file != "" || err != nil
}

func (r *Repository) schedule(ctx context.Context, v *Version, runner Runner, bare bool) (*sched.Scheduler, error) {
	count, automatic := r.instances(v.Config, runner, bare)
	v.Config.Instances = count // for those who ask
	var opened []engine.Instance
	for range count {
		inst, err := v.model.Instance(ctx)
		if err != nil {
			for _, other := range opened {
				err = errors.Join(err, other.Close())
			}
			return nil, err
		}
		opened = append(opened, inst)
	}
	batching := v.Config.Batching(r.opts.Queue)
	batching.TakeTurns = automatic && runner.Device != nil
	return sched.New(opened, sched.Options{
		Batching: batching,
		Pacer:    r.opts.Pacer,
		Device:   runner.Device,
		Whole:    v.Config.MaxBatchSize == 0,
		Ragged:   v.Config.Ragged(),
		Bisect:   true, // all engines there are run in this process, and keep nothing from one batch to the next
		Log:      r.opts.Log.With("model", v.Config.Name, "version", v.Number),
		Stats:    v.Stats,
	}), nil
}

// instances returns how many batches of a model may run at once, and whether that
// was left to us. A model that is only a file may use every core.
func (r *Repository) instances(cfg *modelconfig.Config, runner Runner, bare bool) (count int, automatic bool) {
	if cfg.Instances > 0 {
		return cfg.Instances, false
	}
	if bare && runner.Device != nil {
		return r.opts.Cores, true
	}
	return max(1, runner.Instances) * max(1, len(cfg.Proto.GetInstanceGroup())), true
}

// replace lets the loaded versions serve, and drains those whose place they take.
func (r *Repository) replace(m *model, c change, loaded []*Version) {
	r.mu.Lock()
	var next, old []*Version
	for _, v := range r.Versions(m.name) {
		if slices.Contains(c.keep, v.Number) {
			next = append(next, v)
		} else {
			old = append(old, v)
		}
	}
	next = append(next, loaded...)
	slices.SortFunc(next, func(a, b *Version) int { return int(a.Number - b.Number) })
	m.wanted = true
	for _, v := range old {
		m.states[v.Number] = status{state: Unloading}
	}
	for _, v := range next {
		m.states[v.Number] = status{state: Ready}
	}
	r.publishLocked(m.name, next)
	r.mu.Unlock()
	r.drain(m, old)
}

// drain lets the requests of versions run that are here, and unloads them, beside
// everything else.
func (r *Repository) drain(m *model, versions []*Version) {
	for _, v := range versions {
		end := func() {
			if err := v.close(); err != nil {
				r.opts.Log.Error("model unloaded with an error", "model", m.name, "version", v.Number, "error", err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if m.states[v.Number].state == Unloading {
				m.states[v.Number] = status{Unavailable, "unloaded"}
			}
			r.opts.Log.Info("model unloaded", "model", m.name, "version", v.Number)
		}
		if !r.begin(end) {
			end()
		}
	}
}

// Unload takes a model out of service: new requests are refused, those that are
// here run, and a load that is under way ends. It returns before they have run.
func (r *Repository) Unload(name string) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	r.unload(name)
	return nil
}

func (r *Repository) unload(name string) {
	r.mu.Lock()
	m := r.models[name]
	if m == nil {
		r.mu.Unlock()
		return // as in Triton: it is not loaded, which is what the client wants
	}
	m.wanted = false
	if m.halt != nil {
		m.halt(errUnloaded)
	}
	r.mu.Unlock()
	m.turn <- struct{}{} // soon: a load that was halted is ending
	defer func() { <-m.turn }()
	r.mu.Lock()
	old := r.Versions(name)
	for _, v := range old {
		m.states[v.Number] = status{state: Unloading}
	}
	m.wanted, m.with, m.at, m.over = false, Override{}, 0, look{}
	r.publishLocked(name, nil)
	r.mu.Unlock()
	r.drain(m, old)
}
