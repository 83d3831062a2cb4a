package repository

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/servable"
)

// source finds a model on disk, or in what the client sent. A plain load keeps the
// configuration that a client sent before, as long as the files are the same.
func (r *Repository) source(name string, with override) (*found, override, error) {
	if len(with.Files) > 0 {
		f, err := with.unpack(name)
		return f, with, err
	}
	f, err := lookup(r.opts.Paths, name)
	if err != nil {
		return nil, with, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.claimLocked(name)
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
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			models, err := scanFile(path, info)
			if err != nil {
				return nil, err // it might have the model
			}
			all = append(all, slices.DeleteFunc(models, func(m *found) bool { return m.name != name })...)
			continue
		}
		for _, c := range []string{filepath.Join(path, name), filepath.Join(path, name+".onnx")} {
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

// A wish is what a model's files ask for.
type wish struct {
	found    *found
	with     override
	versions map[int64]stamp
}

func newWish(f *found, with override) (*wish, error) {
	w := &wish{found: f, with: with, versions: map[int64]stamp{}}
	cfg, err := w.config()
	if err != nil {
		return nil, err
	}
	all := slices.Collect(maps.Keys(f.versions))
	served := choose(slices.Clone(all), cfg.VersionPolicy)
	if len(served) == 0 {
		slices.Sort(all)
		cause := fmt.Errorf("found %v in %s, expected a directory such as %s", all, f.dir, filepath.Join(f.dir, "1"))
		return nil, infer.Errorf(infer.Invalid, "the model has no version that its version policy selects: %w", cause).Because(infer.NoVersionAvailable, f.name, "")
	}
	for _, n := range served {
		w.versions[n] = f.versions[n] + f.config*31 + with.stamp()
	}
	return w, nil
}

// sources returns what the server is to have. sent, if not nil, has the files.
func (w *wish) sources(sent *upload) []servable.Source {
	var all []servable.Source
	for _, n := range slices.Sorted(maps.Keys(w.versions)) {
		src := servable.Source{
			Model: w.found.name, Number: n, Stamp: uint64(w.versions[n]), Dir: w.dir(n), File: w.found.file, Home: w.found.dir, Config: w.config,
		}
		if sent != nil {
			src.Fleeting, src.Keep = true, sent.keep
		}
		all = append(all, src)
	}
	return all
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
	if cfg.Backend == "" {
		return cfg, foreign(w.dir(w.first()))
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

// first returns the first version.
func (w *wish) first() int64 {
	return slices.Min(append(slices.Collect(maps.Keys(w.found.versions)), bareVersion))
}

// backend returns the one that the files of the first version are for; "" if none
// is known. A file that is not the backend's usual one is written down.
func (w *wish) backend(cfg *modelconfig.Config) string {
	files := slices.Concat(usualFiles, libraryFiles)
	if file := cfg.Proto.GetDefaultModelFilename(); file != "" {
		files = []string{file}
	}
	for _, file := range files {
		if _, err := os.Stat(filepath.Join(w.dir(w.first()), file)); err == nil {
			if slices.Contains(libraryFiles, file) {
				cfg.Proto.DefaultModelFilename = file
			}
			return backends[filepath.Ext(file)]
		}
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
