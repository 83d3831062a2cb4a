package servable

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
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

// Open loads a version, checks whether its requests may be combined, and warms it up,
// within the time and the number of tries that there are. The caller closes it.
func (e *Env) Open(ctx context.Context, src Source) (*Version, error) {
	e.spare.Began() // a load takes the cores, too
	defer e.spare.Ended()
	return e.openTuned(ctx, src, tuning{})
}

func (e *Env) openTuned(ctx context.Context, src Source, how tuning) (v *Version, err error) {
	if e.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.opts.Timeout, infer.Errorf(infer.Deadline,
			"the load has not ended after %v; if the model is only slow, allow more with --model-load-timeout-secs, and otherwise look at its model_warmup", e.opts.Timeout))
		defer cancel()
	}
	for range e.opts.Retries + 1 {
		v, err = e.open(ctx, src, how)
		if ctx.Err() != nil && err != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			return v, nil
		}
	}
	return nil, err
}

// A tuning is how a version runs where its configuration does not say. The zero tuning
// is the one in which it begins.
type tuning struct {
	threads   int               // of one batch; 0 means that the engine chooses
	exclusive int               // of an exclusive batch; 0 means as many as of any
	instances int               // 0 means as many as there are cores for
	checked   bool              // whether its rows are computed by themselves is known
	apart     string            // why they are not
	inputs    *calibrate.Inputs // that it is tried with; nil if they are still to be found
	profile   batching.Profile  // what was measured of it so
	measured  *explain.Measured // how that came; nil if it was not measured
	stats     *stats.Counters   // of the version whose place it takes; nil if there is none
}

func (e *Env) open(ctx context.Context, src Source, how tuning) (*Version, error) {
	began := time.Now()
	cfg, err := e.config(src, how)
	if err != nil {
		return nil, err
	}
	runner, ok := e.opts.Runners[cfg.Backend]
	if !ok {
		return nil, cfg.Wrong("backend", fmt.Sprintf("%q", cfg.Backend), "one of %q", slices.Sorted(maps.Keys(e.opts.Runners)))
	}
	if e.opts.Strict && cfg.Incomplete() {
		return nil, cfg.Wrong("input", "none, or no output", "both, because --disable-auto-complete-config takes nothing from the model")
	}
	labels, err := readLabels(cfg, src.Home)
	if err != nil {
		return nil, err
	}
	v := &Version{
		Source: src, Config: cfg, Labels: labels, Stats: how.stats,
		env: e, runner: runner, threads: max(1, how.threads), exclusive: how.exclusive, closed: make(chan struct{}),
	}
	if src.Workers == nil {
		err = v.load(ctx, how)
	} else {
		v.vacant = true
		v.keep()
		v.schedule([]engine.Instance{placeholder{}}, src.Workers.Apart, false)
	}
	if err != nil {
		return nil, err
	}
	v.measured.Store(how.measured)
	for _, warning := range v.Config.Warnings {
		e.opts.Log.Warn("model configuration", "model", cfg.Name, "version", v.Name(), "at", warning.Where, "field", warning.Field, "warning", warning.Text)
	}
	v.Took = time.Since(began)
	return v, nil
}

// config reads the configuration of a version.
func (e *Env) config(src Source, how tuning) (*modelconfig.Config, error) {
	cfg, err := src.Config()
	if err != nil {
		return nil, err
	}
	cfg.Automatic, cfg.Apart = e.opts.Automatic, how.apart
	return cfg, nil
}

// engineSource returns what the engine loads.
func (v *Version) engineSource() engine.Source {
	src := v.Source
	return engine.Source{Config: v.Config, Version: src.Number, Dir: src.Dir, Bare: src.File != "", ExclusiveThreads: v.exclusive}
}

// load loads the version with all its instances, and warms it up.
func (v *Version) load(ctx context.Context, how tuning) error {
	src := v.engineSource()
	src.Threads = how.threads
	need, err := v.env.claimMemory(v.runner.Engine, src)
	if err != nil {
		return err
	}
	defer v.env.releaseMemory(need) // what it takes by then is not free any more
	v.Memory = need
	if v.model, err = v.loadSafe(ctx, &src, how); err != nil {
		return err
	}
	v.Config = src.Config
	instances, err := v.instances(ctx, how)
	if err != nil {
		return errors.Join(err, v.model.Close())
	}
	if _, mortal := instances[0].(engine.Mortal); mortal {
		v.keep() // one that died reads them again
	}
	bisects, died := true, false // engines that run in this process keep nothing from one batch to the next
	if careful, ok := v.model.(engine.Careful); ok {
		bisects, died = careful.Retries()
	}
	v.schedule(instances, bisects, died)
	if err := v.warm(ctx, how); err != nil {
		return errors.Join(err, v.Close())
	}
	v.Scheduler.Calibrated(how.profile)
	return nil
}

// keep keeps the version's files until it is closed.
func (v *Version) keep() {
	if v.Source.Keep != nil {
		v.release = v.Source.Keep()
	}
}

// loadSafe loads the model. If nobody asked to combine its requests, it first makes
// sure that they may be: rows are run alone and together. If they see each other,
// the version is loaded once more, as one whose requests are never combined.
func (v *Version) loadSafe(ctx context.Context, src *engine.Source, how tuning) (engine.Model, error) {
	loaded, err := v.runner.Engine.Load(ctx, *src)
	if err != nil {
		return nil, err
	}
	cfg := src.Config
	if !cfg.Automatic || how.checked || cfg.Dynamic == nil || !cfg.Dynamic.Added || cfg.Ragged() != nil {
		return loaded, nil
	}
	why, err := apart(ctx, cfg, loaded, v.samples())
	if err == nil && why == "" {
		return loaded, nil
	}
	if err := errors.Join(err, loaded.Close()); err != nil {
		return nil, err
	}
	v.env.opts.Log.Info("requests are not combined; a config.pbtxt with dynamic_batching { } combines them all the same", "model", cfg.Name, "version", src.Version, "reason", why)
	how.apart = why
	if src.Config, err = v.env.config(v.Source, how); err != nil {
		return nil, err
	}
	return v.runner.Engine.Load(ctx, *src)
}

// samples returns the directory of what the version is warmed up with.
func (v *Version) samples() string { return filepath.Join(v.Source.Home, "warmup") }

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

// instances opens as many as the version has, all or none.
func (v *Version) instances(ctx context.Context, how tuning) ([]engine.Instance, error) {
	v.Config.Instances, v.counted = v.instanceCount(how) // for those who ask
	var opened []engine.Instance
	var err error
	for len(opened) < v.Config.Instances && err == nil {
		var inst engine.Instance
		if inst, err = v.model.Instance(ctx); err == nil {
			opened = append(opened, inst)
		}
	}
	if err == nil {
		err = suits(v.Config, opened[0])
	}
	if err != nil {
		for _, inst := range opened {
			err = errors.Join(err, inst.Close())
		}
		return nil, err
	}
	return opened, nil
}

// schedule lets requests come. The instances are the scheduler's from now on.
func (v *Version) schedule(instances []engine.Instance, bisect, retryDied bool) {
	cfg, e := v.Config, v.env
	if v.Stats == nil {
		v.Stats = stats.New(cfg.MaxBatchSize)
		v.Stats.Objective = cfg.Objective
	}
	queue := e.opts.Queue
	if w := v.Source.Workers; w != nil {
		queue = w.Queue
	}
	b := cfg.Batching(queue)
	b.TakeTurns = v.counted && v.runner.Device != nil
	switch w := v.Source.Workers; {
	case w != nil && w.Policy != nil:
		b.Policy = w.Policy
	case cfg.Tunes():
		b.Policy = automatic.New(automatic.Options{
			MaxRows: cfg.MaxBatchSize, Instances: max(1, cfg.Instances), Exclusive: v.exclusive > 0, Preferred: slices.Sorted(slices.Values(cfg.Dynamic.Preferred)),
			Objective: cfg.Objective,
		})
	}
	v.Scheduler = sched.New(instances, sched.Options{
		Batching:  b,
		Pacer:     e.opts.Pacer,
		Device:    v.runner.Device,
		Width:     v.threads,
		Spare:     &e.spare,
		Whole:     cfg.MaxBatchSize == 0,
		Ragged:    cfg.Ragged(),
		Bisect:    bisect,
		RetryDied: retryDied,
		Log:       e.opts.Log.With("model", cfg.Name, "version", v.Name()),
		Stats:     v.Stats,
	})
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

// instanceCount returns how many batches of a model may run at once, and whether that
// was left to us. Then there are as many as the cores have room for, and the
// policy says how many of them are of use.
func (v *Version) instanceCount(how tuning) (count int, left bool) {
	cfg := v.Config
	switch {
	case cfg.Instances > 0:
		return cfg.Instances, false
	case how.instances > 0:
		return how.instances, true
	case cfg.Automatic && v.runner.Device != nil && len(cfg.Proto.GetInstanceGroup()) == 0:
		return max(1, v.env.opts.Cores/max(1, how.threads)), true
	}
	return max(1, v.runner.Instances) * max(1, len(cfg.Proto.GetInstanceGroup())), true
}
