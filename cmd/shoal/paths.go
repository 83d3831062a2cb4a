package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// checkPaths looks at the model repositories before any port is opened. A path that does
// not exist, or one without models that nothing can be added to later, is an error, unless
// --exit-on-error is false.
func (o *serveOptions) checkPaths(log *slog.Logger) error {
	mode, _ := o.changes()
	names, err := o.findModels(mode)
	switch {
	case err != nil && o.exitOnError:
		return err
	case err != nil:
		return nil //nolint:nilerr // it is logged when models are loaded
	case len(names) > 0 || o.store.used() || mode == repository.Explicit && len(o.loadModels) > 0:
		return nil
	case mode == repository.None && o.exitOnError:
		return noModels(o.repositories)
	case mode == repository.Explicit:
		log.Warn("no model is loaded until a client asks for it; name models with --load-model to load them at startup")
	default:
		log.Warn("no models found", "paths", strings.Join(o.repositories, ","), "mode", o.controlMode)
	}
	return nil
}

// findModels returns the names of the models that are loaded at startup, unless the flags
// name them.
func (o *serveOptions) findModels(mode repository.Mode) ([]string, error) {
	var errs []error
	local, remote := o.places()
	for _, path := range local {
		errs = append(errs, checkPath(path))
	}
	if err := errors.Join(errs...); err != nil || mode == repository.Explicit && !slices.Equal(o.loadModels, []string{"*"}) {
		return nil, err
	}
	names, err := repository.Names(local)
	return append(names, remote...), err // a bucket is listed after the ports are open
}

// places returns the paths of repositories, and the URLs of buckets.
func (o *serveOptions) places() (local, remote []string) {
	for _, path := range o.repositories {
		if repository.IsBucket(path) {
			remote = append(remote, path)
		} else {
			local = append(local, path)
		}
	}
	return local, remote
}

// openBuckets opens the buckets of the repositories, and the cache for their files; nil if
// there is no bucket.
func (o *serveOptions) openBuckets(ctx context.Context, log *slog.Logger) (buckets []*bucket.Bucket, cache *bucket.Cache, err error) {
	_, remote := o.places()
	if len(remote) == 0 {
		return nil, nil, nil
	}
	dir := o.modelCache
	if dir == "auto" {
		root, err := os.UserCacheDir()
		if err != nil {
			return nil, nil, errors.New("models of buckets need a directory, and neither HOME nor XDG_CACHE_HOME is set; name one with --model-cache")
		}
		dir = filepath.Join(root, "shoal", "models")
	}
	if cache, err = bucket.OpenCache(dir, int64(o.modelCacheSize)); err != nil {
		return nil, nil, err
	}
	log.Info("files of buckets are kept", "directory", dir)
	for _, address := range remote {
		b, err := bucket.Open(ctx, address)
		if err != nil {
			return nil, nil, errors.Join(err, closeBuckets(buckets, cache))
		}
		buckets = append(buckets, b)
	}
	return buckets, cache, nil
}

// closeBuckets closes what openBuckets opened.
func closeBuckets(buckets []*bucket.Bucket, cache *bucket.Cache) error {
	var errs []error
	for _, b := range buckets {
		errs = append(errs, b.Close())
	}
	if cache != nil {
		errs = append(errs, cache.Close())
	}
	return errors.Join(errs...)
}

// checkPath returns an error if a path does not exist.
func checkPath(path string) error {
	if err := repository.CheckLocal(path); err != nil {
		return err
	}
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("model repository: %w", err)
	}
	hint := "check the path"
	dir := filepath.Dir(path)
	if entries, err := os.ReadDir(dir); err != nil {
		hint = fmt.Sprintf("%s does not exist, either", dir)
	} else if name := suggest.Nearest(filepath.Base(path), namesOf(entries)); name != "" {
		hint = fmt.Sprintf("did you mean %s?", filepath.Join(dir, name))
	}
	return fmt.Errorf("%s does not exist; %s", path, hint)
}

// noModels describes paths in which there is no model.
func noModels(paths []string) error {
	var found []string
	for _, path := range paths {
		entries, _ := os.ReadDir(path) // it was read before
		found = append(found, namesOf(entries)...)
	}
	text := "it is empty"
	if len(found) > 0 {
		const most = 4
		text = "it has " + strings.Join(found[:min(most, len(found))], ", ")
		if len(found) > most {
			text += fmt.Sprintf(" and %d more", len(found)-most)
		}
	}
	return fmt.Errorf("no models in %s: %s. A model repository has a directory for each model, such as NAME/1/model.onnx, or .onnx files. "+
		`Other files are served if they are named, as in "shoal serve app.py". To start without models, use --model-control-mode=poll or explicit`,
		strings.Join(paths, ", "), text)
}

func namesOf(entries []fs.DirEntry) (names []string) {
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
