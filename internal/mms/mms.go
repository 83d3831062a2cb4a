package mms

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/pacer"
)

// A Dialect says whose words are spoken: the two servers differ in statuses and
// answers.
type Dialect string

// The dialects.
const (
	MultiModelServer Dialect = "mms"
	TorchServe       Dialect = "torchserve"
)

// Options configure a [Server].
type Options struct {
	Settings *Settings // required
	Dialect  Dialect   // "" means MultiModelServer

	Engine engine.Engine // runs handlers: that of Python models
	Pacer  *pacer.Pacer
	Cores  int // workers of a model that is registered at the start and has no number

	Version string // of the program
	Log     *slog.Logger
}

// A Server holds registered models. Its methods may be called concurrently.
type Server struct {
	opts     Options
	store    store
	work     sync.WaitGroup // changes that nobody waits for
	started  atomic.Bool    // the first models have been tried
	stopping atomic.Bool
	draining atomic.Bool
	inside   atomic.Int64 // predictions
	workers  atomic.Int64 // that there ever were
	dirs     atomic.Int64

	mu     sync.RWMutex // guards the following
	models map[string]*versions
	closed bool
	halts  map[int]context.CancelFunc // of those changes
	begun  int                        // how many there ever were
}

// versions are those of one name.
type versions struct {
	all   map[string]*Version
	usual string // the version that serves who names none
}

// New returns a server in which nothing is registered. The caller closes it.
func New(opts Options) (*Server, error) {
	opts.Dialect = cmp.Or(opts.Dialect, MultiModelServer)
	private, err := os.MkdirTemp("", "shoal-models-*") // for this user alone
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, models: map[string]*versions{}, halts: map[int]context.CancelFunc{}}
	s.store = store{dir: opts.Settings.Store, allowed: opts.Settings.Allowed, private: private, words: wordsOfMMS}
	if opts.Dialect == TorchServe {
		s.store.words = wordsOfTorchServe
	}
	return s, nil
}

// Dialect returns whose words the server speaks.
func (s *Server) Dialect() Dialect { return s.opts.Dialect }

// Start registers the models that are to be there from the start, and returns when
// each has been tried. The error says what is wrong with those that failed; the others
// serve.
func (s *Server) Start(ctx context.Context) error {
	load := slices.Clone(s.opts.Settings.Load)
	var errs []error
	if s.opts.Settings.All {
		entries, err := os.ReadDir(s.store.dir)
		errs = append(errs, err)
		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") || filepath.Ext(e.Name()) == ".mar" {
				load = append(load, Load{URL: e.Name()})
			}
		}
	}
	for _, l := range load {
		reg := s.preset(l)
		reg.atStart = true
		if _, err := s.Register(ctx, reg); err != nil {
			errs = append(errs, err)
		}
	}
	s.started.Store(true)
	return errors.Join(errs...)
}

// preset returns how a model is registered at the start.
func (s *Server) preset(l Load) Registration {
	n := cmp.Or(s.opts.Settings.Workers, max(1, s.opts.Cores))
	reg := Registration{URL: l.URL, Name: l.Name, Workers: &n}
	for name, all := range s.opts.Settings.Models {
		for _, p := range all {
			if p.Archive != l.URL || l.Name != "" && l.Name != name {
				continue
			}
			reg.Name, reg.BatchSize, reg.MaxBatchDelay = name, p.BatchSize, p.MaxBatchDelay
			reg.ResponseTimeout, reg.StartupTimeout = p.ResponseTimeout, p.StartupTimeout
			if p.MinWorkers > 0 {
				reg.Workers = &p.MinWorkers
			}
		}
	}
	return reg
}

// Find returns a version of a model; "" means the usual one.
func (s *Server) Find(name, version string) (*Version, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m := s.models[name]
	if m == nil {
		return nil, notFound("Model not found: %s", name)
	}
	v := m.all[cmp.Or(version, m.usual)]
	if v == nil {
		return nil, fail(404, "ModelVersionNotFoundException", "Model version: %s does not exist for model: %s", version, name)
	}
	return v, nil
}

// Versions returns those of a model, the usual one first.
func (s *Server) Versions(name string) ([]*Version, error) {
	first, err := s.Find(name, "")
	if err != nil {
		return nil, err
	}
	all := []*Version{first}
	for _, v := range s.All() {
		if v.Name == name && v != first {
			all = append(all, v)
		}
	}
	return all, nil
}

// Usual returns the usual version of each model, by name.
func (s *Server) Usual() []*Version {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []*Version
	for _, name := range slices.Sorted(maps.Keys(s.models)) {
		all = append(all, s.models[name].all[s.models[name].usual])
	}
	return all
}

// All returns every version, by name and version.
func (s *Server) All() []*Version {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []*Version
	for _, name := range slices.Sorted(maps.Keys(s.models)) {
		for _, version := range slices.Sorted(maps.Keys(s.models[name].all)) {
			all = append(all, s.models[name].all[version])
		}
	}
	return all
}

// SetDefault makes a version the usual one of its model.
func (s *Server) SetDefault(name, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.models[name]
	if m == nil {
		return notFound("Model not found: %s", name)
	}
	if m.all[version] == nil {
		return fail(http.StatusNotFound, "ModelVersionNotFoundException", "Model version %s does not exist for model %s", version, name)
	}
	m.usual = version
	return nil
}

// Unregister takes a version of a model away; "" means the usual one. What waits for
// it is run, and the files that were unpacked for it are deleted.
func (s *Server) Unregister(name, version string) error {
	v, err := s.Find(name, version)
	if err != nil {
		return err
	}
	s.mu.Lock()
	m := s.models[name]
	switch {
	case m == nil || m.all[v.Version] != v:
		err = notFound("Model not found: %s", name) // somebody else was faster
	case m.usual == v.Version && len(m.all) > 1:
		err = fail(403, "InternalServerException", "Cannot remove default version for model %s", name)
	case len(m.all) == 1:
		delete(s.models, name)
	default:
		delete(m.all, v.Version)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := v.close(); err != nil {
		s.opts.Log.Warn("model not unregistered cleanly", "model", name, "version", v.Version, "error", err)
	}
	s.opts.Log.Info("model unregistered", "model", name, "version", v.Version)
	return nil
}

// Health is how many workers of all models there should be, and how many live.
type Health struct {
	Wanted, Living int
	Short          bool // a model has fewer than it should
	Away           bool // the server has not started yet, or stops
}

// Health returns the state of all workers.
func (s *Server) Health() Health {
	h := Health{Away: s.stopping.Load() || !s.started.Load()}
	for _, v := range s.All() {
		wanted, _ := v.Scale()
		living := v.Living()
		h.Wanted += wanted
		h.Living += living
		h.Short = h.Short || living < wanted
	}
	return h
}

// Stop makes the server tell that it is not healthy. Requests are answered all the
// same.
func (s *Server) Stop() { s.stopping.Store(true) }

// Drain refuses predictions from now on. Those that are inside go on.
func (s *Server) Drain() {
	s.Stop()
	s.draining.Store(true)
}

// Inside returns how many predictions are inside.
func (s *Server) Inside() int { return int(s.inside.Load()) }

// Close lets all requests run that are here, and takes every model away.
func (s *Server) Close() error {
	s.Drain()
	s.mu.Lock()
	s.closed = true
	for _, halt := range s.halts {
		halt()
	}
	s.mu.Unlock()
	s.work.Wait()
	var errs []error
	for _, v := range s.All() {
		errs = append(errs, v.close())
	}
	s.mu.Lock()
	s.models = map[string]*versions{}
	s.mu.Unlock()
	return errors.Join(append(errs, os.RemoveAll(s.store.private))...)
}

// beside runs f, which nobody waits for but Close, which ends its context.
func (s *Server) beside(f func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	ctx, halt := context.WithCancel(context.Background())
	number := s.begun
	s.begun++
	s.halts[number] = halt
	s.work.Go(func() {
		f(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		halt()
		delete(s.halts, number)
	})
}
