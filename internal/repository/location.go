package repository

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/server"
)

// A location is where files of models are: directories, or a bucket.
//
// A location that is far away remembers what it listed last. Methods with the argument fresh
// ask it again if that is true, and otherwise only if nothing is remembered or if that is old,
// and not soon after it did not answer. If it does not answer, find uses what is remembered. If
// nothing is, find asks only if fresh is true, and fails at once otherwise.
type location interface {
	// list returns all models. If the error is not nil, some may be missing.
	list(ctx context.Context, fresh bool) ([]*candidate, error)
	// find returns the models of a name: there should be one at most.
	find(ctx context.Context, name string, fresh bool) ([]*candidate, error)
	// fetch returns a model whose files are in a directory: those that all versions share, and
	// those of the versions that selected returns, given a model that has only the former. The caller
	// releases the files, which may be nil.
	fetch(ctx context.Context, f *candidate, selected func(*candidate) ([]int64, error), progress *bucket.Progress) (*candidate, *upload, error)
}

// directories are the paths of directories and files on this machine.
type directories []string

func (d directories) list(context.Context, bool) (all []*candidate, err error) {
	var errs []error
	for _, path := range d {
		models, err := scanPath(path)
		errs = append(errs, err)
		all = append(all, models...)
	}
	return all, errors.Join(errs...)
}

func (d directories) find(_ context.Context, name string, _ bool) (all []*candidate, err error) {
	var unread error // of a path that might have the model
	for _, path := range d {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			models, err := scanFile(path, info)
			if err != nil {
				return nil, err // it might have the model
			}
			all = append(all, slices.DeleteFunc(models, func(m *candidate) bool { return m.name != name })...)
			continue
		}
		for _, c := range []string{filepath.Join(path, name), filepath.Join(path, name+".onnx")} {
			m, err := scanEntry(c)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				unread = infer.Errorf(infer.Unavailable, "model repository: %w", err)
			case m != nil && m.name == name: // the name of a file is not that of its model
				all = append(all, m)
			}
		}
	}
	if len(all) == 0 {
		return nil, unread
	}
	return all, nil
}

func (d directories) fetch(_ context.Context, f *candidate, _ func(*candidate) ([]int64, error), _ *bucket.Progress) (*candidate, *upload, error) {
	return f, nil, nil
}

// listTimeout limits how long a bucket may take to list its objects.
const listTimeout = time.Minute

// listedFor is how long the index uses a listing of a bucket without asking again, or waits
// until it asks a bucket again that did not answer.
const listedFor = 15 * time.Second

// A remoteLocation is a bucket with models.
type remoteLocation struct {
	bucket *bucket.Bucket
	cache  *bucket.Cache
	log    *slog.Logger

	mu     sync.Mutex              // guards the following
	models map[string][]*candidate // as they were listed last; nil if they were never
	asking bool                    // a call of list waits for the bucket
	tried  time.Time               // when one last stopped waiting
}

// A remote is where the files of a model are, if that is not a directory.
type remote struct {
	url      string
	location location
	shared   []bucket.Object           // of all versions
	versions map[int64][]bucket.Object // by number
}

// newest returns the size of the newest version, which is the one that is served unless the
// configuration says otherwise. The configuration is read only when the model is loaded.
func (r *remote) newest() (size int64) {
	if len(r.versions) == 0 {
		return 0
	}
	for _, o := range r.versions[slices.Max(slices.Collect(maps.Keys(r.versions)))] {
		size += o.Size
	}
	return size
}

func (l *remoteLocation) list(ctx context.Context, fresh bool) ([]*candidate, error) {
	l.mu.Lock()
	models, recent := l.models, time.Since(l.tried) < listedFor
	ask := fresh || !recent && (models == nil || !l.asking)
	l.asking = l.asking || ask
	l.mu.Unlock()
	switch {
	case ask:
		listed, err := l.ask(ctx)
		switch {
		case err == nil:
			models = listed
		case models == nil || fresh:
			return nil, err
		}
	case models == nil:
		return nil, l.notListed()
	}
	var all []*candidate
	for _, name := range slices.Sorted(maps.Keys(models)) {
		all = append(all, copies(models[name])...)
	}
	return all, nil
}

// ask lists the models of the bucket, and remembers them.
func (l *remoteLocation) ask(ctx context.Context) (map[string][]*candidate, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asking, l.tried = false, time.Now()
	}()
	objects, err := l.bucket.List(ctx, "")
	if err != nil {
		return nil, infer.Errorf(infer.Unavailable, "model repository: %w", err)
	}
	models := l.group(objects)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.models = models
	return models, nil
}

func (l *remoteLocation) notListed() error {
	return infer.Errorf(infer.Unavailable, "model repository: %s has not been listed yet", l.bucket.URL())
}

func (l *remoteLocation) find(ctx context.Context, name string, fresh bool) ([]*candidate, error) {
	l.mu.Lock()
	known, listed := copies(l.models[name]), l.models != nil
	l.mu.Unlock()
	switch {
	case listed && !fresh:
		return known, nil
	case !fresh: // requests must not wait for a bucket that does not answer; the poll asks it again
		return nil, l.notListed()
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var objects []bucket.Object
	for _, prefix := range []string{name + "/", name + ".onnx"} {
		some, err := l.bucket.List(ctx, prefix)
		if err != nil && listed {
			l.log.Warn("a bucket does not answer; using what it listed last", "bucket", l.bucket.URL(), "model", name, "error", err)
			return known, nil
		}
		if err != nil {
			return nil, infer.Errorf(infer.Unavailable, "model repository: %w", err)
		}
		objects = append(objects, some...)
	}
	current := l.group(objects)[name]
	l.mu.Lock()
	defer l.mu.Unlock()
	if listed {
		l.models = maps.Clone(l.models) // list may be reading the other one
		l.models[name] = current
	}
	return copies(current), nil
}

// copies returns copies of models, because callers set errors in them.
func copies(models []*candidate) (all []*candidate) {
	for _, m := range models {
		one := *m
		all = append(all, &one)
	}
	return all
}

// group makes models of the objects of a bucket, by the rules for directories. An empty directory
// is the marker of a folder, which ends with a slash, or an empty object. Without any file it is no
// model: folders may stay when their files are removed.
func (l *remoteLocation) group(objects []bucket.Object) map[string][]*candidate {
	dirs, all := map[string]*candidate{}, map[string][]*candidate{}
	empty := map[string][]int64{} // versions that may have no objects, by model
	for _, o := range objects {
		name, rest, inDir := strings.Cut(o.Key, "/")
		if strings.HasPrefix(name, ".") {
			continue
		}
		if !inDir {
			if filepath.Ext(name) == ".onnx" {
				m := l.candidate(o.Key, strings.TrimSuffix(name, ".onnx"))
				m.file = name
				m.add(bareVersion, o)
				all[m.name] = append(all[m.name], m)
			}
			continue
		}
		first, _, _ := strings.Cut(rest, "/")
		if derived[first] {
			continue
		}
		n, isVersion := versionNumber(first)
		marker := strings.HasSuffix(o.Key, "/")
		if isVersion && (marker || first == rest && o.Size == 0) {
			empty[name] = append(empty[name], n)
			continue
		}
		if marker {
			continue
		}
		m := dirs[name]
		if m == nil {
			m = l.candidate(name, name)
			dirs[name] = m
			all[name] = append(all[name], m)
		}
		if isVersion && first != rest {
			m.add(n, o)
		} else {
			m.remote.shared = append(m.remote.shared, o)
			m.config = m.config*31 + fingerprintObject(o)
		}
	}
	for name, m := range dirs {
		if len(m.versions) > 0 {
			continue // what is left of a version whose files were removed, or have not come yet
		}
		for _, n := range empty[name] {
			m.add(n)
		}
	}
	return all
}

func (l *remoteLocation) candidate(key, name string) *candidate {
	m := &candidate{
		name: name, versions: map[int64]fingerprint{},
		remote: &remote{url: l.bucket.URL() + "/" + key, location: l, versions: map[int64][]bucket.Object{}},
	}
	if !modelconfig.ValidName(name) {
		m.err = badName(m.remote.url, name)
	}
	return m
}

// add adds objects to a version, which it adds if it is missing. Objects come in the order of
// their keys.
func (f *candidate) add(version int64, objects ...bucket.Object) {
	f.remote.versions[version] = append(f.remote.versions[version], objects...)
	whole := f.versions[version]
	for _, o := range objects {
		whole = whole*31 + fingerprintObject(o)
	}
	f.versions[version] = whole
}

func (l *remoteLocation) fetch(ctx context.Context, f *candidate, selected func(*candidate) ([]int64, error), progress *bucket.Progress) (*candidate, *upload, error) {
	tree, err := l.cache.NewTree()
	if err != nil {
		return nil, nil, err
	}
	files := newFiles(tree.Release)
	files.fetched = true
	local := &candidate{name: f.name, dir: tree.Dir, file: f.file, config: f.config, versions: maps.Clone(f.versions)}
	prefix := f.name + "/"
	if f.file != "" {
		prefix = ""
	}
	add := func(objects []bucket.Object) error {
		progress.Total.Add(l.cache.Missing(l.bucket, objects))
		if err := tree.Add(ctx, l.bucket, objects, prefix, "", progress); err != nil {
			return infer.Errorf(infer.Unavailable, "its files cannot be fetched: %w", err)
		}
		return nil
	}
	if err := add(f.remote.shared); err != nil {
		files.release()
		return nil, nil, err
	}
	if selected == nil {
		return local, files, nil
	}
	numbers, err := selected(local)
	if err == nil {
		var objects []bucket.Object
		for _, n := range numbers {
			objects = append(objects, f.remote.versions[n]...)
		}
		err = add(objects)
	}
	if err != nil {
		files.release()
		return nil, nil, err
	}
	maps.DeleteFunc(local.versions, func(n int64, _ fingerprint) bool { return !slices.Contains(numbers, n) })
	return local, files, nil
}

// selected returns a function that says which versions of a model are served, given the files
// that all share.
func (r *Repository) selected(with override) func(*candidate) ([]int64, error) {
	return func(f *candidate) ([]int64, error) {
		cfg, err := (&desired{model: f, with: with}).parse()
		if err != nil {
			return nil, err
		}
		all := slices.Collect(maps.Keys(f.versions))
		served := choose(slices.Clone(all), cfg.VersionPolicy)
		if len(served) == 0 {
			return nil, infer.Errorf(infer.Invalid, "the model has no version that its version policy selects: %w", noVersion(f, all)).WithReason(infer.NoVersionAvailable, f.name, "")
		}
		return served, nil
	}
}

// progressEvery is how often the log reports a fetch that takes long.
const progressEvery = 10 * time.Second

// fetch brings the files of a model to this machine, if they are not here. The log and the
// index report how far it is. See location.
func (r *Repository) fetch(ctx context.Context, f *candidate, selected func(*candidate) ([]int64, error)) (*candidate, *upload, error) {
	if f.remote == nil {
		return f, nil, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(r.ctx, func() { cancel(server.ErrClosing) })
	defer stop()
	var progress bucket.Progress
	began := time.Now()
	log := r.opts.Log.With("model", f.name, "from", f.remote.url)
	if selected != nil {
		r.mu.Lock()
		r.fetches[f.name] = &progress
		r.mu.Unlock()
		ticks := time.NewTicker(progressEvery)
		ended := make(chan struct{})
		defer func() {
			ticks.Stop()
			close(ended)
			r.mu.Lock()
			delete(r.fetches, f.name)
			r.mu.Unlock()
		}()
		go func() {
			for {
				select {
				case <-ticks.C:
					log.Info("fetching model", "bytes", progress.Done.Load(), "of", progress.Total.Load())
				case <-ended:
					return
				}
			}
		}()
	}
	local, files, err := f.remote.location.fetch(ctx, f, selected, &progress)
	if errors.Is(err, bucket.ErrChanged) {
		_, _ = f.remote.location.find(ctx, f.name, true) // so that the next attempt knows the new objects
	}
	if n := progress.Done.Load(); err == nil && n > 0 && selected != nil {
		log.Info("model fetched", "bytes", n, "took", time.Since(began).Round(time.Millisecond))
	}
	return local, files, err
}

func fingerprintObject(o bucket.Object) fingerprint {
	return fingerprintText(o.Key + " " + strconv.FormatInt(o.Size, 10) + " " + o.Tag())
}
