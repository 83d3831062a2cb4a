package repository

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// An Inspection describes a model without loading it.
type Inspection struct {
	Name     string
	Backend  string
	Versions []int64               // that would serve, ascending
	Config   *modelconfig.Config   // nil if it cannot be read
	Warnings []modelconfig.Warning // what of its configuration has no effect
	Err      error                 // why it cannot be loaded
}

// Inspect describes the models of the given paths, by name, without loading them. backends
// are the available ones. The error reports paths that cannot be read.
func Inspect(paths, backends []string) ([]Inspection, error) {
	models, err := scan(paths)
	var all []Inspection
	for _, name := range slices.Sorted(maps.Keys(models)) {
		all = append(all, inspect(models[name], backends))
	}
	return all, err
}

// Names returns the names of the models of the given paths, sorted. The error reports paths
// that cannot be read.
func Names(paths []string) ([]string, error) {
	models, err := scan(paths)
	return slices.Sorted(maps.Keys(models)), err
}

func inspect(f *candidate, backends []string) Inspection {
	i := Inspection{Name: f.name, Err: f.err}
	if i.Err != nil {
		return i
	}
	d, err := newDesired(f, override{})
	if err != nil {
		i.Err = err
		return i
	}
	cfg, err := d.config()
	if err != nil {
		i.Err = err
		return i
	}
	i.Config, i.Backend, i.Warnings, i.Versions = cfg, cfg.Backend, cfg.Warnings, slices.Sorted(maps.Keys(d.versions))
	if !slices.Contains(backends, cfg.Backend) {
		i.Err = cfg.UnsupportedBackend(backends)
		return i
	}
	file := cfg.Effective().GetDefaultModelFilename()
	for _, n := range i.Versions {
		if _, err := os.Stat(filepath.Join(d.dir(n), file)); err != nil { // without a file, the directory
			i.Err = fmt.Errorf("the model's file cannot be read: %w", err)
			return i
		}
	}
	return i
}
