package repository

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/tensor"
)

// slow is an engine whose loads take a second, and that counts them.
type slow struct {
	enginetest.Echo

	mu    sync.Mutex // guards the following
	loads map[string]int
	open  int
	most  int // models that were open at once
	fail  error

	during  func(model string) // called by each load; nil means nothing
	closing time.Duration      // how long a model takes to close
}

func (e *slow) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	e.mu.Lock()
	e.loads[src.Config.Name]++
	fail := e.fail
	e.open++
	e.most = max(e.most, e.open)
	e.mu.Unlock()
	if e.during != nil {
		e.during(src.Config.Name)
	}
	time.Sleep(time.Second)
	if fail != nil || ctx.Err() != nil {
		_ = e.Close()
		return nil, errors.Join(fail, ctx.Err())
	}
	return e, nil
}

func (e *slow) Close() error {
	time.Sleep(e.closing)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	return nil
}

// loadsOfA returns how often model a was loaded.
func (e *slow) loadsOfA() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.loads["a"]
}

func (e *slow) breaks(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = err
}

const weight = 1000 // bytes of each model

// models writes models of one weight each.
func (d disk) models(names ...string) disk {
	for _, name := range names {
		d.model(name, echoConfig).write(map[string]string{name + "/1/weights": strings.Repeat("w", weight)})
	}
	return d
}

// demanding runs a test in virtual time with a repository in mode Demand that has memory
// for a number of models.
func demanding(t *testing.T, d disk, fit int, change func(*setup), test func(t *testing.T, r *running, eng *slow)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		eng, p := &slow{loads: map[string]int{}}, pacer.NewPortable()
		opts := setup{
			Paths: []string{d.dir}, Mode: Demand, Demand: DemandOptions{Memory: int64(fit) * weight}, Pacer: p, Cores: 3,
			Log: slog.New(slog.DiscardHandler), Runners: map[string]servable.Runner{"echo": {Engine: eng}},
		}
		if change != nil {
			change(&opts)
		}
		r := opts.open()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, r, eng)
		if err := r.Close(); err != nil || eng.open != 0 || eng.most > fit {
			t.Errorf("close: %v; %d models are still open, and at most %d were, of which %d fit", err, eng.open, eng.most, fit)
		}
		p.Close()
	})
}

// request sends a request, and returns how long it took.
func request(ctx context.Context, r *running, model string) (time.Duration, error) {
	began := time.Now()
	var resp infer.Response
	req := &infer.Request{Model: model, Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 2}, Data: tensor.Data([]float32{1, 2})}}}
	err := r.Infer(ctx, req, &resp)
	if err == nil {
		resp.Release()
	}
	return time.Since(began), err
}

// mustAsk sends a request that must be answered after the given time.
func mustAsk(t *testing.T, r *running, model string, want time.Duration) {
	t.Helper()
	if took, err := request(t.Context(), r, model); err != nil || took != want {
		t.Errorf("model %s answered after %v, want %v: %v", model, took, want, err)
	}
}

// refused checks that a request was refused with 503 and a time to retry, and returns the
// text of the error.
func refused(t *testing.T, err error, retry time.Duration) string {
	t.Helper()
	e, ok := errors.AsType[*infer.Error](err)
	if !ok || e.Code != infer.Unavailable || e.RetryAfter != retry {
		t.Fatalf("the request got %+v, want a refusal with a retry after %v", err, retry)
	}
	full := strings.Contains(e.Text, "are not free in")
	if later := strings.HasPrefix(e.Text, fmt.Sprintf("model %q is", e.Model)); full != (e.Reason == infer.NoMemory) || (later && !full) != (e.Reason == infer.NotInMemory) {
		t.Errorf("%q has the reason %d, want NoMemory if others have the memory, NotInMemory for models that are not loaded now, and neither for others", e.Text, e.Reason)
	}
	return e.Text
}

func TestTheFirstRequestLoadsItsModel(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 2, nil, func(t *testing.T, r *running, _ *slow) {
		if got := index(r); got != "a; b" || !r.Ready() {
			t.Errorf("index %q, ready %t", got, r.Ready())
		}
		if !r.ModelReady("a", "") || r.ModelReady("c", "") {
			t.Error("a model that a request would load is not ready, or one that does not exist is")
		}
		mustAsk(t, r, "a", time.Second)
		mustAsk(t, r, "a", 0)
		if _, err := r.Model(t.Context(), "b", ""); err != nil {
			t.Errorf("the description of a model that is not loaded: %v", err)
		}
		if got := index(r); got != "a 1 READY; b 1 READY" {
			t.Errorf("index %q", got)
		}
		_, err := request(t.Context(), r, "c")
		if e, _ := errors.AsType[*infer.Error](err); infer.CodeOf(err) != infer.NotFound || e.Reason != infer.UnknownModel {
			t.Errorf("a model that does not exist: %v", err)
		}
	})
}

func TestAHundredRequestsForAColdModelLoadItOnce(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { mustAsk(t, r, "a", time.Second) })
		}
		all.Wait()
		if eng.loadsOfA() != 1 {
			t.Errorf("%d loads, want 1", eng.loadsOfA())
		}
	})
}

func TestARequestThatCannotBeInTimeIsRefusedAtOnce(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		if err := r.Unload("a"); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		took, err := request(short, r, "a")
		if text := refused(t, err, time.Second); took != 0 || !strings.Contains(text, "takes about 1s") {
			t.Errorf("refused after %v with %q", took, text)
		}
		time.Sleep(time.Second)
		mustAsk(t, r, "a", 0) // the refused request began the load
		if eng.loadsOfA() != 2 {
			t.Errorf("%d loads, want 2", eng.loadsOfA())
		}
	})
}

func TestADeadlineThatPassesDuringAnUnknownLoadEndsTheWait(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, _ *slow) {
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if took, err := request(short, r, "a"); infer.CodeOf(err) != infer.Deadline || took != 100*time.Millisecond {
			t.Errorf("after %v: %v", took, err)
		}
		mustAsk(t, r, "a", 900*time.Millisecond)
	})
}

func TestAModelLeavesMemoryForAnother(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b", "c"), 2, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		mustAsk(t, r, "b", time.Second)
		mustAsk(t, r, "b", 0)
		time.Sleep(15 * time.Second)
		mustAsk(t, r, "c", time.Second)
		if got := index(r); got != "a 1 UNAVAILABLE unloaded; a request loads it; b 1 READY; c 1 READY" {
			t.Errorf("index %q: want the model gone that was asked for least", got)
		}
		c, _ := r.source.DemandCounts()
		if want := (DemandCounts{Loads: 3, Waited: 3, Evictions: 1, Models: 3, Loaded: 2, Memory: 2 * weight, Held: 2 * weight, Room: 2 * weight}); c != want {
			t.Errorf("counts %+v, want %+v", c, want)
		}
		if !r.ModelReady("a", "") {
			t.Error("a model that left memory is not ready")
		}
	})
}

func TestAModelThatWasLoadedAMomentAgoStays(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 1, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		time.Sleep(4 * time.Second)
		_, err := request(t.Context(), r, "b")
		if text := refused(t, err, 6*time.Second); !strings.Contains(text, `"a"`) || !strings.Contains(text, `"b"`) {
			t.Errorf("the error does not name both models: %s", text)
		}
		time.Sleep(6 * time.Second)
		mustAsk(t, r, "b", time.Second)
	})
}

func TestAModelInUseStays(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		time.Sleep(time.Minute)
		eng.Takes = func(int) time.Duration { return time.Minute }
		done := make(chan error, 1)
		go func() {
			_, err := request(t.Context(), r, "a")
			done <- err
		}()
		synctest.Wait()
		_, err := request(t.Context(), r, "b")
		refused(t, err, time.Second)
		if err := <-done; err != nil {
			t.Error(err)
		}
		eng.Takes = nil
		time.Sleep(time.Second)
		mustAsk(t, r, "b", time.Second)
	})
}

func TestRequestsForLoadedModelsDoNotWaitForALoad(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 2, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		done := make(chan struct{})
		go func() {
			defer close(done)
			mustAsk(t, r, "b", time.Second)
		}()
		synctest.Wait()
		for range 10 {
			mustAsk(t, r, "a", 0)
		}
		<-done
	})
}

// A load needs twice the memory of its model for a while.
func TestInFullMemoryOneModelIsLoadedAfterTheOther(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b", "c", "d", "e", "f"), 4, nil, func(t *testing.T, r *running, _ *slow) {
		both := func(first, second string, last time.Duration) {
			t.Helper()
			done := make(chan time.Duration, 2)
			for _, name := range []string{first, second} {
				go func() {
					took, err := request(t.Context(), r, name)
					if err != nil {
						t.Error(err)
					}
					done <- took
				}()
				synctest.Wait()
			}
			if took := max(<-done, <-done); took != last {
				t.Errorf("%s and %s were loaded after %v, want %v", first, second, took, last)
			}
			time.Sleep(time.Minute)
		}
		both("a", "b", time.Second)
		both("c", "d", 2*time.Second)
		both("e", "f", 2*time.Second)
	})
}

// A model may call another one while it is loaded.
func TestALoadDoesNotWaitForAnotherForEver(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 2, nil, func(t *testing.T, r *running, eng *slow) {
		eng.during = func(model string) {
			if model == "a" {
				mustAsk(t, r, "b", openPatience+time.Second)
			}
		}
		mustAsk(t, r, "a", openPatience+2*time.Second)
	})
}

func TestWaitingRequestsAndLoadsAreBounded(t *testing.T) {
	names := []string{"a", "b", "c"}
	bound := func(o *setup) { o.Demand.Waiting, o.Demand.Queue = 2, 2 }
	demanding(t, newDisk(t).models(names...), 3, bound, func(t *testing.T, r *running, _ *slow) {
		errs := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := request(t.Context(), r, "a")
				errs <- err
			}()
		}
		refused(t, <-errs, time.Millisecond) // the load time is not known yet
		go func() { _, _ = request(t.Context(), r, "b") }()
		synctest.Wait()
		_, err := request(t.Context(), r, "c")
		if text := refused(t, err, time.Second); !strings.Contains(text, "2 other models are being loaded") {
			t.Error(text)
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestALoadThatFailsIsNotRepeatedForEveryRequest(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		eng.breaks(errors.New("no weights"))
		for range 10 {
			_, err := request(t.Context(), r, "a")
			if text := refused(t, err, 10*time.Second); !strings.Contains(text, "no weights") {
				t.Error(text)
			}
		}
		if eng.loadsOfA() != 1 || r.ModelReady("a", "") {
			t.Errorf("%d loads, want 1; ready %t", eng.loadsOfA(), r.ModelReady("a", ""))
		}
		eng.breaks(nil)
		time.Sleep(10 * time.Second)
		mustAsk(t, r, "a", time.Second)
	})
}

func TestAModelThatNeverFitsIsRefused(t *testing.T) {
	d := newDisk(t).models("a").write(map[string]string{"a/1/more": "w"})
	demanding(t, d, 1, nil, func(t *testing.T, r *running, eng *slow) {
		_, err := request(t.Context(), r, "a")
		if text := refused(t, err, 0); !strings.Contains(text, "--model-memory") || eng.loadsOfA() != 0 {
			t.Errorf("%q after %d loads", text, eng.loadsOfA())
		}
	})
}

func TestMeasuredMemoryCountsAndIsKept(t *testing.T) {
	store := calibrate.NewStore(filepath.Join(t.TempDir(), "kept"), slog.New(slog.DiscardHandler))
	d := newDisk(t).models("a", "b")
	var opened *slow
	twice := func(o *setup) { // each open model holds twice its files
		opened = o.Runners["echo"].Engine.(*slow)
		o.Demand.Store, o.Demand.Resident = store, func() int64 {
			opened.mu.Lock()
			defer opened.mu.Unlock()
			return int64(opened.open) * 2 * weight
		}
	}
	demanding(t, d, 3, twice, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		if c, _ := r.source.DemandCounts(); c.Held != 2*weight {
			t.Errorf("%d bytes are held, want %d", c.Held, 2*weight)
		}
		for _, m := range r.NodeModels() {
			if m.Name == "a" && m.Bytes != 2*weight {
				t.Errorf("the page of the node says %d bytes, want %d", m.Bytes, 2*weight)
			}
		}
		time.Sleep(10 * time.Second)
		mustAsk(t, r, "b", time.Second) // by its files it fits beside a; measured, it does not
		time.Sleep(time.Second)
		if c, _ := r.source.DemandCounts(); c.Loaded != 1 || c.Held != 2*weight {
			t.Errorf("counts %+v, want one model in memory", c)
		}
	})
	again := calibrate.NewStore(filepath.Join(filepath.Dir(t.TempDir()), "none"), slog.New(slog.DiscardHandler))
	r := New(nil, Options{Paths: []string{d.dir}})
	if found := r.describe(store, "a"); found.known == nil || *found.known != (calibrate.Footprint{Bytes: 2 * weight, Load: time.Second}) {
		t.Errorf("kept %+v", found.known)
	}
	if found := r.describe(again, "a"); found.known != nil {
		t.Errorf("another store has %+v", found.known)
	}
}

func TestAModelThatWasNeverMeasuredCountsAsOthersDo(t *testing.T) {
	d := newOnDemand(&Repository{}, DemandOptions{Memory: 1000})
	if got := d.estimateLocked(100); got != 100 {
		t.Errorf("%d before any model was measured, want the size of the files, 100", got)
	}
	d.measuredLocked(&demanded{onDisk: 100}, 210)
	d.measuredLocked(&demanded{onDisk: 300}, 590)
	again := &demanded{onDisk: 5, bytes: 7, measured: true}
	d.measuredLocked(again, 900) // its growth says nothing about the size of files
	if again.bytes != 900 {
		t.Errorf("a model that took 900 counts as %d", again.bytes)
	}
	for onDisk, want := range map[int64]int64{100: 200, 700: 1000, 1500: 1500} {
		if got := d.estimateLocked(onDisk); got != want {
			t.Errorf("%d bytes of files count as %d, want %d", onDisk, got, want)
		}
	}
	d.measuredLocked(&demanded{onDisk: 1}, 5000) // a few lines of Python
	if got := d.estimateLocked(100); got != mostPerByte*100 {
		t.Errorf("%d, want no more than %d", got, mostPerByte*100)
	}
}

func TestModelsLeaveWhenOthersGrow(t *testing.T) {
	times := int64(1) // what a model holds, in sizes of its files
	grows := func(o *setup) {
		opened := o.Runners["echo"].Engine.(*slow)
		o.Demand.Resident = func() int64 {
			opened.mu.Lock()
			defer opened.mu.Unlock()
			return 5*weight + int64(opened.open)*times*weight // the server holds something, too
		}
	}
	demanding(t, newDisk(t).models("a", "b", "c", "d"), 4, grows, func(t *testing.T, r *running, eng *slow) {
		loaded := func(room int64) int {
			time.Sleep(11 * time.Second) // none of them is young any more
			c, _ := r.source.DemandCounts()
			if c.Room != room {
				t.Errorf("%d bytes may be counted for models, want %d", c.Room, room)
			}
			return c.Loaded
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			mustAsk(t, r, name, time.Second)
		}
		if n := loaded(4 * weight); n != 4 {
			t.Fatalf("%d models are loaded, want 4", n)
		}
		eng.mu.Lock()
		times = 2
		eng.mu.Unlock()
		if n := loaded(2 * weight); n != 2 {
			t.Errorf("%d models of twice the size are loaded, want 2", n)
		}
		eng.mu.Lock()
		times = 1
		eng.mu.Unlock()
		time.Sleep(time.Minute) // until it is believed, but for a trace
		for _, name := range []string{"a", "b", "c"} {
			if _, err := request(t.Context(), r, name); err != nil {
				t.Error(err)
			}
		}
		if n := loaded(4 * weight * 31 / 32); n != 3 {
			t.Errorf("%d models are loaded when they hold less again, want 3", n)
		}
	})
}

// A request loads a model that fits by itself, however much models have grown. So it stays, and a cell
// must not take it away.
func TestALargeModelThatGrewStaysIfNoOtherIsLoaded(t *testing.T) {
	grows := func(o *setup) {
		opened := o.Runners["echo"].Engine.(*slow)
		o.Demand.Resident = func() int64 {
			opened.mu.Lock()
			defer opened.mu.Unlock()
			return int64(opened.open) * 2 * 3 * weight // twice its size
		}
	}
	d := newDisk(t).model("a", echoConfig).write(map[string]string{"a/1/weights": strings.Repeat("w", 3*weight)})
	demanding(t, d, 4, grows, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		time.Sleep(time.Minute)
		c, _ := r.source.DemandCounts()
		if c.Loaded != 1 || c.Evictions != 0 || c.Room < c.Held {
			t.Errorf("%+v: want the model in memory, and room for it", c)
		}
	})
}

// A cell adds up the bytes on the page of a node, and compares the sum with the memory there.
func TestThePageOfANodeHasTheBytesThatAreCounted(t *testing.T) {
	d := newDisk(t).models("a").model("b", echoConfig+" version_policy { all { } }").write(map[string]string{
		"b/1/weights": strings.Repeat("w", weight), "b/2/weights": strings.Repeat("w", weight),
	})
	demanding(t, d, 4, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		mustAsk(t, r, "b", 2*time.Second) // a version after the other
		bytes := int64(0)
		for _, m := range r.NodeModels() {
			bytes += m.Bytes
		}
		if c, _ := r.source.DemandCounts(); bytes != c.Held || c.Held != 3*weight {
			t.Errorf("%d bytes, want the %d that are counted, which are three weights", bytes, c.Held)
		}
	})
}

// An unload takes effect at any moment of a load: the request that waits fails with that cause, and
// later ones load the model again.
func TestAnUnloadThatMeetsALoadIsCarriedOut(t *testing.T) {
	for name, at := range map[string]struct {
		after time.Duration // the unload comes so long after the load has begun
		looks int64         // or while memory is looked at so often
		loads int           // of the engine, before the request afterwards
		less  bool          // or none, if the unload comes before the engine is called
	}{
		"while it is opened":      {after: time.Second / 2, loads: 1},
		"when it has been opened": {looks: 4, loads: 1}, // the watch looked, too
		"before it is loaded":     {looks: 2},
		"at the same moment":      {loads: 1, less: true},
	} {
		t.Run(name, func(t *testing.T) {
			var looks atomic.Int64
			look := func() {}
			watched := func(o *setup) {
				o.Demand.Resident = func() int64 {
					if looks.Add(1) == at.looks {
						look()
					}
					return 0
				}
			}
			demanding(t, newDisk(t).models("a"), 1, watched, func(t *testing.T, r *running, eng *slow) {
				var clients sync.WaitGroup
				unload := func() { clients.Go(func() { r.unloadA() }) }
				look = func() { unload(); time.Sleep(100 * time.Millisecond) }
				time.Sleep(time.Second / 2) // the watch looks in whole seconds
				clients.Go(func() {
					_, err := request(t.Context(), r, "a")
					if refused := infer.CodeOf(err) == infer.Unavailable && errors.Is(err, server.ErrUnloaded); !refused && (at.after > 0 || at.looks > 0) {
						t.Errorf("the request that waited: %v", err)
					}
				})
				if at.looks == 0 {
					time.Sleep(at.after)
					unload()
				}
				clients.Wait()
				time.Sleep(time.Minute)
				if n := eng.loadsOfA(); n != at.loads && (n > 0 || !at.less) {
					t.Errorf("the model was opened %d times, want %d", n, at.loads)
				}
				if _, err := request(t.Context(), r, "a"); err != nil {
					t.Errorf("a request afterwards: %v", err)
				}
			})
		})
	}
}

// The unload comes when the version serves, and the load does not know yet: the version closes for a
// minute, and meanwhile no request may load the model beside it, or find that it has no version.
func TestAnUnloadThatMeetsTheEndOfALoadKeepsRequestsOutUntilItHasLeft(t *testing.T) {
	const opened = 1500 * time.Millisecond // the watch looks at memory in whole seconds
	var look atomic.Pointer[func()]
	watched := func(o *setup) {
		o.Demand.Resident = func() int64 {
			if call := look.Load(); call != nil {
				(*call)()
			}
			return 0
		}
	}
	demanding(t, newDisk(t).models("a"), 1, watched, func(t *testing.T, r *running, eng *slow) {
		time.Sleep(opened - time.Second)
		eng.closing = time.Minute
		var clients sync.WaitGroup
		began := time.Now()
		meet := func() {
			if len(r.Versions("a")) == 0 {
				return // the load begins
			}
			look.Store(nil)
			for range 2 { // clients
				clients.Go(func() {
					r.unloadA()
					if took := time.Since(began); took != time.Second+time.Minute {
						t.Errorf("the unload returned after %v, want when the model was closed", took)
					}
				})
			}
			time.Sleep(100 * time.Millisecond)
		}
		look.Store(&meet)
		clients.Go(func() {
			_, err := request(t.Context(), r, "a")
			if took := time.Since(began); infer.CodeOf(err) != infer.Unavailable || !errors.Is(err, server.ErrUnloaded) || took > time.Second+200*time.Millisecond {
				t.Errorf("the request that waited failed after %v: %v", took, err)
			}
		})
		time.Sleep(30 * time.Second)
		if _, err := request(t.Context(), r, "a"); infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), "is being unloaded") {
			t.Errorf("a request while the model closes: %v", err)
		}
		clients.Wait()
		mustAsk(t, r, "a", time.Second)
		if c, _ := r.source.DemandCounts(); c.Loads != 2 || c.Evictions != 1 || c.Held != weight {
			t.Errorf("%d loads, %d evictions, %d bytes held, want 2, 1 and %d", c.Loads, c.Evictions, c.Held, weight)
		}
	})
}

// What left the table before closes in the background, and holds its memory until then.
func TestAnEvictionWaitsForWhatLeftTheTableBefore(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		eng.closing = time.Minute
		began := time.Now()
		r.Server.Unload("a")
		r.Evict("a")
		if took := time.Since(began); took != time.Minute {
			t.Errorf("the eviction returned after %v, want %v", took, time.Minute)
		}
	})
}

// While a model waits for the memory of another one, an unload can only take note that it must leave.
func TestRequestsDoNotWaitForALoadThatWasUnloaded(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "b", time.Second)
		time.Sleep(time.Minute)
		eng.closing = time.Minute
		var clients sync.WaitGroup
		clients.Go(func() {
			if took, err := request(t.Context(), r, "a"); took != time.Minute || !errors.Is(err, server.ErrUnloaded) {
				t.Errorf("the request that waited failed after %v: %v", took, err)
			}
		})
		time.Sleep(time.Second)
		clients.Go(func() { r.unloadA() })
		time.Sleep(time.Second)
		if took, err := request(t.Context(), r, "a"); took != 0 || infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), "is being unloaded") {
			t.Errorf("a request after the unload got an answer after %v: %v", took, err)
		}
		clients.Wait()
		if c, _ := r.source.DemandCounts(); c.Loads != 1 || c.FailedLoads != 0 {
			t.Errorf("%d loads and %d failed ones, want 1 and none: the load that was unloaded has not failed", c.Loads, c.FailedLoads)
		}
		mustAsk(t, r, "a", time.Second)
	})
}

// b still has to leave while a closes, and a request for it would wait for c, for which it leaves.
func TestModelsThatLeaveForAnotherDoNotWaitForIt(t *testing.T) {
	d := newDisk(t).models("a", "b", "c").write(map[string]string{"c/1/weights": strings.Repeat("w", 2*weight)})
	demanding(t, d, 2, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		mustAsk(t, r, "b", time.Second)
		time.Sleep(time.Minute)
		eng.closing = 5 * time.Second
		eng.Takes = func(int) time.Duration {
			short, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_ = r.source.demand.Await(short, "c", false)
			return 0
		}
		var clients sync.WaitGroup
		clients.Go(func() { mustAsk(t, r, "c", 6*time.Second) })
		time.Sleep(time.Second)
		for _, name := range []string{"a", "b"} {
			took, err := request(t.Context(), r, name)
			if text := refused(t, err, time.Second); took != 0 || !strings.Contains(text, "is being unloaded") {
				t.Errorf("a request for %s, which leaves, got %q after %v", name, text, took)
			}
		}
		clients.Wait()
	})
}

func TestAModelThatIsUnloadedDoesNotWaitForOneThatNeedsItsMemory(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		var called error
		eng.Takes = func(int) time.Duration {
			time.Sleep(time.Second)
			short, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var resp infer.Response
			called = r.Call(short, &infer.Request{Model: "b"}, &resp)
			return 0
		}
		var clients sync.WaitGroup
		clients.Go(func() { mustAsk(t, r, "a", time.Second) })
		time.Sleep(time.Second / 2)
		if err := r.Unload("a"); err != nil {
			t.Fatal(err)
		}
		clients.Wait()
		if text := refused(t, called, time.Second); !strings.Contains(text, "the memory of the model that calls it") {
			t.Errorf("the call got %q", text)
		}
		eng.Takes = nil
		time.Sleep(time.Second)
		mustAsk(t, r, "b", 0) // the call began the load
	})
}

func TestAModelMayUnloadItself(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		eng.closing = time.Second
		eng.Takes = func(int) time.Duration {
			short, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- r.source.UnloadModel(short, "a") }()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-short.Done():
			}
			return 0
		}
		mustAsk(t, r, "a", 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if c, _ := r.source.DemandCounts(); c.Loaded != 0 || c.Held != 0 || c.Evictions != 1 {
			t.Errorf("%d models are loaded and hold %d bytes, and %d left, want none, none and 1", c.Loaded, c.Held, c.Evictions)
		}
	})
}

func TestAModelMayUnloadAndLoadAnother(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 2, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		mustAsk(t, r, "b", time.Second)
		eng.closing = time.Second
		if err := errors.Join(r.source.UnloadModel(t.Context(), "b"), r.source.LoadModel(t.Context(), "b", "", nil)); err != nil {
			t.Error(err)
		}
		mustAsk(t, r, "b", 0)
	})
}

func TestAModelThatLeavesHoldsUpNoCallForWhichThereIsMemory(t *testing.T) {
	demanding(t, newDisk(t).models("a", "b"), 2, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		eng.Takes = func(int) time.Duration { return time.Minute }
		var clients sync.WaitGroup
		clients.Go(func() { mustAsk(t, r, "a", time.Minute) })
		time.Sleep(time.Second)
		clients.Go(func() { r.unloadA() })
		time.Sleep(time.Second)
		if err := r.source.demand.Await(t.Context(), "b", true); err != nil {
			t.Error(err)
		}
		clients.Wait()
	})
}

// Its old version would hold up the load of the model that needs the memory.
func TestAModelWhoseOldVersionStillRunsIsInUse(t *testing.T) {
	d := newDisk(t).models("a", "b", "c")
	roomForTwo := func(o *setup) { o.Demand.Memory = 2 * weight }
	demanding(t, d, 4, roomForTwo, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "b", time.Second)
		mustAsk(t, r, "a", time.Second)
		for range 10 {
			mustAsk(t, r, "a", 0)
		}
		eng.closing = time.Hour
		d.write(map[string]string{"b/1/weights": strings.Repeat("v", weight)})
		if err := r.Load(t.Context(), "b", override{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		var client sync.WaitGroup
		client.Go(func() { mustAsk(t, r, "c", time.Hour+time.Second) })
		time.Sleep(time.Minute)
		if a, b := len(r.Versions("a")), len(r.Versions("b")); a != 0 || b != 1 {
			t.Errorf("%d versions of a and %d of b serve, want none and 1", a, b)
		}
		client.Wait()
	})
}

func TestAModelWhoseFilesAreGoneIsNotAvailable(t *testing.T) {
	d := newDisk(t).models("a", "b")
	demanding(t, d, 2, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "b", time.Second)
		for _, name := range []string{"a", "b"} {
			if err := os.RemoveAll(filepath.Join(d.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if c, _ := r.source.DemandCounts(); c.Models != 0 || r.source.demand.Available("a") || r.source.demand.Available("b") {
			t.Errorf("%d models are known whose files are gone", c.Models)
		}
	})
}

func TestNamesThatClientsMakeUpAreNotKeptWhileTheRepositoryCannotBeRead(t *testing.T) {
	d := newDisk(t).models("a")
	demanding(t, d, 2, nil, func(t *testing.T, r *running, _ *slow) {
		time.Sleep(2 * describedFor)
		if err := errors.Join(os.Rename(d.dir, d.dir+".away"), os.Symlink(d.dir, d.dir)); err != nil { // it leads to itself
			t.Fatal(err)
		}
		for _, name := range []string{"b", "c", "d", "a"} {
			_, err := request(t.Context(), r, name)
			refused(t, err, minBroken)
		}
		if c, _ := r.source.DemandCounts(); c.Models != 1 || r.source.demand.Available("a") {
			t.Errorf("%d models are known, expected 1, which is not available: %v", c.Models, r.source.demand.Available("a"))
		}
		if err := errors.Join(os.Remove(d.dir), os.Rename(d.dir+".away", d.dir)); err != nil {
			t.Fatal(err)
		}
		mustAsk(t, r, "a", time.Second)
	})
}

// A reload must not make a model look worthless: it would leave for any other.
func TestAModelThatIsLoadedAgainKeepsItsWorth(t *testing.T) {
	d := newDisk(t).models("a")
	demanding(t, d, 2, nil, func(t *testing.T, r *running, eng *slow) {
		mustAsk(t, r, "a", time.Second)
		d.write(map[string]string{"a/1/weights": strings.Repeat("x", weight)})
		time.Sleep(30 * time.Second)
		d := r.source.demand
		d.mu.Lock()
		defer d.mu.Unlock()
		if m := d.models["a"]; eng.loadsOfA() != 2 || m.load != time.Second || time.Since(m.loaded) > 30*time.Second {
			t.Errorf("after %d loads: the last took %v, %v ago", eng.loadsOfA(), m.load, time.Since(m.loaded))
		}
	})
}

// A model that serves without being counted would never leave memory.
func TestAModelThatLeavesBeforeItIsLoadedAgainIsNotLeftInMemory(t *testing.T) {
	check := func(t *testing.T, r *running) {
		t.Helper()
		if c, _ := r.source.DemandCounts(); c.Loaded != 0 || c.Held != 0 || len(r.Versions("a")) != 0 {
			t.Errorf("%d models are loaded and %d bytes held, and versions %v serve", c.Loaded, c.Held, serving(r, "a"))
		}
		mustAsk(t, r, "a", time.Second)
	}
	t.Run("it has left", func(t *testing.T) {
		demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, _ *slow) {
			mustAsk(t, r, "a", time.Second)
			r.unloadA()
			if err := r.source.reload("a", override{}, false); err != nil {
				t.Fatal(err)
			}
			check(t, r)
		})
	})
	t.Run("it is leaving", func(t *testing.T) {
		demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, _ *slow) {
			mustAsk(t, r, "a", time.Second)
			d := r.source.demand
			d.mu.Lock()
			d.markLocked([]string{"a"})
			d.mu.Unlock()
			r.Evict("a")
			var client sync.WaitGroup
			client.Go(func() {
				if err := r.source.reload("a", override{}, false); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(2 * time.Second) // it is loaded by then
			synctest.Wait()
			d.mu.Lock() // now it has left, as at the end of evict
			d.models["a"].state = cold
			d.leaving--
			d.releaseLocked(weight)
			d.mu.Unlock()
			client.Wait()
			check(t, r)
		})
	})
}

func TestAWrongMeasurementIsCorrected(t *testing.T) {
	d := onDemand{opts: DemandOptions{Memory: 1000}}
	m := &demanded{onDisk: 100}
	d.measuredLocked(m, 5000) // others grew meanwhile
	if m.bytes != 1000 {
		t.Errorf("%d bytes, want no more than all models may hold", m.bytes)
	}
	for range 20 {
		d.measuredLocked(m, 200)
	}
	if m.bytes < 200 || m.bytes > 210 {
		t.Errorf("%d bytes, want 200 in the end", m.bytes)
	}
	if d.measuredLocked(m, 300); m.bytes != 300 {
		t.Errorf("%d bytes, want 300 at once", m.bytes)
	}
}

func TestTheSizeOfAModelIsThatOfWhatLinksLeadTo(t *testing.T) {
	d := newDisk(t).write(map[string]string{"files/model": strings.Repeat("w", weight), "m/": ""})
	for from, to := range map[string]string{"m/1": "../files", "file": "files/model"} {
		if err := os.Symlink(to, filepath.Join(d.dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"files", "m/1", "file"} {
		if got := sizeOf(filepath.Join(d.dir, path)); got != weight {
			t.Errorf("%s has %d bytes, want %d", path, got, weight)
		}
	}
}

func TestCountersSurviveEviction(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		mustAsk(t, r, "a", 0)
		if err := r.Unload("a"); err != nil {
			t.Fatal(err)
		}
		mustAsk(t, r, "a", time.Second)
		v, err := r.Find("a", "")
		if err != nil || v.Stats.Requests() != 3 {
			t.Errorf("%v: %d requests are counted, want 3", err, v.Stats.Requests())
		}
	})
}

func TestChangedFilesOfALoadedModelAreFollowed(t *testing.T) {
	d := newDisk(t).models("a")
	demanding(t, d, 2, nil, func(t *testing.T, r *running, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		d.write(map[string]string{"a/2/weights": strings.Repeat("w", weight/2)})
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if got := serving(r, "a"); len(got) != 1 || got[0] != 2 {
			t.Errorf("versions %v serve, want the new one", got)
		}
		if c, _ := r.source.DemandCounts(); c.Held != weight/2 {
			t.Errorf("%d bytes are held, want those of the new version", c.Held)
		}
		d.models("b")
		mustAsk(t, r, "b", time.Second) // it was not there at the start
		d.remove("a")
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if _, err := request(t.Context(), r, "a"); infer.CodeOf(err) != infer.NotFound {
			t.Errorf("a model whose files are gone: %v", err)
		}
	})
}

func TestBeforeTheModelsAreListedTheAnswerIsNotThatThereIsNone(t *testing.T) {
	for _, mode := range []Mode{None, Explicit, Demand} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			p := pacer.New()
			defer p.Close()
			r := setup{
				Paths: []string{newDisk(t).dir}, Mode: mode, Demand: DemandOptions{Memory: 1}, Pacer: p, Log: slog.New(slog.DiscardHandler),
				Runners: map[string]servable.Runner{"echo": {Engine: &enginetest.Echo{}}},
			}.open()
			_, err := request(t.Context(), r, "a")
			refused(t, err, time.Second)
			_ = r.Start(t.Context())
			if _, err := request(t.Context(), r, "a"); infer.CodeOf(err) != infer.NotFound {
				t.Errorf("after the start: %v", err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClosingEndsLoadsThatRequestsWaitFor(t *testing.T) {
	demanding(t, newDisk(t).models("a"), 1, nil, func(t *testing.T, r *running, _ *slow) {
		done := make(chan error, 1)
		go func() {
			_, err := request(t.Context(), r, "a")
			done <- err
		}()
		synctest.Wait()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("the request got %v", err)
		}
		if _, err := request(t.Context(), r, "a"); infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("a request afterwards got %v", err)
		}
	})
}
