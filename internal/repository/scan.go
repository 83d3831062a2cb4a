package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/tempdir"
)

// A candidate is a model that a location has.
type candidate struct {
	name string
	dir  string // the model's directory, or the directory of its file
	file string // name of the model's only file; "" if the model has version directories

	config   fingerprint           // of config.pbtxt and what else belongs to all versions
	versions map[int64]fingerprint // by number

	remote   *remote      // where its files are, if they are not in dir yet; nil if they are
	unpacked *tempdir.Dir // dir, if a client sent the files; nil otherwise

	err error // why the model cannot be read

	// unknown means that the entry itself cannot be read: there may be a model of this name, or none.
	unknown bool
}

// A fingerprint is a hash of the names, sizes and modification times of files. It is equal
// for files that have not changed.
type fingerprint uint64

const bareVersion = 1 // version number of a model that is only a file

// scan returns the models of all paths by name. The error reports paths that cannot be
// read; models of the other paths are still returned.
func scan(paths []string) (map[string]*candidate, error) {
	all := map[string]*candidate{}
	models, err := directories(paths).list(context.Background(), true)
	merge(all, models)
	return all, err
}

// merge adds models by name.
func merge(all map[string]*candidate, models []*candidate) {
	for _, m := range models {
		if other := all[m.name]; other != nil {
			m.err = twice(other, m)
		}
		all[m.name] = m
	}
}

// path returns the path of the model, or its URL.
func (f *candidate) path() string {
	if f.remote != nil {
		return f.remote.url
	}
	return filepath.Join(f.dir, f.file)
}

// again returns the model as it is on this machine now.
func (f *candidate) again() (*candidate, error) {
	var models []*candidate
	var err error
	if f.file == "" {
		models = make([]*candidate, 1)
		models[0], err = scanEntry(f.dir)
	} else {
		models, err = scanPath(f.path())
	}
	for _, m := range models {
		if m != nil && m.name == f.name {
			return m, m.err
		}
	}
	return nil, cmp.Or(err, fs.ErrNotExist)
}

// twice returns the error for two models of the same name.
func twice(a, b *candidate) error {
	return fmt.Errorf("model %q exists twice, at %s and at %s; rename or remove one of them", a.name, a.path(), b.path())
}

func scanPath(path string) ([]*candidate, error) {
	if err := CheckLocal(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("model repository: %w; name a directory of models, or a model file", err)
	case err != nil:
		return nil, fmt.Errorf("model repository: %w", err)
	case !info.IsDir():
		return scanFile(path, info)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("model repository: %w", err)
	}
	if isModel(path, entries) {
		return nil, fmt.Errorf("model repository: %s is the directory of a single model; name the directory that contains it, %s", path, filepath.Dir(path))
	}
	var models []*candidate
	for _, e := range entries {
		m, err := scanEntry(filepath.Join(path, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was just removed, or is a dangling link
		case err != nil: // others can be read
			name := strings.TrimSuffix(e.Name(), ".onnx")
			models = append(models, &candidate{name: name, dir: filepath.Join(path, e.Name()), err: fmt.Errorf("model repository: %w", err), unknown: true})
		case m != nil:
			models = append(models, m)
		}
	}
	return models, nil
}

// copyCommands are commands that copy a bucket to the directory models.
var copyCommands = map[string]string{
	"s3": "aws s3 sync %s models", "gs": "gcloud storage rsync --recursive %s models", "hf": "hf download %s --local-dir models",
}

// IsBucket reports whether a path is the URL of a bucket that can be served.
func IsBucket(path string) bool {
	scheme, _, isURL := strings.Cut(path, "://")
	return isURL && slices.Contains(bucket.Schemes, scheme)
}

// CheckLocal returns an error if a path is a URL.
func CheckLocal(path string) error {
	scheme, rest, isURL := strings.Cut(path, "://")
	if !isURL {
		return nil
	}
	if scheme == "file" {
		return fmt.Errorf("model repository: %s: URLs are not supported; name the path, %s", path, rest)
	}
	how, problem := "download it", scheme+":// is not supported"
	if slices.Contains(bucket.Schemes, scheme) {
		problem = `only "shoal serve" reads buckets`
	}
	if command, ok := copyCommands[scheme]; ok {
		how = fmt.Sprintf("copy it with %q", fmt.Sprintf(command, strings.TrimPrefix(path, "hf://")))
	}
	return fmt.Errorf("model repository: %s: %s; %s, or mount it, and name the local directory", path, problem, how)
}

// isModel reports whether a directory, given its entries, belongs to a single model. A directory
// whose name is a number is a version, unless it is a model itself.
func isModel(path string, entries []fs.DirEntry) bool {
	for _, e := range entries {
		if e.Name() == "config.pbtxt" {
			return true
		}
		if _, ok := versionOf(path, e); ok {
			inner := filepath.Join(path, e.Name())
			if files, _ := os.ReadDir(inner); !isModel(inner, files) {
				return true
			}
		}
	}
	return false
}

// scanFile returns the models of a path that is a file. In a repository only ONNX files
// are models by themselves: other formats run code, or may not be models.
func scanFile(path string, info fs.FileInfo) ([]*candidate, error) {
	ending := filepath.Ext(path)
	switch {
	case ending == ".py":
		return scanApp(path)
	case ending == ".mar":
		return nil, fmt.Errorf("model repository: %s is an archive of Multi Model Server or TorchServe; serve it with --model-store=%s --models=%s", path, filepath.Dir(path), filepath.Base(path))
	case exportHint(path) != nil:
		return nil, fmt.Errorf("model repository: %w", exportHint(path))
	case backends[ending] == "":
		return nil, fmt.Errorf("model repository: %s is not a model file; expected a directory of models, or a file that ends in one of %s",
			path, strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	}
	m := bare(path, ending, info)
	if m.err != nil {
		return nil, m.err
	}
	return []*candidate{m}, nil
}

// scanEntry returns the model of an entry in a repository, or nil if the entry is not a
// model. Hidden entries are not models: tools create them for themselves.
func scanEntry(path string) (*candidate, error) {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") {
		return nil, nil
	}
	info, err := os.Stat(path) // follows links
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir() && filepath.Ext(name) == ".onnx":
		return bare(path, ".onnx", info), nil
	case !info.IsDir():
		return nil, nil
	}
	m := &candidate{name: name, dir: path, versions: map[int64]fingerprint{}}
	if !modelconfig.ValidName(name) {
		m.err = badName(path, name)
		return m, nil
	}
	var entries []fs.DirEntry
	entries, m.err = os.ReadDir(path)
	for _, e := range entries {
		if derived[e.Name()] {
			continue
		}
		whole := fingerprintOf(filepath.Join(path, e.Name()))
		if n, ok := versionOf(path, e); ok {
			m.versions[n] = whole
		} else {
			m.config = m.config*31 + whole
		}
	}
	return m, nil
}

// bare returns the model that is a single file.
func bare(path, ending string, info fs.FileInfo) *candidate {
	name := strings.TrimSuffix(filepath.Base(path), ending)
	m := &candidate{
		name: name, dir: filepath.Dir(path), file: filepath.Base(path),
		versions: map[int64]fingerprint{bareVersion: fingerprintFile(info)},
	}
	if !modelconfig.ValidName(name) {
		m.err = badName(path, name)
	}
	return m
}

func badName(path, name string) error {
	return fmt.Errorf("%s: %q is not a valid model name; rename it: names have %s", path, name, modelconfig.NameRule)
}

// versionOf returns the number of an entry of a directory, if that is a version's directory.
func versionOf(dir string, e fs.DirEntry) (int64, bool) {
	n, ok := versionNumber(e.Name())
	if !ok {
		return 0, false
	}
	info, err := os.Stat(filepath.Join(dir, e.Name())) // follows links
	return n, err == nil && info.IsDir()
}

// versionNumber returns the number of a version's directory, given its name.
func versionNumber(name string) (int64, bool) {
	n, err := strconv.ParseInt(name, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == name
}

// maxDepth ends the walk through links that lead in circles.
const maxDepth = 8

// derived are directories that Python and its tools fill, with thousands of files. Reading
// them would take long, and a model would seem to have changed when it is imported.
var derived = map[string]bool{"__pycache__": true, "venv": true, ".venv": true}

// fingerprintOf returns the fingerprint of a file, or of all files below a directory. It
// skips files that cannot be read.
func fingerprintOf(path string) fingerprint {
	h := fnv.New64a()
	walk(h, path, maxDepth)
	return fingerprint(h.Sum64())
}

func walk(h hash.Hash64, path string, depth int) {
	info, err := os.Stat(path)
	if err != nil || depth == 0 {
		return
	}
	if !info.IsDir() {
		add(h, path, info)
		return
	}
	_, _ = h.Write([]byte(path))
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if !derived[e.Name()] {
			walk(h, filepath.Join(path, e.Name()), depth-1)
		}
	}
}

// fingerprintModules returns the fingerprint of all modules that a Python file may import
// from its directory: the files that end in .py, there and in subdirectories that have some.
func fingerprintModules(dir string) fingerprint {
	h := fnv.New64a()
	walkModules(h, dir, maxDepth)
	return fingerprint(h.Sum64())
}

func walkModules(h hash.Hash64, dir string, depth int) {
	entries, _ := os.ReadDir(dir)
	module := func(e fs.DirEntry) bool { return filepath.Ext(e.Name()) == ".py" }
	if depth == 0 || !slices.ContainsFunc(entries, module) {
		return // it is not a package, and may be large
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		switch {
		case err != nil || strings.HasPrefix(e.Name(), ".") || derived[e.Name()]:
		case info.IsDir():
			walkModules(h, path, depth-1)
		case module(e):
			add(h, path, info)
		}
	}
}

func fingerprintFile(info fs.FileInfo) fingerprint {
	h := fnv.New64a()
	add(h, "", info)
	return fingerprint(h.Sum64())
}

func add(h hash.Hash64, path string, info fs.FileInfo) {
	_, _ = h.Write(fmt.Appendf(nil, "%s %d %d\n", path, info.Size(), info.ModTime().UnixNano())) // a hash never fails
}

// whole returns the fingerprint of all files of the model.
func (f *candidate) whole() fingerprint {
	all := f.config
	for n, s := range f.versions {
		all += (s ^ fingerprint(n)) * 1099511628211 // in any order
	}
	return all
}

func fingerprintText(text string) fingerprint {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // a hash never fails
	return fingerprint(h.Sum64())
}
