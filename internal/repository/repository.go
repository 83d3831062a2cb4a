// Package repository loads the models of a directory in Triton's layout and
// keeps them until they are closed.
//
//	DIR/NAME/config.pbtxt     what the model takes and gives; may be left out if its file tells
//	DIR/NAME/VERSION/         a number, with what the model's engine needs
package repository

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/sched"
)

// Options say what models run on.
type Options struct {
	// Engines by the name that a model's configuration gives as its backend.
	Engines map[string]engine.Engine
	Pacer   *pacer.Pacer
	Log     *slog.Logger
}

// A Repository holds loaded models. Its methods may be called concurrently.
type Repository struct {
	models map[string][]*Version // by name, the versions ascending; not changed after Open
}

// A Version is one loaded version of a model, ready to run.
type Version struct {
	Config    *modelconfig.Config
	Number    int64
	Scheduler *sched.Scheduler

	model engine.Model
}

// Open loads every model of a directory. If one cannot be loaded, none is kept,
// and the error says what is wrong with each that failed.
func Open(ctx context.Context, dir string, opts Options) (*Repository, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("model repository: %w", err)
	}
	r := &Repository{models: map[string][]*Version{}}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, r.load(ctx, filepath.Join(dir, e.Name()), opts))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// load loads the versions of one model that its policy names.
func (r *Repository) load(ctx context.Context, dir string, opts Options) error {
	name := filepath.Base(dir)
	cfg, err := readConfig(dir)
	if err != nil {
		return err
	}
	numbers, err := versions(dir, cfg.VersionPolicy)
	if err != nil {
		return err
	}
	if cfg.Backend == "" {
		cfg.Backend = backendOf(filepath.Join(dir, strconv.FormatInt(numbers[0], 10)))
	}
	eng := opts.Engines[cfg.Backend]
	if eng == nil {
		return cfg.Wrong("backend", fmt.Sprintf("%q", cfg.Backend), "one of %q", slices.Sorted(maps.Keys(opts.Engines)))
	}
	for _, n := range numbers {
		v, err := open(ctx, eng, engine.Source{Config: cfg, Version: n, Dir: filepath.Join(dir, strconv.FormatInt(n, 10))}, opts)
		if err != nil {
			return fmt.Errorf("model %q version %d: %w", name, n, err)
		}
		r.models[name] = append(r.models[name], v)
		opts.Log.Info("model loaded", "model", name, "version", n, "backend", cfg.Backend, "instances", instances(cfg))
	}
	for _, w := range cfg.Warnings {
		opts.Log.Warn("model configuration", "model", name, "at", w.Where, "field", w.Field, "warning", w.Text)
	}
	return nil
}

// readConfig reads a model's config.pbtxt. One that is not there says nothing, and
// leaves all to the model.
func readConfig(dir string) (*modelconfig.Config, error) {
	file := filepath.Join(dir, "config.pbtxt")
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("model %q: %w", filepath.Base(dir), err)
	}
	cfg, err := modelconfig.Parse(file, text)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(dir)
	if cfg.Name != "" && cfg.Name != name {
		return nil, cfg.Wrong("name", fmt.Sprintf("%q", cfg.Name), "%q, the name of its directory", name)
	}
	cfg.Name = name
	return cfg, nil
}

// backendOf returns the backend that the files of a version are for; "" if none is
// known.
func backendOf(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "model.onnx")); err == nil {
		return "onnxruntime"
	}
	return ""
}

// versions returns the numbers of the versions in dir that the policy names,
// ascending.
func versions(dir string, policy modelconfig.VersionPolicy) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []int64
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && n >= 0 && e.IsDir() {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	served := all
	switch {
	case policy.All:
	case len(policy.Specific) > 0:
		served = slices.DeleteFunc(slices.Clone(all), func(n int64) bool { return !slices.Contains(policy.Specific, n) })
	default:
		served = all[max(0, len(all)-policy.Latest):]
	}
	if len(served) == 0 {
		return nil, fmt.Errorf("%s: found versions %v, expected one that the version policy names, as a directory such as %s", dir, all, filepath.Join(dir, "1"))
	}
	return served, nil
}

func open(ctx context.Context, eng engine.Engine, src engine.Source, opts Options) (*Version, error) {
	model, err := eng.Load(ctx, src)
	if err != nil {
		return nil, err
	}
	v := &Version{Config: src.Config, Number: src.Version, model: model}
	var opened []engine.Instance
	for range instances(src.Config) {
		inst, err := model.Instance(ctx)
		if err != nil {
			for _, other := range opened {
				err = errors.Join(err, other.Close())
			}
			return nil, errors.Join(err, model.Close())
		}
		opened = append(opened, inst)
	}
	v.Scheduler = sched.New(opened, sched.Options{
		Batching: src.Config.Batching(),
		Pacer:    opts.Pacer,
		Whole:    src.Config.MaxBatchSize == 0,
		Bisect:   true, // all engines there are run in this process, and keep nothing from one batch to the next
	})
	return v, nil
}

func (v *Version) close() error { return errors.Join(v.Scheduler.Close(), v.model.Close()) }

// Find returns a version of a model; version "" means the newest one.
func (r *Repository) Find(name, version string) (*Version, error) {
	versions := r.models[name]
	if len(versions) == 0 {
		return nil, infer.Errorf(infer.NotFound, "Request for unknown model: '%s' is not found", name)
	}
	if version == "" {
		return versions[len(versions)-1], nil
	}
	if n, err := strconv.ParseInt(version, 10, 64); err == nil {
		for _, v := range versions {
			if v.Number == n {
				return v, nil
			}
		}
	}
	return nil, infer.Errorf(infer.NotFound, "Request for unknown model: '%s' version %s is not found", name, version)
}

// Names returns the names of the loaded models, in their order.
func (r *Repository) Names() []string { return slices.Sorted(maps.Keys(r.models)) }

// Versions returns the numbers of a model's loaded versions, ascending.
func (r *Repository) Versions(name string) []int64 {
	var numbers []int64
	for _, v := range r.models[name] {
		numbers = append(numbers, v.Number)
	}
	return numbers
}

// Close lets all requests run that are here, refuses others, and unloads every
// model.
func (r *Repository) Close() error {
	var errs []error
	for _, versions := range r.models {
		for _, v := range versions {
			errs = append(errs, v.close())
		}
	}
	return errors.Join(errs...)
}

// instances returns how many batches of a model may run at once.
func instances(cfg *modelconfig.Config) int { return max(1, cfg.Instances) }
