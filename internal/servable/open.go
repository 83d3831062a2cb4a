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

// Open loads a version, checks whether its requests may share batches, and warms it up,
// within the time limit and with the retries of the options. The caller closes it.
func (e *Env) Open(ctx context.Context, src Source) (*Version, error) {
	e.idleGate.BeginWork() // loading uses the cores, too
	defer e.idleGate.EndWork()
	params := tuning{}
	if src.Resume != nil && src.Resume.fingerprint == src.Fingerprint {
		params = src.Resume.params
	}
	v, err := e.openWithRetries(ctx, src, params)
	if err != nil {
		return nil, err
	}
	if params.checked {
		return v, nil // it was open before, and the log has the findings
	}
	findings := v.Config.Findings()
	if v.Config.CacheResponses && !e.opts.Cached {
		findings = append(findings, v.Config.WithoutCache())
	}
	for _, f := range findings { // once, and not again when the version is tuned
		e.opts.Log.Warn("model configuration", "model", v.Config.Name, "version", v.Name(), "at", f.Where, "field", f.Field, "warning", f.Text())
	}
	return v, nil
}

// openWithRetries opens a version with the given parameters, within the time limit and with
// the retries of the options.
func (e *Env) openWithRetries(ctx context.Context, src Source, params tuning) (v *Version, err error) {
	if e.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.opts.Timeout, infer.Errorf(infer.Deadline,
			"the load has not ended after %v; if the model is only slow, allow more with --model-load-timeout-secs, and otherwise look at its model_warmup", e.opts.Timeout))
		defer cancel()
	}
	for range e.opts.Retries + 1 {
		v, err = e.open(ctx, src, params)
		if ctx.Err() != nil && err != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			return v, nil
		}
	}
	return nil, err
}

// A tuning holds the run-time parameters that a configuration omits, and what is known about
// a version from when it was open before. A version is first opened with the zero tuning;
// the tuner opens it again with what it has measured.
type tuning struct {
	threads             int                  // of a batch; 0 means that the engine chooses
	exclusiveThreads    int                  // threads of an exclusive batch; 0 means the same
	instances           int                  // 0 means the default; see defaultInstances
	checked             bool                 // the check for independent rows was made
	combineUnsafeReason string               // why rows are not independent; "" if they are
	padding             *modelconfig.Padding // how requests are padded; nil if they are not
	padUnsafeReason     string               // why requests are not padded although the model suggests it; "" if they are
	inputs              *calibrate.Inputs    // for calibration; nil means that they are still to be found
	profile             batching.Profile     // measured with these parameters
	calibration         *explain.Calibration // the result of calibration; nil if there is none
	stats               *stats.Counters      // of the version that is replaced; nil if there is none
	key                 *calibrate.Key       // of its calibration results; nil if it is not known yet
}

// open makes one attempt to open a version.
func (e *Env) open(ctx context.Context, src Source, params tuning) (*Version, error) {
	began := time.Now()
	cfg, err := e.config(src, params)
	if err != nil {
		return nil, err
	}
	runner, ok := e.opts.Runners[cfg.Backend]
	if !ok {
		return nil, cfg.UnsupportedBackend(slices.Sorted(maps.Keys(e.opts.Runners)))
	}
	if e.opts.Strict && cfg.Incomplete() {
		return nil, cfg.Invalid("input", "config.pbtxt must list all inputs and outputs, because --disable-auto-complete-config is set")
	}
	labels, err := ReadLabels(cfg, src.ModelDir)
	if err != nil {
		return nil, err
	}
	if err := readInitialStates(cfg, src.ModelDir); err != nil {
		return nil, err
	}
	v := &Version{
		ID: e.opened.Add(1), Source: src, Config: cfg, Labels: labels, Stats: params.stats, params: params, key: params.key,
		env: e, runner: runner, device: e.deviceOf(runner, cfg), threads: max(1, params.threads), exclusiveThreads: params.exclusiveThreads, closed: make(chan struct{}), scaling: make(chan struct{}, 1),
	}
	if src.Workers == nil {
		err = v.load(ctx, params)
	} else {
		v.placeholder = true
		v.keepFiles()
		v.startScheduler([]engine.Instance{placeholder{}}, src.Workers.Bisect, false)
	}
	if err != nil {
		return nil, err
	}
	v.calibration.Store(params.calibration)
	v.LoadTime = time.Since(began)
	return v, nil
}

// config reads the configuration of a version.
func (e *Env) config(src Source, params tuning) (*modelconfig.Config, error) {
	cfg, err := src.Config()
	if err != nil {
		return nil, err
	}
	cfg.Automatic, cfg.CombineUnsafeReason = e.opts.Automatic, params.combineUnsafeReason
	e.opts.Defaults[cfg.Backend].Apply(cfg)
	return cfg, nil
}

// engineSource returns what the engine loads.
func (v *Version) engineSource() engine.Source {
	src, limit := v.Source, v.env.opts.Timeout
	if src.Workers != nil {
		limit = src.Workers.Startup
	}
	return engine.Source{
		Config: v.Config, Version: src.Number, Dir: src.Dir, Bare: src.File != "", ExclusiveThreads: v.exclusiveThreads, RestartTimeout: limit,
	}
}

// load loads the model, opens its instances, and warms them up.
func (v *Version) load(ctx context.Context, params tuning) error {
	src := v.engineSource()
	src.Threads = params.threads
	need, err := v.env.claimMemory(v.runner.Engine, src)
	if err != nil {
		return err
	}
	defer v.env.releaseMemory(need) // by then it is in use, and not free any more
	v.Memory = need
	if v.model, err = v.loadSafe(ctx, &src, params); err != nil {
		return err
	}
	v.Config = src.Config
	instances, err := v.openInstances(ctx, params)
	if err != nil {
		return errors.Join(err, v.model.Close())
	}
	if _, restartable := instances[0].(engine.Restartable); restartable || v.Source.AlwaysKeep {
		v.keepFiles() // a restarted instance reads them again, or a version with other threads does
	}
	bisect, retryDied := true, false // engines in this process are stateless between batches
	if retry, ok := v.model.(engine.RetryPolicy); ok {
		bisect, retryDied = retry.Retries()
	}
	if v.Config.Sequence != nil {
		bisect, retryDied = false, false // the model may have changed its state
	}
	v.startScheduler(instances, bisect, retryDied)
	stop := abortWith(ctx, instances...)
	err = v.warmUp(ctx, params)
	if !stop() && err == nil {
		err = context.Cause(ctx) // instances may have been aborted
	}
	if err != nil {
		return errors.Join(err, v.Close())
	}
	v.Scheduler.Calibrated(params.profile)
	return nil
}

// keepFiles keeps the version's files until it is closed.
func (v *Version) keepFiles() {
	if v.Source.KeepFiles != nil {
		v.releaseFiles = v.Source.KeepFiles()
	}
}

// loadSafe loads the model. If batching is not configured, it also checks that rows are
// independent: it runs them one by one and in batches, and compares the results. If the
// results differ, it loads the model again, with a configuration that never combines
// requests, and sets src.Config to that.
func (v *Version) loadSafe(ctx context.Context, src *engine.Source, params tuning) (engine.Model, error) {
	loaded, err := v.runner.Engine.Load(ctx, *src)
	if err != nil {
		return nil, err
	}
	cfg := src.Config
	if params.checked {
		cfg.Padding, v.padUnsafeReason = params.padding, params.padUnsafeReason
		return loaded, nil
	}
	if !cfg.Automatic || cfg.Dynamic == nil || !cfg.Dynamic.Added || cfg.Ragged() != nil {
		return loaded, v.checkPadding(ctx, cfg, loaded)
	}
	why, err := combineUnsafeReason(ctx, cfg, loaded, v.sampleDir())
	if err == nil && why == "" {
		return loaded, v.checkPadding(ctx, cfg, loaded)
	}
	if err := errors.Join(err, loaded.Close()); err != nil {
		return nil, err
	}
	v.env.opts.Log.Info("requests are not combined; a config.pbtxt with dynamic_batching { } combines them all the same", "model", cfg.Name, "version", src.Version, "reason", why)
	params.combineUnsafeReason = why // such a model is not padded, either
	if src.Config, err = v.env.config(v.Source, params); err != nil {
		return nil, err
	}
	return v.runner.Engine.Load(ctx, *src)
}

// checkPadding checks whether requests can be padded, if the configuration or the model
// suggests it. If not, it removes the padding from the configuration. If it fails, it closes
// the model.
func (v *Version) checkPadding(ctx context.Context, cfg *modelconfig.Config, loaded engine.Model) error {
	if cfg.Padding == nil {
		return nil
	}
	outputs, why, err := paddingUnsafeReason(ctx, cfg, loaded, v.sampleDir())
	if err != nil {
		return errors.Join(err, loaded.Close())
	}
	if why == "" {
		cfg.Padding.Outputs = outputs
		return nil
	}
	v.env.opts.Log.Info("requests of different lengths are not padded", "model", cfg.Name, "version", v.Name(), "reason", why)
	cfg.Padding, v.padUnsafeReason = nil, why
	return nil
}

// paddingUnsafeReason returns why requests must not be padded; "" if they may. Then it also
// returns the dimensions of the outputs to cut back.
func paddingUnsafeReason(ctx context.Context, cfg *modelconfig.Config, loaded engine.Model, samples string) (outputs []int, why string, err error) {
	inputs, err := inputsOf(cfg, samples)
	if err != nil {
		return nil, "", err
	}
	inst, err := loaded.Instance(ctx)
	if err != nil {
		return nil, "", err
	}
	if _, perRequest := inst.(engine.PerRequest); perRequest {
		return nil, "the model takes the requests of a batch one by one", inst.Close()
	}
	stop := abortWith(ctx, inst)
	outputs, why, err = calibrate.CheckPadding(ctx, cfg, inst, inputs)
	stop()
	return outputs, why, errors.Join(err, inst.Close())
}

// sampleDir returns the directory of the warm-up samples.
func (v *Version) sampleDir() string { return filepath.Join(v.Source.ModelDir, "warmup") }

// combineUnsafeReason returns why requests of a model must not share a batch; "" if they
// may.
func combineUnsafeReason(ctx context.Context, cfg *modelconfig.Config, loaded engine.Model, samples string) (string, error) {
	inputs, err := inputsOf(cfg, samples)
	if err != nil {
		return "", err
	}
	inst, err := loaded.Instance(ctx)
	if err != nil {
		return "", err
	}
	stop := abortWith(ctx, inst)
	why, err := calibrate.CombineUnsafeReason(ctx, cfg, inst, inputs)
	stop()
	return why, errors.Join(err, inst.Close())
}

// abortWith aborts instances when ctx, that of their load, ends: a model may never return from a
// run that it is warmed up with. stop ends that, and returns false if ctx has ended.
func abortWith(ctx context.Context, instances ...engine.Instance) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		for _, inst := range instances {
			if a, ok := inst.(engine.Aborter); ok {
				a.Abort("the load was cancelled")
			}
		}
	})
}

// openInstances opens the instances of the version, all or none.
func (v *Version) openInstances(ctx context.Context, params tuning) ([]engine.Instance, error) {
	v.Config.Instances, v.autoInstances = v.instanceCount(params) // the configuration reports it
	var opened []engine.Instance
	var err error
	for len(opened) < v.Config.Instances && err == nil {
		var inst engine.Instance
		if inst, err = v.model.Instance(ctx); err == nil {
			opened = append(opened, inst)
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		err = checkFeatures(v.Config, opened[0])
	}
	if err != nil {
		for _, inst := range opened {
			err = errors.Join(err, inst.Close())
		}
		return nil, err
	}
	return opened, nil
}

// startScheduler creates the scheduler, which takes ownership of the instances and accepts
// requests from then on.
func (v *Version) startScheduler(instances []engine.Instance, bisect, retryDied bool) {
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
	b.TakeTurns = v.autoInstances && v.device != nil
	switch w := v.Source.Workers; {
	case w != nil && w.Policy != nil:
		b.Policy = w.Policy
	case cfg.Tunes():
		b.Policy = automatic.New(automatic.Options{
			MaxRows: cfg.MaxBatchSize, Instances: max(1, cfg.Instances), Exclusive: v.exclusiveThreads > 0, Preferred: slices.Sorted(slices.Values(cfg.Dynamic.Preferred)),
			Objective: cfg.Objective,
		})
		b.OvertakeOtherShapes = true // explicit settings keep the order, as in Triton
	case cfg.TunesSequences():
		b.Policy = automatic.New(automatic.Options{
			MaxRows: cfg.MaxBatchSize, Instances: max(1, cfg.Instances), Preferred: slices.Sorted(slices.Values(cfg.Sequence.Preferred)),
		})
		b.OvertakeOtherShapes = true
	}
	var sequences *sched.Sequences
	if cfg.Sequence != nil {
		sequences = &sched.Sequences{Model: cfg.Sequence, Slots: cfg.Slots()}
		if slices.ContainsFunc(cfg.Inputs, func(in modelconfig.Tensor) bool { return slices.Contains(in.Dims, -1) }) {
			sequences.MaxBytes = e.opts.InputBytes // otherwise the configuration sets the size of a row, and not the client
		}
	}
	v.Scheduler = sched.New(instances, sched.Options{
		Batching:         b,
		Pacer:            e.opts.Pacer,
		Device:           v.device,
		Width:            v.threads,
		IdleGate:         &e.idleGate,
		NoBatchDimension: cfg.MaxBatchSize == 0,
		Ragged:           cfg.Ragged(),
		Padding:          cfg.Padding,
		Sequences:        sequences,
		Bisect:           bisect,
		RetryDied:        retryDied,
		PassesOrderOn:    cfg.Backend == modelconfig.EnsembleBackend,
		NewInstance:      v.replacement(),
		Log:              e.opts.Log.With("model", cfg.Name, "version", v.Name()),
		Stats:            v.Stats,
	})
}

// replacement returns the function that opens a new instance in place of one that panicked.
// It is nil for a version with workers, which are not replaced.
func (v *Version) replacement() func(context.Context) (engine.Instance, error) {
	if v.Source.Workers != nil {
		return nil
	}
	return v.model.Instance
}

// checkFeatures returns an error if the configuration asks for a feature that the instance
// lacks.
func checkFeatures(cfg *modelconfig.Config, inst engine.Instance) error {
	if _, sends := inst.(engine.Sender); cfg.Decoupled && !sends {
		return cfg.Invalid("model_transaction_policy.decoupled", "models of backend %q answer a request once; remove it, or use a Python model (docs/reference/python-models.md)", cfg.Backend)
	}
	if _, sends := inst.(engine.Sender); cfg.Sequence != nil && cfg.Sequence.Iterative && !sends {
		return cfg.Invalid("sequence_batching.iterative_sequence", "models of backend %q complete a request in one run; remove it, or use a Python model (docs/reference/python-models.md)", cfg.Backend)
	}
	optional := slices.IndexFunc(cfg.Inputs, func(t modelconfig.Tensor) bool { return t.Optional })
	if _, perRequest := inst.(engine.PerRequest); optional >= 0 && !perRequest && cfg.MaxBatchSize > 0 {
		return cfg.Invalid(fmt.Sprintf("input[%d].optional", optional), "models of backend %q with a batch dimension need all their inputs; set max_batch_size: 0, remove optional, or use a Python model (docs/reference/python-models.md)", cfg.Backend)
	}
	return nil
}

// instanceCount returns the number of instances, and whether the configuration omits it. In
// that case the policy decides how many of them to use.
func (v *Version) instanceCount(params tuning) (count int, automatic bool) {
	cfg := v.Config
	switch {
	case cfg.Instances > 0:
		return cfg.Instances, false
	case cfg.Sequence != nil:
		return max(1, cfg.ActiveGroups()), false // more would only make batches smaller
	case params.instances > 0:
		return params.instances, true
	}
	return v.defaultInstances(params.threads), true
}

// defaultInstances returns the number of instances of a version whose configuration has none, with
// the given number of threads.
func (v *Version) defaultInstances(threads int) int {
	if v.instancesFillCores() {
		return max(1, v.env.opts.Cores/max(1, threads))
	}
	return max(1, v.runner.Instances) * max(1, v.Config.ActiveGroups())
}

// instancesFillCores reports whether a version whose configuration has no number of instances has
// as many as the cores allow. An instance_group without a count has Triton's number.
func (v *Version) instancesFillCores() bool {
	return v.Config.Automatic && v.runner.Device != nil && len(v.Config.Proto.GetInstanceGroup()) == 0
}
