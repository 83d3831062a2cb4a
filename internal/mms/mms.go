package mms

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/tempdir"
)

// A Dialect selects the server whose statuses and answers clients expect.
type Dialect string

// The dialects.
const (
	MultiModelServer Dialect = "mms"
	TorchServe       Dialect = "torchserve"
)

// Options configure a [Store].
type Options struct {
	Settings *Settings // required
	Dialect  Dialect   // "" means MultiModelServer

	Cores   int    // default number of workers of a model that is registered at startup
	Version string // of the program
	Log     *slog.Logger
}

// A Store registers archives with a server. Its methods are safe for concurrent use.
type Store struct {
	opts   Options
	server *server.Server
	files  store
	dir    *tempdir.Dir   // where archives are unpacked
	stamps atomic.Uint64  // number of registrations
	work   sync.WaitGroup // asynchronous changes

	mu     sync.Mutex // guards the following
	closed bool
	halts  map[int]context.CancelFunc // of asynchronous changes
	begun  int                        // number of them so far
}

// New returns a store that has registered no archives with s. The caller closes it before
// the server, and calls RemoveFiles after that.
func New(s *server.Server, opts Options) (*Store, error) {
	opts.Dialect = cmp.Or(opts.Dialect, MultiModelServer)
	private, err := tempdir.New("models")
	if err != nil {
		return nil, err
	}
	st := &Store{opts: opts, server: s, dir: private, halts: map[int]context.CancelFunc{}}
	st.files = store{dir: opts.Settings.Store, allowed: opts.Settings.Allowed, private: private.Path(), words: wordsOfMMS}
	if opts.Dialect == TorchServe {
		st.files.words = wordsOfTorchServe
	}
	return st, nil
}

// owner is the name of this source in the server's table.
func (s *Store) owner() string { return "the model store " + s.opts.Settings.Store }

// Dialect returns the dialect of the store.
func (s *Store) Dialect() Dialect { return s.opts.Dialect }

// Start registers the archives that the settings name, until ctx ends. The error joins those of
// archives that could not be registered; the others serve.
func (s *Store) Start(ctx context.Context) error {
	load := slices.Clone(s.opts.Settings.Load)
	var errs []error
	if s.opts.Settings.All {
		entries, err := os.ReadDir(s.files.dir)
		errs = append(errs, err)
		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") || isArchive(e.Name()) {
				load = append(load, Load{URL: e.Name()})
			}
		}
	}
	for _, l := range load {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx)) // the rest would fail with it
			break
		}
		reg := Registration{URL: l.URL, Name: cmp.Or(l.Name, s.opts.Settings.nameOf(l.URL)), atStart: true}
		o, err := s.register(ctx, reg)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if v := o.Version; s.opts.Settings.preset(v.Config.Name, v.Source.Label, l.URL).Default {
			s.server.SetDefault(v.Config.Name, v.Number())
		}
	}
	return errors.Join(errs...)
}

// Foreign reports whether a model is served, but comes from another source.
func (s *Store) Foreign(name string) bool {
	if v, err := s.server.Find(name, ""); err == nil {
		return About(v) == nil
	}
	owner := s.server.Owner(name)
	return owner != "" && owner != s.owner()
}

// Find returns a registered version of a model. Version "" means the default one.
func (s *Store) Find(name, version string) (*servable.Version, error) {
	v, err := s.server.Find(name, version)
	switch {
	case err == nil && About(v) != nil:
		return v, nil
	case s.Foreign(name):
		return nil, s.conflict(name)
	case len(s.server.Versions(name)) == 0:
		if _, err := s.server.Find(name, ""); infer.CodeOf(err) == infer.Unavailable { // it may be registered soon
			return nil, unavailable("%v", err)
		}
		return nil, notFound("Model not found: %s", name)
	}
	return nil, fail(http.StatusNotFound, "ModelVersionNotFoundException", "Model version: %s does not exist for model: %s", version, name)
}

// conflict returns the error for a model that belongs to another source.
func (s *Store) conflict(name string) *Error {
	return fail(http.StatusConflict, "ConflictStatusException", "Model %s is in %s, and cannot be registered, scaled or unregistered here.", name, s.server.Owner(name))
}

// Versions returns the versions of a model, the default one first.
func (s *Store) Versions(name string) ([]*servable.Version, error) {
	first, err := s.Find(name, "")
	if err != nil {
		return nil, err
	}
	all := []*servable.Version{first}
	for _, v := range s.server.Versions(name) {
		if v != first {
			all = append(all, v)
		}
	}
	return all, nil
}

// Visible returns the default version of each registered model that the caller may know, by
// name.
func (s *Store) Visible(ctx context.Context) []*servable.Version {
	return slices.DeleteFunc(s.Defaults(), func(v *servable.Version) bool {
		return s.server.Authorize(ctx, access.Describe, v.Config.Name) != nil
	})
}

// Defaults returns the default version of each registered model, by name.
func (s *Store) Defaults() []*servable.Version {
	return slices.DeleteFunc(s.All(), func(v *servable.Version) bool {
		byDefault, err := s.server.Find(v.Config.Name, "")
		return err != nil || v != byDefault
	})
}

// All returns every registered version, by name and number.
func (s *Store) All() []*servable.Version {
	return slices.DeleteFunc(s.server.AllVersions(), func(v *servable.Version) bool { return About(v) == nil })
}

// SetDefault makes a version the default one of its model.
func (s *Store) SetDefault(ctx context.Context, name, version string) error {
	return s.change(ctx, "set default version", name, version, func() error { return s.setDefault(name, version) })
}

func (s *Store) setDefault(name, version string) error {
	if _, err := s.Find(name, ""); err != nil {
		return err
	}
	v, err := s.Find(name, version)
	if err != nil {
		return fail(http.StatusNotFound, "ModelVersionNotFoundException", "Model version %s does not exist for model %s", version, name)
	}
	s.server.SetDefault(name, v.Number())
	return nil
}

// Unregister removes a version of a model. Version "" means the default one. Its queued
// requests run, and its unpacked files are deleted.
func (s *Store) Unregister(ctx context.Context, name, version string) error {
	return s.change(ctx, "unregister", name, version, func() error { return s.unregister(name, version) })
}

func (s *Store) unregister(name, version string) error {
	v, err := s.Find(name, version)
	if err != nil {
		return err
	}
	byDefault, err := s.Find(name, "")
	if err != nil {
		return err
	}
	if v == byDefault && len(s.server.Versions(name)) > 1 {
		return fail(http.StatusForbidden, "InternalServerException", "Cannot remove default version for model %s", name)
	}
	return s.remove(v)
}

// remove unloads a version, and returns when it is closed.
func (s *Store) remove(v *servable.Version) error {
	name := v.Config.Name
	err := s.server.Load(name, s.owner(), func(_ context.Context, have []*servable.Version) ([]servable.Source, error) {
		if !slices.Contains(have, v) {
			return nil, notFound("Model not found: %s", name) // it was removed in the meantime
		}
		return sources(slices.DeleteFunc(slices.Clone(have), func(other *servable.Version) bool { return other == v })), nil
	})
	if err != nil {
		return err
	}
	if err := v.Close(); err != nil { // the server closes it, too: this waits for the end
		s.opts.Log.Warn("model not unregistered cleanly", "model", name, "version", v.Name(), "error", err)
	}
	s.opts.Log.Info("model unregistered", "model", name, "version", v.Name())
	return nil
}

// sources returns the sources of versions.
func sources(versions []*servable.Version) (all []servable.Source) {
	for _, v := range versions {
		all = append(all, v.Source)
	}
	return all
}

// Health is the number of workers of all models: those that clients asked for, and those
// that can run requests.
type Health struct {
	Wanted, Living int
	Short          bool // a model has fewer workers than clients asked for
	Away           bool // the server has not started yet, or is stopping
}

// Health returns the state of all workers.
func (s *Store) Health() Health {
	h := Health{Away: !s.server.Accepting()}
	for _, v := range s.All() {
		wanted, _ := v.Scale()
		living := v.Alive()
		h.Wanted += wanted
		h.Living += living
		h.Short = h.Short || living < wanted
	}
	return h
}

// Close cancels asynchronous changes, and waits for them. The server closes the versions.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	for _, halt := range s.halts {
		halt()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// RemoveFiles deletes all unpacked archives. No version may be open.
func (s *Store) RemoveFiles() error { return s.dir.Remove() }

// background runs f in a goroutine. Close cancels its context and waits for it; a closed store does
// not run it.
func (s *Store) background(f func(context.Context)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return unavailable("the server is shutting down")
	}
	ctx, halt := context.WithCancel(context.Background())
	number := s.begun
	s.begun++
	s.halts[number] = halt
	s.work.Go(func() {
		defer func() {
			if cause := recover(); cause != nil {
				panics.Report(s.opts.Log, "workers of a model store", cause)
			}
		}()
		f(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		halt()
		delete(s.halts, number)
	})
	return nil
}

// finish runs f in the background and returns its error. It does not wait longer than a client; f
// goes on then. What says what happens: "model m was being scaled".
func (s *Store) finish(client context.Context, what string, f func(context.Context) error) error {
	done := make(chan error, 1) // size 1, so that f does not wait for a client that has left
	err := s.background(func(ctx context.Context) {
		defer close(done)
		done <- f(ctx)
	})
	if err != nil {
		return err
	}
	select {
	case err, ended := <-done:
		if !ended { // a panic
			return internal("Failed while %s; the server's log has the details", what)
		}
		return err
	case <-client.Done():
		return infer.Errorf(infer.Cancelled, "%w: the client disconnected while %s, which continues", client.Err(), what)
	}
}
