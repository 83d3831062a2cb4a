package repository

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/servable"
)

// An Inspection describes a model without loading it.
type Inspection struct {
	Name     string
	Dir      string // of the model, or of its only file
	Backend  string
	Versions []int64               // that would serve, ascending
	Config   *modelconfig.Config   // nil if it cannot be read
	File     string                // the model's file of the newest version, or the version's directory
	Findings []modelconfig.Finding // settings without effect, and those that are not supported
	Err      error                 // why it cannot be loaded
}

// InspectOptions are the settings of a server that change what it would load.
type InspectOptions struct {
	Backends   []string // the available ones
	FileConfig string   // as in [Options]
}

// Inspect describes the models of the given paths, by name, without loading them. The error
// reports paths that cannot be read.
func Inspect(paths []string, opts InspectOptions) ([]Inspection, error) {
	models, err := scan(paths)
	var all []Inspection
	for _, name := range slices.Sorted(maps.Keys(models)) {
		all = append(all, inspect(models[name], opts))
	}
	InspectMembers(all, func(m *Inspection) bool { return m.Err != nil })
	return all, err
}

// InspectMembers sets the errors of ensembles whose members are missing or broken, from the inside
// out; broken is true at least for those with an error. Whether the tensors of members fit together
// is known when they are loaded.
func InspectMembers(all []Inspection, broken func(*Inspection) bool) {
	problem := func(name string) (reason string) {
		i := slices.IndexFunc(all, func(m Inspection) bool { return m.Name == name })
		switch {
		case i < 0:
			return "the repository does not contain it"
		case broken(&all[i]):
			return "it cannot be loaded"
		}
		return ""
	}
	for changed := true; changed; {
		changed = false
		for i := range all {
			m := &all[i]
			if m.Err != nil || m.Config == nil {
				continue
			}
			for k := range m.Config.Steps {
				s := &m.Config.Steps[k]
				if reason := problem(s.Model); reason != "" {
					m.Err, changed = m.Config.Invalid(s.Field("model_name"), "model %q is a step of the ensemble, and %s", s.Model, reason), true
					break
				}
			}
		}
	}
}

// Names returns the names of the models of the given paths, sorted. The error reports paths
// that cannot be read.
func Names(paths []string) ([]string, error) {
	models, err := scan(paths)
	return slices.Sorted(maps.Keys(models)), err
}

func inspect(f *candidate, opts InspectOptions) Inspection {
	i := Inspection{Name: f.name, Dir: f.dir, Err: f.err}
	if i.Err != nil {
		return i
	}
	var with override
	if f.file != "" {
		with.Config = opts.FileConfig
	}
	cfg, err := (&desired{model: f, with: with}).config()
	if cfg != nil {
		i.Config, i.Backend, i.Findings = cfg, cfg.Backend, cfg.Findings()
	}
	if err != nil {
		i.Err = err
		return i
	}
	d, err := newDesired(f, with)
	if err != nil {
		i.Err = err
		return i
	}
	i.Versions = slices.Sorted(maps.Keys(d.versions))
	if !slices.Contains(opts.Backends, cfg.Backend) {
		i.Err = cfg.UnsupportedBackend(opts.Backends)
		return i
	}
	file := cfg.Effective().GetDefaultModelFilename()
	for _, n := range i.Versions {
		i.File = filepath.Join(d.dir(n), file) // without a file, the directory
		if cfg.Backend == onnx.Name {
			i.File = onnx.File(i.File)
		}
		if _, err := os.Stat(i.File); err != nil {
			i.Err = fmt.Errorf("the model's file cannot be read: %w", err)
			return i
		}
	}
	_, i.Err = servable.ReadLabels(cfg, f.dir)
	return i
}
