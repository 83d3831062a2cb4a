package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
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
	labels, err := readLabels(cfg, w.found.dir)
	if err != nil {
		return nil, err
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
	v := &Version{Config: cfg, Labels: labels, Number: n, Stats: stats.New(cfg.MaxBatchSize), Memory: need, model: loaded, stamp: w.versions[n]}
	v.Stats.Objective = cfg.Objective
	if v.Scheduler, err = r.schedule(ctx, v, runner, w.bare); err != nil {
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
	_, v.rereads = opened[0].(engine.Mortal)
	batching := v.Config.Batching(r.opts.Queue)
	batching.TakeTurns = automatic && runner.Device != nil
	apart, died := true, false // engines that run in this process keep nothing from one batch to the next
	if careful, ok := v.model.(engine.Careful); ok {
		apart, died = careful.Retries()
	}
	return sched.New(opened, sched.Options{
		Batching:  batching,
		Pacer:     r.opts.Pacer,
		Device:    runner.Device,
		Whole:     v.Config.MaxBatchSize == 0,
		Ragged:    v.Config.Ragged(),
		Bisect:    apart,
		RetryDied: died,
		Log:       r.opts.Log.With("model", v.Config.Name, "version", v.Number),
		Stats:     v.Stats,
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
