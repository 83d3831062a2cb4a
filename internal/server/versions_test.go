package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/tensor"
)

// A counting engine counts the versions that are loading and open.
type counting struct {
	enginetest.Echo

	takes  time.Duration           // of each load, unless its context ends
	broken int64                   // number of the version that cannot be loaded; 0 means none
	panics int64                   // number of the version whose load panics; 0 means none
	asks   func(src engine.Source) // called at the end of each load; nil means that it does nothing

	mu                       sync.Mutex // guards the following
	loads, open, now, atOnce int
}

func (e *counting) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	e.count(func() { e.loads, e.now, e.atOnce = e.loads+1, e.now+1, max(e.atOnce, e.now+1) })
	defer e.count(func() { e.now-- })
	timer := time.NewTimer(e.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if src.Version == e.broken {
		return nil, errors.New("broken")
	}
	if src.Version == e.panics {
		panic("this version")
	}
	if e.asks != nil {
		e.asks(src)
	}
	e.count(func() { e.open++ })
	return e, nil
}

func (e *counting) Close() error {
	e.count(func() { e.open-- })
	return nil
}

func (e *counting) count(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// inBubble runs a test with a server in fake time. Nothing may be open in the end.
func inBubble(t *testing.T, eng *counting, opts Options, test func(t *testing.T, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		opts.Log = slog.New(slog.DiscardHandler)
		s := New(env(eng, p), opts)
		test(t, s)
		closeServer(t, s)
		if eng.open != 0 {
			t.Errorf("%d models are open", eng.open)
		}
	})
}

// versions desires the given versions of m, with a fingerprint.
func versions(fingerprint uint64, numbers ...int64) Desired {
	return func(ctx context.Context, _ []*servable.Version) (all []servable.Source, err error) {
		for _, n := range numbers {
			more, _ := also(servable.Source{Model: "m", Number: n, Fingerprint: fingerprint}, queued)(ctx, nil)
			all = append(all, more...)
		}
		return all, nil
	}
}

// states returns the numbers and states of the versions of m.
func states(s *Server) (all string) {
	for _, e := range s.Index(false) {
		all += fmt.Sprintf("%s %s, ", e.Version, e.State)
	}
	return all
}

// found returns the number of the version that answers requests without one; 0 if none.
func found(s *Server) int64 {
	v, err := s.Find("m", "")
	if err != nil {
		return 0
	}
	return v.Number()
}

func mustLoad(t *testing.T, s *Server, desired Desired) {
	t.Helper()
	if err := s.Load("m", "the test", desired); err != nil {
		t.Fatal(err)
	}
}

func TestAnOlderVersionThatIsAddedLaterIsNotTheDefault(t *testing.T) {
	inBubble(t, &counting{}, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(0, 2))
		mustLoad(t, s, versions(0, 2, 1))
		if got := found(s); got != 2 {
			t.Errorf("version %d is the default, want 2", got)
		}
		var numbers []int64
		for _, v := range s.Versions("m") {
			numbers = append(numbers, v.Number())
		}
		if !slices.Equal(numbers, []int64{1, 2}) {
			t.Errorf("versions %v, want 1 and 2", numbers)
		}
	})
}

func TestVersionsAreLoadedTogetherOrNotAtAll(t *testing.T) {
	eng := &counting{broken: 2}
	inBubble(t, eng, Options{}, func(t *testing.T, s *Server) {
		err := s.Load("m", "the test", versions(0, 1, 2))
		if infer.CodeOf(err) != infer.Invalid || eng.loads != 2 {
			t.Errorf("%d loads, and %v", eng.loads, err)
		}
		if eng.open != 0 {
			t.Errorf("%d versions are open after the load has failed", eng.open)
		}
		if got, want := states(s), ""; got != want {
			t.Errorf("the index has %s", got)
		}
	})
}

func TestABrokenVersionThatIsNotDesiredAnyMoreIsNotListedAsFailed(t *testing.T) {
	inBubble(t, &counting{broken: 2}, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(0, 1))
		if err := s.Load("m", "the test", versions(0, 1, 2)); err == nil || states(s) != "1 READY, 2 UNAVAILABLE, " {
			t.Errorf("%v; %s", err, states(s))
		}
		replaced, err := s.replaceTuned(t.Context(), s.Versions("m")[0], func(ctx context.Context) (*servable.Version, error) {
			sources, _ := versions(1, 1)(ctx, nil)
			return s.env.Open(ctx, sources[0])
		})
		if all := s.NodeModels(); !replaced || err != nil || len(all) != 2 {
			t.Errorf("replaced %t, %v; a cell is shown %+v, want the broken version, too, which is still desired", replaced, err, all)
		}
		mustLoad(t, s, versions(1, 1))
		if all := s.NodeModels(); len(all) != 1 || all[0].Version != "1" {
			t.Errorf("without the broken version, a cell is shown %+v", all)
		}
	})
}

func TestAVersionServesWhileItIsReplaced(t *testing.T) {
	eng := &counting{takes: time.Second}
	inBubble(t, eng, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(1, 1))
		before := s.Versions("m")[0]
		var load sync.WaitGroup
		load.Go(func() { mustLoad(t, s, versions(2, 1)) })
		time.Sleep(time.Second / 2)
		if got := states(s); got != "1 READY, " || s.Versions("m")[0] != before {
			t.Errorf("while it is replaced: %s", got)
		}
		load.Wait()
		synctest.Wait()
		if got := states(s); got != "1 READY, " || s.Versions("m")[0] == before || eng.open != 1 {
			t.Errorf("after it was replaced: %s, the same version %t, %d open", got, s.Versions("m")[0] == before, eng.open)
		}
		mustLoad(t, s, versions(2, 1))
		if eng.loads != 2 {
			t.Errorf("%d loads, although nothing has changed", eng.loads-2)
		}
	})
}

func TestAVersionIsUnloadedWhenAllThatWereLoadedOfItAreClosed(t *testing.T) {
	eng := &counting{}
	inBubble(t, eng, Options{}, func(t *testing.T, s *Server) {
		var release [2]func()
		for i := range release {
			mustLoad(t, s, versions(uint64(i), 1))
			_, release[i] = s.Pin([]infer.ModelVersion{{Model: "m"}})
		}
		s.Unload("m")
		for i, want := range []string{"1 UNLOADING, ", ""} { // the index omits what is unloaded
			release[i]()
			synctest.Wait()
			if got := states(s); got != want || eng.open != 1-i {
				t.Errorf("%d of two are open, and the index has %q, want %q", eng.open, got, want)
			}
		}
	})
}

func TestAModelThatIsMissingAtStartupKeepsTheServerFromBeingReady(t *testing.T) {
	eng := &counting{broken: 1}
	inBubble(t, eng, Options{}, func(t *testing.T, s *Server) {
		if err := s.Load("m", "the test", versions(0, 1)); err == nil {
			t.Error("a broken version was loaded")
		}
		s.MarkStarted()
		if s.Ready() {
			t.Error("the server is ready without a model that it should have")
		}
		mustLoad(t, s, versions(0, 2))
		if !s.Ready() {
			t.Error("the server is not ready with another version of the model")
		}
	})
}

func TestANameThatNoSourceHasIsForgotten(t *testing.T) {
	inBubble(t, &counting{}, Options{}, func(t *testing.T, s *Server) {
		s.MarkStarted()
		absent := errors.New("there is no such model")
		for range 2 {
			if err := s.Load("m", "the test", func(context.Context, []*servable.Version) ([]servable.Source, error) { return nil, absent }); !errors.Is(err, absent) {
				t.Errorf("%v, want %v", err, absent)
			}
			_, err := s.Find("m", "")
			if e, ok := errors.AsType[*infer.Error](err); !ok || e.Reason != infer.UnknownModel {
				t.Errorf("found %v, want that there is no such model", err)
			}
			if s.Owner("m") != "" || !s.Ready() {
				t.Errorf("owner %q, ready %t", s.Owner("m"), s.Ready())
			}
		}
	})
}

func TestAPanicWhileAVersionIsOpenedLeavesNothingOpenOrLoading(t *testing.T) {
	inBubble(t, &counting{panics: 2}, Options{}, func(t *testing.T, s *Server) {
		s.MarkStarted()
		if err := s.Load("m", "the test", versions(0, 1, 2)); infer.CodeOf(err) != infer.Internal || err == nil {
			t.Errorf("%v, want an internal error", err)
		}
		for _, e := range s.Index(false, "m") {
			if e.State != string(StateUnavailable) || e.Reason == "" {
				t.Errorf("version %s is %s: %q", e.Version, e.State, e.Reason)
			}
		}
		mustLoad(t, s, versions(0, 1))
		if got := found(s); got != 1 {
			t.Errorf("version %d is found after another load, want 1", got)
		}
	})
}

func TestALoadThatFailsDoesNotKeepItsNameFromOtherSources(t *testing.T) {
	inBubble(t, &counting{broken: 1}, Options{}, func(t *testing.T, s *Server) {
		s.MarkStarted()
		if err := s.Load("m", "another", versions(0, 1)); err == nil || s.Owner("m") != "" {
			t.Errorf("%v; it belongs to %q", err, s.Owner("m"))
		}
		mustLoad(t, s, versions(0, 2))
		if err := s.Load("m", "the test", versions(0, 1, 2)); err == nil || s.Owner("m") != "the test" {
			t.Errorf("%v; a model that serves belongs to %q", err, s.Owner("m"))
		}
	})
}

func TestAVersionThatDoesNotServeIsNotMadeTheDefault(t *testing.T) {
	inBubble(t, &counting{}, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(0, 1, 2))
		s.SetDefault("m", 1)
		s.SetDefault("m", 7)
		if got := found(s); got != 1 {
			t.Errorf("version %d is the default, want 1", got)
		}
	})
}

func TestADefaultVersionThatIsUnloadedIsNotTheDefaultWhenItReturns(t *testing.T) {
	inBubble(t, &counting{}, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(0, 1, 2))
		s.SetDefault("m", 1)
		if got := found(s); got != 1 {
			t.Errorf("version %d is the default, want 1", got)
		}
		mustLoad(t, s, versions(0, 2))
		if got := found(s); got != 2 {
			t.Errorf("version %d is the default after 1 was unloaded, want 2", got)
		}
		mustLoad(t, s, versions(0, 1, 2))
		if got := found(s); got != 2 {
			t.Errorf("version %d is the default after 1 has returned, want 2", got)
		}
	})
}

func TestATunedVersionDoesNotReplaceANewerOne(t *testing.T) {
	inBubble(t, &counting{}, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(1, 1))
		old := s.Versions("m")[0]
		mustLoad(t, s, versions(2, 1))
		replaced, err := s.replaceTuned(t.Context(), old, func(context.Context) (*servable.Version, error) {
			t.Error("a version was opened for one that does not serve any more")
			return nil, errors.New("not opened")
		})
		if !replaced || err != nil {
			t.Errorf("replaced %t, %v", replaced, err)
		}
	})
}

func TestALoadThatAnUnloadCancelsSaysNothingOfTheModel(t *testing.T) {
	inBubble(t, &counting{takes: time.Hour}, Options{Loads: 1}, func(t *testing.T, s *Server) {
		var loads sync.WaitGroup
		for _, name := range []string{"is opened", "waits for the other"} {
			loads.Go(func() {
				err := s.Load(name, "the test", versions(0, 1))
				if infer.CodeOf(err) != infer.Unavailable || !errors.Is(err, servable.ErrUnloading) || kserve.LoadFailed(err) {
					t.Errorf("the model that %s: %v with code %v, the model is to blame: %t", name, err, infer.CodeOf(err), kserve.LoadFailed(err))
				}
			})
			time.Sleep(time.Second)
		}
		s.Unload("waits for the other")
		s.Unload("is opened")
		loads.Wait()
	})
}

func TestUnloadingAModelCancelsItsLoad(t *testing.T) {
	inBubble(t, &counting{takes: time.Hour}, Options{}, func(t *testing.T, s *Server) {
		began := time.Now()
		var load sync.WaitGroup
		load.Go(func() {
			if err := s.Load("m", "the test", versions(0, 1)); !errors.Is(err, ErrUnloaded) {
				t.Errorf("the load ended with %v", err)
			}
		})
		time.Sleep(time.Second)
		s.Unload("m")
		load.Wait()
		if took := time.Since(began); took != time.Second || found(s) != 0 {
			t.Errorf("the load ended after %v, and version %d serves", took, found(s))
		}
		if all := s.NodeModels(); len(all) != 0 {
			t.Errorf("a cell avoids the node because of %+v", all)
		}
	})
}

func TestUnloadingAModelCancelsTheLoadsThatWaitForTheirTurn(t *testing.T) {
	// The first load waits either for its engine, with a state in the table, or for its files, without
	// one: then nothing of it is left when it has failed.
	files := func(ctx context.Context, _ []*servable.Version) ([]servable.Source, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	for name, first := range map[string]Desired{"opens": versions(0, 1), "reads files": files} {
		inBubble(t, &counting{takes: time.Hour}, Options{}, func(t *testing.T, s *Server) {
			s.MarkStarted()
			began := time.Now()
			var loads sync.WaitGroup
			for i, desired := range []Desired{first, versions(0, 1), versions(0, 2)} {
				loads.Go(func() {
					err := s.Load("m", "the test", desired)
					if took := time.Since(began); !errors.Is(err, ErrUnloaded) || took != 3*time.Second {
						t.Errorf("the first load %s: load %d ended after %v with %v, want 3s and that it was unloaded", name, i, took, err)
					}
				})
				time.Sleep(time.Second)
			}
			s.Unload("m")
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("the first load %s: the unload ended after %v, want 3s", name, took)
			}
			loads.Wait()
			if found(s) != 0 || s.Owner("m") != "" || !s.Ready() {
				t.Errorf("the first load %s: version %d serves, owner %q, ready %t", name, found(s), s.Owner("m"), s.Ready())
			}
		})
	}
}

func TestALoadAfterAnUnloadIsNotCancelled(t *testing.T) {
	inBubble(t, &counting{takes: time.Second}, Options{}, func(t *testing.T, s *Server) {
		mustLoad(t, s, versions(0, 1))
		s.Unload("m")
		mustLoad(t, s, versions(0, 2))
		if got := found(s); got != 2 {
			t.Errorf("version %d serves, want 2", got)
		}
	})
}

// An unload that comes when a load has its turn, but no context yet, finds nothing to cancel.
func TestALoadIsCancelledByAnUnloadBeforeItHasAContext(t *testing.T) {
	inBubble(t, &counting{}, Options{}, func(t *testing.T, s *Server) {
		m, unloads := s.takeTurn("m")
		var unload sync.WaitGroup
		unload.Go(func() { s.Unload("m") })
		synctest.Wait()
		ctx, end := s.loadContext(t.Context(), m, unloads)
		if err := context.Cause(ctx); !errors.Is(err, ErrUnloaded) {
			t.Errorf("the context has ended with %v", err)
		}
		end()
		<-m.turn
		unload.Wait()
	})
}

func TestANumberOfModelsLoadAtOnce(t *testing.T) {
	eng := &counting{takes: time.Second}
	inBubble(t, eng, Options{Loads: 2}, func(t *testing.T, s *Server) {
		began := time.Now()
		var loads sync.WaitGroup
		for i := range 5 {
			name := fmt.Sprint("m", i)
			loads.Go(func() {
				if err := s.Load(name, "the test", also(servable.Source{Model: name, Number: 1}, queued)); err != nil {
					t.Error(err)
				}
			})
		}
		loads.Wait()
		if took := time.Since(began); took != 3*time.Second || eng.atOnce != 2 {
			t.Errorf("five loads of a second took %v, with %d at once, want 3s and 2", took, eng.atOnce)
		}
	})
}

func TestModelsThatLoadOthersWhileTheyAreLoadedDoNotWaitForEachOther(t *testing.T) {
	eng := &counting{takes: time.Second}
	inBubble(t, eng, Options{Loads: 1}, func(t *testing.T, s *Server) {
		one := func(name string) Desired { return also(servable.Source{Model: name, Number: 1}, queued) }
		eng.asks = func(src engine.Source) {
			if helper, ok := strings.CutPrefix(src.Config.Name, "loads-"); ok {
				if err := s.LoadNested(helper, "the test", one(helper)); err != nil {
					t.Error(err)
				}
			}
		}
		began := time.Now()
		var loads sync.WaitGroup
		for _, name := range []string{"loads-a", "loads-b"} {
			loads.Go(func() {
				if err := s.Load(name, "the test", one(name)); err != nil {
					t.Error(err)
				}
			})
		}
		loads.Wait()
		if took := time.Since(began); took != 4*time.Second || len(s.AllVersions()) != 4 {
			t.Errorf("the loads took %v, and %d models serve, want 4s and 4", took, len(s.AllVersions()))
		}
	})
}

func TestAPooledResponseKeepsNothingOfItsLastRequest(t *testing.T) {
	s := start(t)
	resp := infer.Response{Parameters: []infer.Parameter{{Name: "old", Value: true}}, Last: true, Empty: true, Times: infer.Timeline{}}
	if err := s.Infer(t.Context(), request(), &resp); err != nil {
		t.Fatal(err)
	}
	if resp.Parameters != nil || resp.Stream != nil || resp.Last || resp.Empty {
		t.Errorf("the response has %+v of another one", resp)
	}
	resp.Release()
}

const reshaped = `
backend: "echo"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
`

// The version that the request finds takes no more requests, and is replaced a moment later.
// Its check has given the input another shape by then.
func TestARequestMovesToTheNextVersionWithTheInputsThatItCameWith(t *testing.T) {
	s := start(t)
	load(t, s, servable.Source{Model: "m", Number: 1}, reshaped)
	closed := s.Versions("m")[0]
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error)
	go func() {
		req := &infer.Request{Model: "m", Inputs: []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 4}, Data: make([]byte, 16)}}}
		var resp infer.Response
		err := s.Infer(context.Background(), req, &resp)
		if err == nil {
			if !slices.Equal(resp.Outputs[0].Shape, []int64{1, 4}) {
				t.Errorf("the output has shape %v", resp.Outputs[0].Shape)
			}
			resp.Release()
		}
		answered <- err
	}()
	for s.InFlight() == 0 {
		runtime.Gosched()
	}
	next := also(servable.Source{Model: "m", Number: 1, Fingerprint: 2}, reshaped)
	if err := s.Load("m", "the test", func(ctx context.Context, _ []*servable.Version) ([]servable.Source, error) { return next(ctx, nil) }); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
