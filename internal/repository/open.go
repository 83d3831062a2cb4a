package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/stats"
)

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
	r.spare.Began() // a load takes the cores, too
	defer r.spare.Ended()
	var opened []*Version
	for _, n := range numbers {
		v, err := r.openPatiently(ctx, w, n, manner{})
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
	return infer.Errorf(code, "version %d of model %q cannot be loaded: %w", version, name, err).Because(infer.LoadFailed, name, strconv.FormatInt(version, 10))
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
func (r *Repository) openPatiently(ctx context.Context, w *wish, n int64, how manner) (v *Version, err error) {
	if r.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.opts.Timeout, infer.Errorf(infer.Deadline,
			"the load has not ended after %v; if the model is only slow, allow more with --model-load-timeout-secs, and otherwise look at its model_warmup", r.opts.Timeout))
		defer cancel()
	}
	for range r.opts.Retries + 1 {
		v, err = r.open(ctx, w, n, how)
		if ctx.Err() != nil && err != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			return v, nil
		}
	}
	return nil, err
}

// A manner is how a version runs where its configuration does not say. The zero
// manner is the one in which it begins.
type manner struct {
	threads   int               // of one batch; 0 means that the engine chooses
	lone      int               // of one that begins while no other runs; 0 means as many as of any
	instances int               // 0 means as many as there are cores for
	checked   bool              // whether its rows are computed by themselves is known
	apart     string            // why they are not
	inputs    *calibrate.Inputs // that it is tried with; nil if they are still to be found
	profile   batching.Profile  // what was measured of it so
	measured  *explain.Measured // how that came; nil if it was not measured
	stats     *stats.Counters   // of the version whose place it takes; nil if there is none
}

func (r *Repository) open(ctx context.Context, w *wish, n int64, how manner) (*Version, error) {
	began := time.Now()
	cfg, err := r.config(w, how)
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
	labels, err := readLabels(cfg, w.found.dir)
	if err != nil {
		return nil, err
	}
	src := engine.Source{Config: cfg, Version: n, Dir: w.dir(n), Bare: w.found.file != "", Threads: how.threads, ExclusiveThreads: how.lone}
	need, err := r.claimMemory(runner.Engine, src)
	if err != nil {
		return nil, err
	}
	defer r.releaseMemory(need) // what it takes by then is not free any more
	samples := filepath.Join(w.found.dir, "warmup")
	loaded, err := r.loadSafe(ctx, runner.Engine, w, &src, how, samples)
	if err != nil {
		return nil, err
	}
	cfg = src.Config
	v := &Version{
		Config: cfg, Labels: labels, Number: n, Stats: how.stats, Memory: need,
		model: loaded, stamp: w.versions[n], threads: max(1, how.threads), lone: how.lone,
	}
	if v.Stats == nil {
		v.Stats = stats.New(cfg.MaxBatchSize)
		v.Stats.Objective = cfg.Objective
	}
	if v.Scheduler, err = r.schedule(ctx, v, runner, how); err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	if err := r.warm(ctx, v, samples, how); err != nil {
		return nil, errors.Join(err, v.close())
	}
	v.Scheduler.Calibrated(how.profile)
	v.measured.Store(how.measured)
	for _, warning := range cfg.Warnings {
		r.opts.Log.Warn("model configuration", "model", cfg.Name, "version", n, "at", warning.Where, "field", warning.Field, "warning", warning.Text)
	}
	v.Took = time.Since(began)
	return v, nil
}

// config reads the configuration of a version.
func (r *Repository) config(w *wish, how manner) (*modelconfig.Config, error) {
	cfg, err := w.config()
	if err != nil {
		return nil, err
	}
	cfg.Automatic, cfg.Apart = r.opts.Automatic, how.apart
	return cfg, nil
}

// loadSafe loads a version. If nobody asked to combine its requests, it first makes
// sure that they may be: rows are run alone and together. If they see each other,
// the version is loaded once more, as one whose requests are never combined.
func (r *Repository) loadSafe(ctx context.Context, eng engine.Engine, w *wish, src *engine.Source, how manner, samples string) (engine.Model, error) {
	loaded, err := eng.Load(ctx, *src)
	if err != nil {
		return nil, err
	}
	cfg := src.Config
	if !cfg.Automatic || how.checked || cfg.Dynamic == nil || !cfg.Dynamic.Added || cfg.Ragged() != nil {
		return loaded, nil
	}
	why, err := apart(ctx, cfg, loaded, samples)
	if err == nil && why == "" {
		return loaded, nil
	}
	if err := errors.Join(err, loaded.Close()); err != nil {
		return nil, err
	}
	r.opts.Log.Info("requests are not combined; a config.pbtxt with dynamic_batching { } combines them all the same", "model", cfg.Name, "version", src.Version, "reason", why)
	how.apart = why
	if src.Config, err = r.config(w, how); err != nil {
		return nil, err
	}
	return eng.Load(ctx, *src)
}

// apart says why a model's rows cannot share a batch, or nothing if they can.
func apart(ctx context.Context, cfg *modelconfig.Config, loaded engine.Model, samples string) (string, error) {
	inputs, err := inputsOf(cfg, samples)
	if err != nil {
		return "", err
	}
	inst, err := loaded.Instance(ctx)
	if err != nil {
		return "", err
	}
	why, err := calibrate.Apart(ctx, cfg, inst, inputs)
	return why, errors.Join(err, inst.Close())
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

func (r *Repository) schedule(ctx context.Context, v *Version, runner Runner, how manner) (*sched.Scheduler, error) {
	count, left := r.instances(v.Config, runner, how)
	v.Config.Instances, v.counted = count, left // for those who ask
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
	if err := suits(v.Config, opened[0]); err != nil {
		for _, other := range opened {
			err = errors.Join(err, other.Close())
		}
		return nil, err
	}
	_, v.rereads = opened[0].(engine.Mortal)
	b := v.Config.Batching(r.opts.Queue)
	b.TakeTurns = left && runner.Device != nil
	if v.Config.Tunes() {
		b.Policy = automatic.New(automatic.Options{
			MaxRows: v.Config.MaxBatchSize, Instances: count, Exclusive: how.lone > 0, Preferred: slices.Sorted(slices.Values(v.Config.Dynamic.Preferred)),
			Objective: v.Config.Objective,
		})
	}
	bisects, died := true, false // engines that run in this process keep nothing from one batch to the next
	if careful, ok := v.model.(engine.Careful); ok {
		bisects, died = careful.Retries()
	}
	return sched.New(opened, sched.Options{
		Batching:  b,
		Pacer:     r.opts.Pacer,
		Device:    runner.Device,
		Width:     v.threads,
		Spare:     &r.spare,
		Whole:     v.Config.MaxBatchSize == 0,
		Ragged:    v.Config.Ragged(),
		Bisect:    bisects,
		RetryDied: died,
		Log:       r.opts.Log.With("model", v.Config.Name, "version", v.Number),
		Stats:     v.Stats,
	}), nil
}

// suits returns an error if a configuration asks for what such instances cannot do.
func suits(cfg *modelconfig.Config, inst engine.Instance) error {
	if _, sends := inst.(engine.Sender); cfg.Decoupled && !sends {
		return cfg.Wrong("model_transaction_policy.decoupled", true, "false, because models of this backend answer a request once")
	}
	optional := slices.IndexFunc(cfg.Inputs, func(t modelconfig.Tensor) bool { return t.Optional })
	if _, each := inst.(engine.Each); optional >= 0 && !each {
		return cfg.Wrong(fmt.Sprintf("input[%d].optional", optional), true, "false, because models of this backend need all their inputs")
	}
	return nil
}

// instances returns how many batches of a model may run at once, and whether that
// was left to us. Then there are as many as the cores have room for, and the
// policy says how many of them are of use.
func (r *Repository) instances(cfg *modelconfig.Config, runner Runner, how manner) (count int, left bool) {
	switch {
	case cfg.Instances > 0:
		return cfg.Instances, false
	case how.instances > 0:
		return how.instances, true
	case cfg.Automatic && runner.Device != nil && len(cfg.Proto.GetInstanceGroup()) == 0:
		return max(1, r.opts.Cores/max(1, how.threads)), true
	}
	return max(1, runner.Instances) * max(1, len(cfg.Proto.GetInstanceGroup())), true
}
