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
	"github.com/shoal-serving/shoal/internal/servable"
)

// A Desire returns which versions of a model are wanted, given those that serve. It is
// called when it is the caller's turn to change the model.
type Desire func(have []*servable.Version) ([]servable.Source, error)

// Load brings a model to what owner desires: versions that serve and have the stamp of
// a source stay, others are opened, and those that are not desired drain. If one cannot
// be opened, all stays as it is. It returns when the new versions serve, or when the
// server is closing, or the model is unloaded.
func (s *Server) Load(name, owner string, desire Desire) error {
	if !s.enter() {
		return ErrClosing
	}
	defer s.work.Done()
	m := s.take(name)
	if m == nil {
		return ErrClosing
	}
	ctx, end := s.loading(context.Background(), m) // a load ends by itself, or is ended
	s.mu.Lock()
	m.wanted = m.wanted || !s.started
	s.mu.Unlock()
	began := time.Now()
	c, err := s.bring(ctx, m, owner, desire)
	end()
	<-m.turn
	switch {
	case err != nil:
		s.log.Error("model not loaded", "model", name, "error", err)
	case len(c.load)+len(c.drop) > 0:
		s.log.Info("model loaded", "model", name, "loaded", c.load, "kept", c.keep, "replaced", c.drop, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// Why loads end early.
var (
	// ErrClosing is the error of a load that comes when the server is closing.
	ErrClosing  = infer.Errorf(infer.Unavailable, "%w", early("the server is shutting down"))
	errUnloaded = early("the model was unloaded while it was being loaded")
)

// early is the error of a load that nobody wants to have any more.
type early string

func (e early) Error() string { return string(e) }

// Unwrap tells who measures a version that there is nothing wrong with it.
func (early) Unwrap() error { return servable.ErrUnloading }

// enter says that a model is going to change, which Close waits for, until s.work.Done.
// It returns false if the server is closing.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

// loading returns a context that ends when the model is unloaded or the server closes,
// and what says that nothing is loaded any more.
func (s *Server) loading(ctx context.Context, m *model) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.halt = cancel
	if s.closed {
		cancel(ErrClosing)
	}
	return ctx, func() {
		s.mu.Lock()
		m.halt = nil
		s.mu.Unlock()
		cancel(nil)
	}
}

// bring opens what is new, and puts it in the place of what is old.
func (s *Server) bring(ctx context.Context, m *model, owner string, desire Desire) (change, error) {
	have := s.Versions(m.name)
	want, err := s.desired(m, owner, desire, have)
	if err != nil {
		s.forget(m)
		return change{}, err
	}
	c := plan(have, want)
	loaded, err := s.openAll(ctx, m, c, want)
	if err != nil {
		return c, err
	}
	s.replace(m, c, loaded)
	for _, v := range loaded {
		v.Tune(s.retune)
	}
	return c, nil
}

// desired asks which versions are wanted. A model belongs to the source that loaded it
// first, until it is unloaded.
func (s *Server) desired(m *model, owner string, desire Desire, have []*servable.Version) ([]servable.Source, error) {
	s.mu.Lock()
	other := m.owner
	if other == "" {
		m.owner = owner
	}
	s.mu.Unlock()
	if other != "" && other != owner {
		return nil, infer.Errorf(infer.Invalid, "model '%s' is in %s and in %s, expected one of them", m.name, other, owner)
	}
	return desire(have)
}

// openAll opens the versions of a change, all or none. If one fails, the others are
// closed, and what serves is left as it is.
func (s *Server) openAll(ctx context.Context, m *model, c change, want []servable.Source) ([]*servable.Version, error) {
	if len(c.load) == 0 {
		return nil, nil
	}
	s.note(m, c.load, Loading, "")
	select {
	case s.loads <- struct{}{}:
		defer func() { <-s.loads }()
	case <-ctx.Done():
		err := context.Cause(ctx)
		s.note(m, c.load, Unavailable, err.Error())
		return nil, err
	}
	var opened []*servable.Version
	for _, src := range want {
		if !slices.Contains(c.load, src.Number) {
			continue
		}
		v, err := s.env.Open(ctx, src)
		if err != nil {
			for _, other := range opened {
				err = errors.Join(err, other.Close())
			}
			s.note(m, c.load, Unavailable, err.Error())
			return nil, failed(m.name, src.Number, err)
		}
		opened = append(opened, v)
	}
	return opened, nil
}

func failed(name string, version int64, err error) error {
	code := infer.CodeOf(err)
	if code == infer.Internal || code == infer.NotFound {
		code = infer.Invalid // it is about the files that the client wants to have loaded
	}
	number := strconv.FormatInt(version, 10)
	return infer.Errorf(code, "version %s of model %q cannot be loaded: %w", number, name, err).Because(infer.LoadFailed, name, number)
}

// note sets the states of versions, except that those which serve stay ready.
func (s *Server) note(m *model, numbers []int64, state State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range numbers {
		if m.states[n].state == Ready {
			if reason != "" {
				m.states[n] = status{Ready, "the version that was loaded before still serves, because the last load failed: " + reason}
			}
			continue
		}
		m.states[n] = status{state, reason}
	}
}

// replace lets the loaded versions serve, and drains those whose place they take.
func (s *Server) replace(m *model, c change, loaded []*servable.Version) {
	s.mu.Lock()
	before := (*s.serving.Load())[m.name]
	now := serving{usual: before.usual}
	var old []*servable.Version
	for _, v := range before.versions {
		if slices.Contains(c.keep, v.Number()) {
			now.versions = append(now.versions, v)
		} else {
			old = append(old, v)
			m.states[v.Number()] = status{state: Unloading}
		}
	}
	now.versions = append(now.versions, loaded...)
	slices.SortFunc(now.versions, func(a, b *servable.Version) int { return cmp.Compare(a.Number(), b.Number()) })
	if now.find("") == nil {
		now.usual = 0 // it has gone
	}
	for _, v := range now.versions {
		m.states[v.Number()] = status{state: Ready, reason: v.Note()}
	}
	if m.wanted = len(now.versions) > 0; !m.wanted {
		m.owner = ""
	}
	s.publishLocked(m.name, now)
	s.mu.Unlock()
	s.drain(m, old)
}

// retune implements [servable.Replace].
func (s *Server) retune(ctx context.Context, old *servable.Version, open func(context.Context) (*servable.Version, error)) (replaced bool, err error) {
	if !s.enter() {
		return true, nil
	}
	defer s.work.Done()
	name := old.Config.Name
	s.mu.Lock()
	m := s.models[name]
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
	if !s.knows(m) || !slices.Contains(s.Versions(name), old) {
		return true, nil // somebody else has replaced it meanwhile
	}
	ctx, end := s.loading(ctx, m) // an unload ends it, as it ends any load
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

// drain lets the requests of versions run that are here, and closes them, while
// everything else goes on. The caller has entered.
func (s *Server) drain(m *model, versions []*servable.Version) {
	for _, v := range versions {
		s.work.Go(func() {
			if err := v.Close(); err != nil {
				s.log.Error("model unloaded with an error", "model", m.name, "version", v.Name(), "error", err)
			}
			debug.FreeOSMemory() // its own memory is given back; what Go kept for its requests is, too
			s.mu.Lock()
			defer s.mu.Unlock()
			if m.states[v.Number()].state == Unloading {
				m.states[v.Number()] = status{Unavailable, "unloaded"}
			}
			s.log.Info("model unloaded", "model", m.name, "version", v.Name())
		})
	}
}

// Unload takes a model out of service: new requests are refused, those that are
// here run, and a load that is under way ends. It returns before they have run. A model
// that is not loaded is no error.
func (s *Server) Unload(name string) {
	if !s.enter() {
		return // Close unloads all
	}
	defer s.work.Done()
	s.mu.Lock()
	m := s.models[name]
	if m == nil {
		s.mu.Unlock()
		return
	}
	m.wanted = false
	if m.halt != nil {
		m.halt(errUnloaded)
	}
	s.mu.Unlock()
	m.turn <- struct{}{} // soon: a load that was halted is ending
	defer func() { <-m.turn }()
	if !s.knows(m) {
		return // its load failed, and there was nothing else
	}
	s.replace(m, change{}, nil)
}
