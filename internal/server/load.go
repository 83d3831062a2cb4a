package server

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/servable"
)

// Desired returns the versions of a model that should serve, given those that do. The
// server calls it when it is the caller's turn to change the model. ctx ends if the model is
// unloaded meanwhile, or the server is closed.
type Desired func(ctx context.Context, have []*servable.Version) ([]servable.Source, error)

// Load changes a model to the desired versions: those that serve with an unchanged
// fingerprint stay, new ones are opened, and the rest drain. If a version cannot be opened,
// nothing changes. Load returns when the new versions serve, or with an error when the
// server closes or the model is unloaded.
func (s *Server) Load(name, owner string, desired Desired) error {
	return s.loadInTurn(name, owner, desired, false)
}

// LoadNested is Load for another model. That may be loaded itself and hold one of
// [Options.Loads], so that the load does not wait for one: it could wait for its caller.
func (s *Server) LoadNested(name, owner string, desired Desired) error {
	return s.loadInTurn(name, owner, desired, true)
}

func (s *Server) loadInTurn(name, owner string, desired Desired, nested bool) error {
	if !s.beginChange() {
		return ErrClosing
	}
	defer s.changes.Done()
	m, unloads := s.takeTurn(name)
	if m == nil {
		return ErrClosing
	}
	ctx, end := s.loadContext(context.Background(), m, unloads) // not the client's context: the load goes on if the client leaves
	s.mu.Lock()
	m.expected = m.expected || !s.started && ctx.Err() == nil
	s.mu.Unlock()
	began := time.Now()
	c, err := s.applySafely(ctx, m, owner, desired, nested)
	end()
	if err != nil {
		s.disown(m)
	}
	<-m.turn
	switch {
	case err != nil:
		s.logFailure(name, err)
	case len(c.load) > 0:
		s.log.Info("model loaded", "model", name, "loaded", c.load, "kept", c.keep, "replaced", c.drop, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// logFailure logs a failed load, unless there were too many in the last minute.
func (s *Server) logFailure(name string, err error) {
	ok, skipped := s.failures.allow(time.Now())
	switch {
	case ok && skipped > 0:
		s.log.Error("model not loaded", "model", name, "error", err, "records_skipped", skipped)
	case ok:
		s.log.Error("model not loaded", "model", name, "error", err)
	}
}

// Errors of cancelled loads.
var (
	// ErrClosing is the error of a load while the server closes.
	ErrClosing = infer.Errorf(infer.Unavailable, "%w", cancelledLoad("the server is shutting down")).WithReason(infer.ShuttingDown, "", "")
	// ErrUnloaded is the cause of a load that an unload has cancelled.
	ErrUnloaded error = infer.Errorf(infer.Unavailable, "%w", cancelledLoad("the model was unloaded while it was being loaded")).WithReason(infer.NotInMemory, "", "")
)

// A cancelledLoad is the error of a load that was cancelled, because the model is unloaded
// or the server closes.
type cancelledLoad string

func (e cancelledLoad) Error() string { return string(e) }

// Unwrap lets the tuner of a version distinguish a cancelled load from a failed one.
func (cancelledLoad) Unwrap() error { return servable.ErrUnloading }

// beginChange registers a change of a model, which Close waits for. The caller ends it with
// s.changes.Done. beginChange returns false if the server is closing.
func (s *Server) beginChange() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.changes.Add(1)
	return true
}

// loadContext returns a context that ends when the model is unloaded or the server closes, and a
// function that the caller must call when the load has ended. It has ended already if the model was
// unloaded since the caller read unloads.
func (s *Server) loadContext(ctx context.Context, m *model, unloads uint64) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.cancel = cancel
	switch {
	case s.closed:
		cancel(ErrClosing)
	case m.unloads != unloads:
		cancel(ErrUnloaded)
	}
	return ctx, func() {
		s.mu.Lock()
		m.cancel = nil
		s.mu.Unlock()
		cancel(nil)
	}
}

// applySafely is apply, except that a panic, such as one in the parser of a configuration,
// is an error.
func (s *Server) applySafely(ctx context.Context, m *model, owner string, desired Desired, nested bool) (c change, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicked(m, cause)
		}
	}()
	panics.Point("load")
	return s.apply(ctx, m, owner, desired, nested)
}

// panicked reports a panic that a load recovered from, and returns the error of the load.
func (s *Server) panicked(m *model, cause any) error {
	panics.Report(s.log, "load", cause, "model", m.name)
	return infer.Errorf(infer.Internal, "internal error while model '%s' was loaded; the server's log has the details", m.name)
}

// apply opens the new versions of a change, and replaces the old ones.
func (s *Server) apply(ctx context.Context, m *model, owner string, desired Desired, nested bool) (change, error) {
	if err := context.Cause(ctx); err != nil { // it was unloaded while this load waited for its turn
		s.forget(m)
		return change{}, err
	}
	have := s.Versions(m.name)
	want, err := s.desiredSources(ctx, m, owner, desired, have)
	if err != nil {
		if infer.CodeOf(err) == infer.Unsupported {
			s.doNotExpect(m)
		}
		s.forget(m)
		return change{}, err
	}
	c := plan(have, want)
	loaded, err := s.openAll(ctx, m, c, want, nested)
	if err != nil {
		return c, err
	}
	s.clearFailures(m)
	s.replace(m, c, loaded)
	for _, v := range loaded {
		v.Tune(s.replaceTuned)
	}
	return c, nil
}

// desiredSources returns the desired versions. A model belongs to the source that loaded it first,
// until it is unloaded.
func (s *Server) desiredSources(ctx context.Context, m *model, owner string, desired Desired, have []*servable.Version) ([]servable.Source, error) {
	s.mu.Lock()
	other := m.owner
	if other == "" {
		m.owner = owner
	}
	s.mu.Unlock()
	if other != "" && other != owner {
		return nil, infer.Errorf(infer.Invalid, "model '%s' is in %s and in %s, expected one of them", m.name, other, owner)
	}
	return desired(ctx, have)
}

// openAll opens the new versions of a change, all or none: if one fails or panics, the others
// are closed.
func (s *Server) openAll(ctx context.Context, m *model, c change, want []servable.Source, nested bool) (opened []*servable.Version, err error) {
	if len(c.load) == 0 {
		return nil, nil
	}
	s.setStates(m, c.load, StateLoading, "")
	if !nested {
		select {
		case s.loads <- struct{}{}:
			defer func() { <-s.loads }()
		case <-ctx.Done():
			err := context.Cause(ctx)
			s.setStates(m, c.load, StateUnavailable, err.Error())
			return nil, err
		}
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicked(m, cause)
			for _, v := range opened {
				_ = v.Close() // the panic is the error to report
			}
			opened = nil
			s.setStates(m, c.load, StateUnavailable, err.Error())
		}
	}()
	for _, src := range want {
		if !slices.Contains(c.load, src.Number) {
			continue
		}
		v, err := s.env.Open(ctx, src)
		if err != nil {
			for _, other := range opened {
				err = errors.Join(err, other.Close())
			}
			s.setStates(m, c.load, StateUnavailable, err.Error())
			return nil, failed(m.name, src.Number, err)
		}
		opened = append(opened, v)
	}
	return opened, nil
}

func failed(name string, version int64, err error) error {
	code := infer.CodeOf(err)
	if code == infer.Internal || code == infer.NotFound {
		code = infer.Invalid // the client asked to load invalid files
	}
	number := strconv.FormatInt(version, 10)
	return infer.Errorf(code, "version %s of model %q cannot be loaded: %w", number, name, err).WithReason(infer.LoadFailed, name, number)
}

// StillServes begins the reason in the index of a version that serves although the last
// load of its model failed. The error of that load follows.
const StillServes = "the version that was loaded before still serves, because the last load failed: "

// ReasonUnloaded is the reason in the index of a version that was unloaded.
const ReasonUnloaded = "unloaded"

// setStates sets the states of versions. Those that serve stay ready.
func (s *Server) setStates(m *model, numbers []int64, state State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changedLocked()
	for _, n := range numbers {
		if m.states[n].state == StateReady {
			if reason != "" {
				m.states[n] = status{StateReady, StillServes + reason}
			}
			continue
		}
		m.states[n] = status{state, reason}
	}
}

// clearFailures makes unloaded versions of those that could not be loaded, when others are desired
// now: a cell avoids a node for a version that failed.
func (s *Server) clearFailures(m *model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, st := range m.states {
		if st.state == StateUnavailable {
			m.states[n] = status{StateUnavailable, ReasonUnloaded}
		}
	}
}

// replace publishes the loaded versions, and drains those that they replace.
func (s *Server) replace(m *model, c change, loaded []*servable.Version) {
	s.mu.Lock()
	before := (*s.serving.Load())[m.name]
	now := serving{defaultVersion: before.defaultVersion}
	var old []*servable.Version
	for _, v := range before.versions {
		if slices.Contains(c.keep, v.Number()) {
			now.versions = append(now.versions, v)
		} else {
			old = append(old, v)
			m.states[v.Number()] = status{state: StateUnloading}
		}
	}
	now.versions = append(now.versions, loaded...)
	slices.SortFunc(now.versions, func(a, b *servable.Version) int { return cmp.Compare(a.Number(), b.Number()) })
	if now.find("") == nil {
		now.defaultVersion = 0 // that version no longer serves
	}
	for _, v := range now.versions {
		m.states[v.Number()] = status{state: StateReady, reason: v.Note()}
	}
	if m.expected = len(now.versions) > 0; !m.expected {
		m.owner = ""
	}
	m.draining = append(m.draining, old...)
	s.publishLocked(m.name, now)
	s.mu.Unlock()
	s.drain(m, old)
}

// replaceTuned implements [servable.Replace].
func (s *Server) replaceTuned(ctx context.Context, old *servable.Version, open func(context.Context) (*servable.Version, error)) (replaced bool, err error) {
	if !s.beginChange() {
		return true, nil
	}
	defer s.changes.Done()
	name := old.Config.Name
	s.mu.Lock()
	m, unloads := s.models[name], uint64(0)
	if m != nil {
		unloads = m.unloads
	}
	s.mu.Unlock()
	if m == nil {
		return true, nil
	}
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if !s.inTable(m) || !slices.Contains(s.Versions(name), old) {
		return true, nil // it was replaced in the meantime
	}
	ctx, end := s.loadContext(ctx, m, unloads) // Unload cancels it, like any load
	v, err := open(ctx)
	end()
	if err != nil {
		return false, err
	}
	c := change{load: []int64{v.Number()}}
	for _, other := range s.Versions(name) {
		if other != old {
			c.keep = append(c.keep, other.Number())
		}
	}
	s.replace(m, c, []*servable.Version{v})
	return true, nil
}

// drain closes versions in the background, after their queued requests have run. The caller
// has called beginChange, and added them to m.draining.
func (s *Server) drain(m *model, versions []*servable.Version) {
	for _, v := range versions {
		s.changes.Go(func() {
			if err := v.Close(); err != nil {
				s.log.Error("model unloaded with an error", "model", m.name, "version", v.Name(), "error", err)
			}
			s.freeMemory() // return what Go kept for the requests of the version
			s.mu.Lock()
			defer s.mu.Unlock()
			m.draining = slices.DeleteFunc(m.draining, func(other *servable.Version) bool { return other == v })
			another := slices.ContainsFunc(m.draining, func(other *servable.Version) bool { return other.Number() == v.Number() })
			if m.states[v.Number()].state == StateUnloading && !another { // it was not replaced
				m.states[v.Number()] = status{StateUnavailable, ReasonUnloaded}
				s.log.Info("model unloaded", "model", m.name, "version", v.Name())
			}
			s.changedLocked()
		})
	}
}

// freeMemory returns free memory of Go to the system, at most once in ten seconds: it takes a
// garbage collection, which delays requests, and models may be unloaded many times a second.
func (s *Server) freeMemory() {
	now, before := time.Now().Unix()/10, s.freedMemory.Load()
	if now != before && s.freedMemory.CompareAndSwap(before, now) {
		debug.FreeOSMemory()
	}
}

// Unload takes a model out of service: it rejects new requests, cancels the loads that were called
// before it, and drains the versions in the background. Unloading a model that is not loaded has no effect.
func (s *Server) Unload(name string) {
	if !s.beginChange() {
		return // Close unloads all
	}
	defer s.changes.Done()
	s.mu.Lock()
	m := s.models[name]
	if m == nil {
		s.mu.Unlock()
		return
	}
	m.expected = false
	m.unloads++
	if m.cancel != nil {
		m.cancel(ErrUnloaded)
	}
	s.mu.Unlock()
	m.turn <- struct{}{} // does not take long: the loads before it were cancelled
	defer func() { <-m.turn }()
	if !s.inTable(m) {
		return // its load failed, and no version served
	}
	s.clearFailures(m)
	s.replace(m, change{}, nil)
}
