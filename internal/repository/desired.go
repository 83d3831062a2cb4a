package repository

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// source finds a model on disk, or in the files that the client sent. A load without
// options keeps the configuration that a client sent before, as long as the files are
// unchanged.
func (r *Repository) source(name string, with override) (*candidate, override, error) {
	if len(with.Files) > 0 {
		f, err := with.unpack(name)
		return f, with, err
	}
	f, err := r.lookup(name)
	if err != nil {
		return nil, with, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.claimLocked(name)
	if with.Config == "" && !m.hadFiles && m.onDisk == f.whole() {
		with = m.override
	}
	if with.Config == "" && f.file != "" {
		with.Config = r.opts.FileConfig
	}
	return f, with, nil
}

// lookup finds a model.
func (r *Repository) lookup(name string) (*candidate, error) {
	// Polls notice when a bucket changes. Without them, a load is when a client expects that.
	f, err := r.find(name, r.opts.Mode == None || r.opts.Mode == Explicit)
	if err == nil && f == nil {
		return nil, infer.Errorf(infer.NotFound, "no directory %s and no file %s.onnx in %s%s", name, name, strings.Join(r.places(), ", "), similar(r.opts.Paths, name))
	}
	return f, err
}

// find finds a model. It returns nil if there is none. See location for fresh.
func (r *Repository) find(name string, fresh bool) (*candidate, error) {
	if !modelconfig.ValidName(name) {
		return nil, infer.Errorf(infer.NotFound, "%q is not a valid model name; names have %s", name, modelconfig.NameRule)
	}
	var all []*candidate
	for _, l := range r.locations {
		models, err := l.find(r.ctx, name, fresh)
		if err != nil {
			return nil, err // it might have the model
		}
		all = append(all, models...)
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0], all[0].err
	}
	return nil, infer.Errorf(infer.Invalid, "%w", twice(all[0], all[1]))
}

// similar returns the end of an error about a model that does not exist: the model that
// was probably meant, or "".
func similar(paths []string, name string) string {
	var names []string
	for _, path := range paths {
		entries, _ := os.ReadDir(path) // a path that cannot be read has no suggestions
		for _, e := range entries {
			names = append(names, strings.TrimSuffix(e.Name(), ".onnx"))
		}
	}
	if meant := suggest.Nearest(name, names); meant != "" {
		return fmt.Sprintf("; did you mean %s?", meant)
	}
	return ""
}

// desired is what a model's files ask for.
type desired struct {
	model    *candidate
	with     override
	versions map[int64]fingerprint
	ensemble *modelconfig.Config // nil for any other model
}

func newDesired(f *candidate, with override) (*desired, error) {
	d := &desired{model: f, with: with, versions: map[int64]fingerprint{}}
	cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	all := slices.Collect(maps.Keys(f.versions))
	served := choose(slices.Clone(all), cfg.VersionPolicy)
	if len(served) == 0 {
		cause := noVersion(f, all)
		return nil, infer.Errorf(infer.Invalid, "the model has no version that its version policy selects: %w", cause).WithReason(infer.NoVersionAvailable, f.name, "")
	}
	for _, n := range served {
		d.versions[n] = d.fingerprintOf(f, n)
	}
	if len(cfg.Steps) > 0 {
		d.ensemble = cfg
	}
	d.with.Files = nil // versions keep d, and files may be large
	return d, nil
}

// noVersion says why no version of a model is selected, given the numbers of all versions.
func noVersion(f *candidate, all []int64) error {
	if len(all) > 0 {
		slices.Sort(all)
		return fmt.Errorf("%s has the versions %v, and version_policy in config.pbtxt selects none of them", f.dir, all)
	}
	first := filepath.Join(f.dir, "1")
	for _, file := range slices.Concat(usualFiles, libraryFiles) {
		if _, err := os.Stat(filepath.Join(f.dir, file)); err == nil {
			return fmt.Errorf("%s has no version directory; move %s to %s", f.dir, file, filepath.Join(first, file))
		}
	}
	return fmt.Errorf("%s has no version directory; put the model's file into %s", f.dir, first)
}

// sources returns what the server opens. sent, if not nil, holds the files
// that a client sent, or that were fetched.
func (d *desired) sources(sent *upload) []servable.Source {
	var all []servable.Source
	for _, n := range slices.Sorted(maps.Keys(d.versions)) {
		src := servable.Source{
			Model: d.model.name, Number: n, Fingerprint: uint64(d.versions[n]), Dir: d.dir(n), File: d.model.file, ModelDir: d.model.dir, Config: d.config,
		}
		if sent != nil {
			src.Temporary, src.KeepFiles, src.AlwaysKeep = !sent.fetched, sent.keep, sent.fetched
		} else {
			src.Changed = func() bool { return d.changed(n) }
		}
		all = append(all, src)
	}
	return all
}

// fingerprintOf returns the fingerprint of a version, and of all else that decides how it runs.
func (d *desired) fingerprintOf(f *candidate, version int64) fingerprint {
	return f.versions[version] + f.config*31 + d.with.fingerprint()
}

// changed reports whether the files of a version are no longer those that were found.
func (d *desired) changed(version int64) bool {
	now, err := d.model.again()
	return err != nil || d.fingerprintOf(now, version) != d.versions[version]
}

// config reads the configuration. Each version has its own copy, because missing fields are
// completed from the version's files. An error about a field comes with the configuration.
func (d *desired) config() (*modelconfig.Config, error) {
	cfg, err := d.parse()
	if err != nil {
		return cfg, err
	}
	if cfg.Name != "" && cfg.Name != d.model.name {
		return cfg, cfg.Wrong("name", fmt.Sprintf("%q", cfg.Name), "%q, the name of the model's directory; or remove it", d.model.name)
	}
	cfg.Name = d.model.name
	if d.model.file != "" {
		cfg.Proto.DefaultModelFilename = d.model.file
	}
	if cfg.Backend == "" {
		cfg.Backend = d.backend(cfg)
	}
	if cfg.Backend == "" {
		dir := d.dir(d.first())
		return cfg, cmp.Or(unsupportedFormat(dir), misnamed(dir))
	}
	return cfg, nil
}

func (d *desired) parse() (*modelconfig.Config, error) {
	if d.with.Config != "" {
		return modelconfig.ParseJSON([]byte(d.with.Config))
	}
	if d.model.file != "" {
		return modelconfig.Parse("", nil)
	}
	file := filepath.Join(d.model.dir, "config.pbtxt")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return modelconfig.Parse("", nil) // all is left to the model
	}
	if err != nil {
		return nil, err
	}
	return modelconfig.Parse(file, text)
}

// first returns the number of the first version, or the one that a model without versions
// should have. Only some versions of a model in a bucket are fetched.
func (d *desired) first() int64 {
	if len(d.model.versions) == 0 {
		return bareVersion
	}
	return slices.Min(slices.Collect(maps.Keys(d.model.versions)))
}

// backend returns the backend for the files of the first version; "" if there is none. It
// sets the file name in the configuration if that is not the backend's default.
func (d *desired) backend(cfg *modelconfig.Config) string {
	files := slices.Concat(usualFiles, libraryFiles)
	if file := cfg.Proto.GetDefaultModelFilename(); file != "" {
		files = []string{file}
	}
	for _, file := range files {
		if _, err := os.Stat(filepath.Join(d.dir(d.first()), file)); err == nil {
			if slices.Contains(libraryFiles, file) {
				cfg.Proto.DefaultModelFilename = file
			}
			return backends[filepath.Ext(file)]
		}
	}
	return ""
}

// dir returns the directory of a version.
func (d *desired) dir(version int64) string {
	if d.model.file != "" {
		return d.model.dir
	}
	return filepath.Join(d.model.dir, strconv.FormatInt(version, 10))
}
