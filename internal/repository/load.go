package repository

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// Load brings a model to what is on disk, or to what the client sent instead. If
// the client leaves, the load goes on.
func (r *Repository) Load(ctx context.Context, name string, with Override) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	return r.load(ctx, name, with)
}

func (r *Repository) load(ctx context.Context, name string, with Override) error {
	done := make(chan error, 1) // so that the load does not wait for a client that has left
	if !r.begin(func() { done <- r.change(name, with) }) {
		return errClosing
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "nobody waits for the load of '%s' any more; it goes on", name)
	}
}

// Why loads end early.
var (
	errClosing  = infer.Errorf(infer.Unavailable, "the server is shutting down")
	errUnloaded = errors.New("the model was unloaded while it was being loaded")
)

// change is Load, one at a time for each model.
func (r *Repository) change(name string, with Override) error {
	m := r.take(name)
	if m == nil {
		return errClosing
	}
	ctx, cancel := context.WithCancelCause(context.Background()) // a load ends by itself, or is ended
	defer cancel(nil)
	r.mu.Lock()
	m.halt = cancel
	if r.closed {
		cancel(errClosing)
	}
	m.wanted = m.wanted || !r.started
	r.mu.Unlock()

	began := time.Now()
	c, err := r.bring(ctx, m, with)

	r.mu.Lock()
	m.halt = nil
	r.mu.Unlock()
	<-m.turn
	switch {
	case err != nil:
		r.opts.Log.Error("model not loaded", "model", name, "error", err)
	case len(c.load)+len(c.drop) > 0:
		r.opts.Log.Info("model loaded", "model", name, "loaded", c.load, "kept", c.keep, "replaced", c.drop, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// bring loads what is new, and puts it in the place of what is old.
func (r *Repository) bring(ctx context.Context, m *model, with Override) (change, error) {
	f, with, err := r.source(m, with)
	if err != nil {
		return change{}, r.refuse(m, err)
	}
	var sent *upload
	if len(with.Files) > 0 {
		sent = newUpload(f.dir)
		defer sent.letGo()
	}
	r.mu.Lock()
	m.over = look{tried: f.whole(), seen: f.whole()}
	r.mu.Unlock()
	w, err := newWish(f, with)
	if err != nil {
		return change{}, r.refuse(m, err)
	}
	have := map[int64]stamp{}
	for _, v := range r.Versions(m.name) {
		have[v.Number] = v.stamp
	}
	c := plan(have, w.versions)
	loaded, err := r.openAll(ctx, m, w, c.load)
	if err != nil {
		return c, err
	}
	for _, v := range loaded {
		v.keep(sent)
	}
	r.replace(m, c, loaded)
	for _, v := range loaded {
		r.findOut(m, w, v)
	}
	r.mu.Lock()
	m.with, m.at = with, f.whole()
	r.mu.Unlock()
	return c, nil
}

// refuse answers a load that cannot begin. A model that nobody has heard of
// before is forgotten again.
func (r *Repository) refuse(m *model, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(m.states) == 0 && !m.wanted {
		delete(r.models, m.name)
	}
	code := infer.CodeOf(err)
	if code == infer.Internal {
		code = infer.Invalid // it is about what the client wants to have loaded
	}
	return infer.Errorf(code, "model %q cannot be loaded: %w", m.name, err).Because(infer.LoadRefused, m.name, "")
}

// replace lets the loaded versions serve, and drains those whose place they take.
func (r *Repository) replace(m *model, c change, loaded []*Version) {
	r.mu.Lock()
	var next, old []*Version
	for _, v := range r.Versions(m.name) {
		if slices.Contains(c.keep, v.Number) {
			next = append(next, v)
		} else {
			old = append(old, v)
		}
	}
	next = append(next, loaded...)
	slices.SortFunc(next, func(a, b *Version) int { return cmp.Compare(a.Number, b.Number) })
	m.wanted = true
	for _, v := range old {
		m.states[v.Number] = status{state: Unloading}
	}
	for _, v := range next {
		m.states[v.Number] = status{state: Ready, reason: v.note()}
	}
	r.publishLocked(m.name, next)
	r.mu.Unlock()
	r.drain(m, old)
}
