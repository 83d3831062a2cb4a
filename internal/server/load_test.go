package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
)

// stubborn is an engine whose loads do not end with their context.
type stubborn struct {
	enginetest.Echo

	begun, goOn chan struct{}
	open        atomic.Int64
}

func (e *stubborn) Load(context.Context, engine.Source) (engine.Model, error) {
	close(e.begun)
	<-e.goOn
	e.open.Add(1)
	return e, nil
}

func (e *stubborn) Close() error {
	e.open.Add(-1)
	return nil
}

func TestUnloadingDoesNotLogALoad(t *testing.T) {
	p := pacer.NewPortable()
	defer p.Close()
	var log bytes.Buffer
	s := New(env(&enginetest.Echo{}, p), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	load(t, s, servable.Source{Model: "m", Number: 1}, queued)
	if !strings.Contains(log.String(), "model loaded") {
		t.Errorf("after the load: %s", log.String())
	}
	log.Reset()
	if err := s.Load("m", "the test", func(context.Context, []*servable.Version) ([]servable.Source, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	closeServer(t, s)
	if text := log.String(); strings.Contains(text, "model loaded") || !strings.Contains(text, "model unloaded") {
		t.Errorf("after the unload: %s", text)
	}
}

func TestReplacingDoesNotLogAnUnload(t *testing.T) {
	p := pacer.NewPortable()
	defer p.Close()
	var log bytes.Buffer
	s := New(env(&enginetest.Echo{}, p), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	load(t, s, servable.Source{Model: "m", Number: 1}, queued)
	err := s.Load("m", "the test", func(_ context.Context, have []*servable.Version) ([]servable.Source, error) {
		other := have[0].Source
		other.Fingerprint++
		return []servable.Source{other}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.changes.Wait() // the old one is closed
	if text := log.String(); !strings.Contains(text, "replaced=[1]") || strings.Contains(text, "model unloaded") {
		t.Errorf("after the replacement: %s", text)
	}
	closeServer(t, s)
}

func TestALoadThatEndsWhileTheServerClosesLeavesNothingOpen(t *testing.T) {
	p := pacer.New()
	defer p.Close()
	eng := &stubborn{begun: make(chan struct{}), goOn: make(chan struct{})}
	s := New(env(eng, p), Options{Log: slog.New(slog.DiscardHandler)})
	loaded, closed := make(chan error), make(chan error)
	go func() { loaded <- s.Load("m", "the test", also(servable.Source{Model: "m", Number: 1}, queued)) }()
	<-eng.begun
	go func() { closed <- s.Close() }()
	<-s.closing
	close(eng.goOn)
	if err := <-loaded; err != nil && !errors.Is(err, servable.ErrUnloading) {
		t.Error(err)
	}
	if err := <-closed; err != nil || eng.open.Load() != 0 {
		t.Errorf("%v; %d models are open", err, eng.open.Load())
	}
	err := s.Load("m", "the test", also(servable.Source{Model: "m", Number: 1}, queued))
	if e, ok := errors.AsType[*infer.Error](err); !errors.Is(err, ErrClosing) || !ok || e.Reason != infer.ShuttingDown {
		t.Errorf("after that: %v", err)
	}
}
