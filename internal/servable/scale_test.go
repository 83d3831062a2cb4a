package servable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pause"
	"github.com/shoal-serving/shoal/tensor"
)

// scalable opens a version whose instances are scaled.
func scalable(t *testing.T, f *fake) *Version {
	t.Helper()
	src := source(plain)
	src.Workers = &Workers{Queue: batching.Bound{Requests: 10}, Startup: 7 * time.Second}
	v, err := newTestEnv(t, f, Options{}).Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ask sends a request, and returns its error.
func ask(t *testing.T, v *Version) error {
	t.Helper()
	req := &infer.Request{Model: "m", Inputs: []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 2}, Data: make([]byte, 8)}}}
	if err := v.Config.Check(req); err != nil {
		t.Fatal(err)
	}
	var resp infer.Response
	err := v.Scheduler.Submit(t.Context(), req, &resp)
	if err == nil {
		resp.Release()
	}
	return err
}

func TestAVersionIsScaled(t *testing.T) {
	f := &fake{open: newProcess}
	v := scalable(t, f)
	f.check(t, 0, 0) // it is loaded with the first worker
	for _, tt := range []struct{ least, most, want int }{{0, 0, 0}, {2, 2, 2}, {1, 3, 2}, {3, 5, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}} {
		if err := v.ScaleTo(t.Context(), tt.least, tt.most); err != nil {
			t.Fatalf("scaled to %d: %v", tt.want, err)
		}
		least, most := v.Scale()
		if least != tt.least || most != tt.most || len(v.Workers()) != tt.want || v.Alive() != tt.want {
			t.Errorf("scaled to %d..%d, %d workers are listed and %d alive, want %+v", least, most, len(v.Workers()), v.Alive(), tt)
		}
		if n := v.Scheduler.Alive(); n != max(1, tt.want) {
			t.Errorf("%d instances for %d workers: a placeholder is needed if there are none, and only then", n, tt.want)
		}
		if err := ask(t, v); (err == nil) != (tt.want > 0) || err != nil && !errors.Is(err, ErrNoWorker) {
			t.Errorf("a request to %d workers: %v", tt.want, err)
		}
		if n := len(v.Workers()); n > 0 && (v.Workers()[0].Process != 7 || !v.Workers()[0].Ready) {
			t.Errorf("workers %+v", v.Workers())
		}
	}
	mustClose(t, v)
	f.check(t, 0, 0)
	if err := v.ScaleTo(t.Context(), 1, 1); !errors.Is(err, ErrUnloading) {
		t.Errorf("scaled after it was closed: %v", err)
	}
	f.check(t, 0, 0)
}

func TestWorkersThatAreAddedLaterRunBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		f := &fake{open: func(int) (engine.Instance, error) {
			return &fakeProcess{died: make(chan struct{}), runs: func() {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(10 * time.Millisecond)
				running.Add(-1)
			}}, nil
		}}
		src := source(strings.Replace(plain, "count: 2", "count: 1", 1) + "dynamic_batching { }")
		src.Workers = &Workers{Startup: time.Second}
		v, err := newTestEnv(t, f, Options{Automatic: true}).Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.ScaleTo(t.Context(), 2, 2); err != nil {
			t.Fatal(err)
		}
		for range 4 { // the policy measures single batches first
			if err := ask(t, v); err != nil {
				t.Error(err)
			}
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := ask(t, v); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Millisecond) // so that they do not share a batch
		}
		both.Wait()
		if most.Load() != 2 {
			t.Errorf("%d batches ran at once on two workers", most.Load())
		}
		mustClose(t, v)
	})
}

func TestAWorkerHasATimeLimitToStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{open: newProcess, loading: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		v := scalable(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := v.ScaleTo(ctx, 1, 1)
		if took := time.Since(began); took != 7*time.Second || err == nil || err.Error() != "no worker has started after 7s; raise startup_timeout if the handler only takes long to start" {
			t.Errorf("ended after %v with %v", took, err)
		}
		mustClose(t, v)
	})
}

func TestARestartHasTheTimeLimitOfAStart(t *testing.T) {
	workers := scalable(t, &fake{open: newProcess})
	loaded, err := newTestEnv(t, &fake{}, Options{Timeout: 5 * time.Second}).Open(t.Context(), source(plain))
	if err != nil {
		t.Fatal(err)
	}
	for v, want := range map[*Version]time.Duration{workers: 7 * time.Second, loaded: 5 * time.Second} {
		if got := v.engineSource().RestartTimeout; got != want {
			t.Errorf("%v, want %v", got, want)
		}
		mustClose(t, v)
	}
}

func TestWorkersAreRemovedAlsoIfTheyCloseWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("it was killed")
		f := &fake{open: func(int) (engine.Instance, error) {
			return &fakeProcess{died: make(chan struct{}), closeErr: broken}, nil
		}}
		v := scalable(t, f)
		if err := v.ScaleTo(t.Context(), 2, 2); err != nil {
			t.Fatal(err)
		}
		if err := v.ScaleTo(t.Context(), 0, 0); !errors.Is(err, broken) {
			t.Errorf("scaled to 0: %v, want the error of the workers", err)
		}
		f.check(t, 1, 0)
		asked := make(chan error, 1) // so that the request need not end
		go func() { asked <- ask(t, v) }()
		synctest.Wait()
		select {
		case err := <-asked:
			if !errors.Is(err, ErrNoWorker) {
				t.Errorf("a request to no workers: %v", err)
			}
		default:
			t.Error("a request waits for workers, and there are none")
		}
		mustClose(t, v)
	})
}

// It is for the race detector.
func TestAVersionIsExplainedWhileItsFirstWorkerStarts(t *testing.T) {
	begun := make(chan struct{})
	f := &fake{open: newProcess, loading: func(context.Context) error {
		close(begun)
		time.Sleep(50 * time.Millisecond) // of the clock, which orders nothing: that would hide a race
		return nil
	}}
	v := scalable(t, f)
	var scaled sync.WaitGroup
	scaled.Go(func() {
		if err := v.ScaleTo(t.Context(), 1, 1); err != nil {
			t.Error(err)
		}
	})
	<-begun
	if m := v.Explain(); m.Ensemble != nil {
		t.Errorf("a model with workers is an ensemble: %+v", m.Ensemble)
	}
	scaled.Wait()
	mustClose(t, v)
}

func TestOnlyProcessesAreScaled(t *testing.T) {
	f := &fake{}
	v := scalable(t, f)
	err := v.ScaleTo(t.Context(), 1, 1)
	if want := fmt.Sprintf("instances of backend %q cannot be scaled", v.Config.Backend); err == nil || err.Error() != want {
		t.Errorf("an instance in this process: %v, want %s", err, want)
	}
	f.check(t, 1, 0)
	mustClose(t, v)
	f.check(t, 0, 0)
}

var _ engine.PerRequest = (*fakeProcess)(nil)

func TestAVersionIsClosedBeforeAllOfItsWorkersHaveStarted(t *testing.T) {
	for _, tt := range []struct {
		what             string
		loading, opening time.Duration
		want             time.Duration // how long Close takes
	}{
		{"while a worker starts that cannot be stopped", 0, time.Second, 500 * time.Millisecond},
		{"while a worker starts", time.Second, 0, 0},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opened atomic.Int64
				f := &fake{
					loading: func(ctx context.Context) error { return pause.For(ctx, tt.loading) },
					open: func(n int) (engine.Instance, error) {
						opened.Add(1)
						time.Sleep(tt.opening)
						return newProcess(n)
					},
				}
				v := scalable(t, f)
				scaled := make(chan error, 1)
				go func() { scaled <- v.ScaleTo(t.Context(), 8, 8) }()
				time.Sleep(500 * time.Millisecond)
				began := time.Now()
				mustClose(t, v)
				if took := time.Since(began); took != tt.want || opened.Load() > 1 {
					t.Errorf("closed after %v, with %d workers opened, want %v and at most 1", took, opened.Load(), tt.want)
				}
				if err := <-scaled; !errors.Is(err, ErrUnloading) {
					t.Errorf("the scaling ended with %v", err)
				}
				f.check(t, 0, 0)
			})
		})
	}
}
