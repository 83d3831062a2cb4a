package mms

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/pause"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/tensor"
)

// slowStarts is an engine whose workers take a second to start.
type slowStarts struct{}

func (e slowStarts) Load(context.Context, engine.Source) (engine.Model, error) { return e, nil }
func (slowStarts) Close() error                                                { return nil }

func (slowStarts) Instance(ctx context.Context) (engine.Instance, error) {
	if err := pause.For(ctx, time.Second); err != nil {
		return nil, err
	}
	return &idle{died: make(chan struct{})}, nil
}

// An idle worker gets no requests.
type idle struct{ died chan struct{} }

func (*idle) Run(context.Context, []tensor.Tensor, *engine.Outputs) error {
	return errors.New("not asked")
}
func (*idle) RunEach(context.Context, []engine.Call) error { return errors.New("not asked") }
func (i *idle) Died() <-chan struct{}                      { return i.died }
func (*idle) Restart(context.Context) error                { return errors.New("it never dies") }
func (*idle) Failing() *infer.Error                        { return nil }
func (*idle) Process() int                                 { return 7 }
func (*idle) Close() error                                 { return nil }

// overSlowStarts runs f in virtual time with a store that has the archive m.mar, and whose workers take
// a second to start.
func overSlowStarts(t *testing.T, f func(t *testing.T, s *Store)) {
	dir := t.TempDir()
	writeArchive(t, filepath.Join(dir, "m.mar"), entry("MAR-INF/MANIFEST.json", manifest), entry("service.py", "x = 1"))
	synctest.Test(t, func(t *testing.T) {
		log, pace := slog.New(slog.DiscardHandler), pacer.NewPortable()
		defer pace.Close()
		env := servable.NewEnv(servable.Options{Runners: map[string]servable.Runner{python.Name: {Engine: slowStarts{}}}, Pacer: pace, Log: log})
		held, settings := server.New(env, server.Options{Log: log}), NewSettings()
		settings.Store = dir
		s, err := New(held, Options{Settings: settings, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		f(t, s)
		s.Close()
		if err := errors.Join(held.Close(), s.RemoveFiles()); err != nil {
			t.Error(err)
		}
	})
}

// leavesEarly makes a call whose client leaves when one worker has started, and the next one has not.
func leavesEarly(t *testing.T, s *Store, call func(ctx context.Context) error) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	err := call(ctx)
	if took := time.Since(began); infer.CodeOf(err) != infer.Cancelled || took != 1500*time.Millisecond || s.Health().Living != 1 {
		t.Errorf("ended after %v with %v, and %d workers are alive, want that the client left after 1.5s, and 1", took, err, s.Health().Living)
	}
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if h := s.Health(); h.Living != 3 || h.Short {
		t.Errorf("in the end, %+v, want 3 workers", h)
	}
}

func TestAScalingGoesOnWhenItsClientLeaves(t *testing.T) {
	overSlowStarts(t, func(t *testing.T, s *Store) {
		none := 0
		if _, err := s.Register(t.Context(), Registration{URL: "m.mar", Workers: &none}); err != nil {
			t.Fatal(err)
		}
		leavesEarly(t, s, func(ctx context.Context) error {
			_, err := s.ScaleTo(ctx, "m", "", 3, 3, true)
			return err
		})
		if _, err := s.ScaleTo(t.Context(), "m", "", 4, 4, true); err != nil || s.Health().Living != 4 {
			t.Errorf("with a client that waits: %v, %+v", err, s.Health())
		}
		s.Close()
		if _, err := s.ScaleTo(t.Context(), "m", "", 5, 5, true); err == nil {
			t.Error("a closed store was scaled")
		}
	})
}

func TestARegistrationGoesOnWhenItsClientLeaves(t *testing.T) {
	overSlowStarts(t, func(t *testing.T, s *Store) {
		workers := 3
		leavesEarly(t, s, func(ctx context.Context) error {
			_, err := s.Register(ctx, Registration{URL: "m.mar", Workers: &workers})
			return err
		})
		if _, err := s.Find("m", ""); err != nil {
			t.Error(err)
		}
	})
}
