package sched

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

const ms = time.Millisecond

// constant is the time of a model that takes as long for any batch.
func constant(d time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return d }
}

// bench is a scheduler in fake time, with the calls that were made of it.
type bench struct {
	*Scheduler
	t     *testing.T
	calls sync.WaitGroup
	began time.Time

	mu    sync.Mutex // guards the following
	order []string   // in which calls returned
}

func start(t *testing.T, eng *enginetest.Echo, instances int, opts Options) *bench {
	t.Helper()
	p := pacer.NewPortable()
	opts.Pacer = p
	b := &bench{Scheduler: New(open(t, eng, instances), opts), t: t, began: time.Now()}
	t.Cleanup(p.Close)
	return b
}

func open(t testing.TB, eng *enginetest.Echo, n int) []engine.Instance {
	t.Helper()
	var instances []engine.Instance
	for range n {
		inst, err := eng.Instance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		instances = append(instances, inst)
	}
	return instances
}

// request returns a request with the given number of rows, each of which repeats the name.
func request(name string, rows int) *infer.Request {
	memory := buf.Get(4 * rows)
	for i := range rows {
		copy(memory.B[4*i:], fmt.Sprintf("%-4s", name))
	}
	in := tensor.Tensor{Name: "x", Type: tensor.Uint8, Shape: []int64{int64(rows), 4}, Data: memory.B}
	return &infer.Request{ID: name, Rows: rows, Inputs: []tensor.Tensor{in}, Memory: memory}
}

// submit makes a call at a time, and checks how and when it returns.
func (b *bench) submit(at time.Duration, req *infer.Request, want time.Duration, code ...infer.Code) {
	ctx, cancel := context.WithCancel(context.Background())
	b.submitContext(ctx, at, req, want, code...)
	b.t.Cleanup(cancel)
}

func (b *bench) submitContext(ctx context.Context, at time.Duration, req *infer.Request, want time.Duration, code ...infer.Code) {
	b.calls.Go(func() {
		defer req.Memory.Release()
		time.Sleep(at - time.Since(b.began))
		var resp infer.Response
		err := b.Submit(ctx, req, &resp)
		if took := time.Since(b.began); took != want {
			b.t.Errorf("%s returned after %v, want %v", req.ID, took, want)
		}
		b.mu.Lock()
		b.order = append(b.order, req.ID)
		b.mu.Unlock()
		switch {
		case err == nil && len(code) > 0:
			b.t.Errorf("%s was answered, want %v", req.ID, code[0])
		case err != nil && (len(code) == 0 || infer.CodeOf(err) != code[0]):
			b.t.Errorf("%s failed with %v (%v), want %v", req.ID, infer.CodeOf(err), err, code)
		}
		if err == nil {
			if !bytes.Equal(resp.Outputs[0].Data, req.Inputs[0].Data) || !slices.Equal(resp.Outputs[0].Shape, req.Inputs[0].Shape) {
				b.t.Errorf("%s got %v %q, want its own rows", req.ID, resp.Outputs[0].Shape, resp.Outputs[0].Data)
			}
			resp.Release()
		}
	})
}

// finish waits for all calls and closes the scheduler.
func (b *bench) finish() {
	b.calls.Wait()
	if err := b.Close(); err != nil {
		b.t.Errorf("close: %v", err)
	}
}

func TestRequestsThatWaitTogetherRunTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, request("a", 1), 10*ms)
		b.submit(1*ms, request("b", 2), 20*ms)
		b.submit(2*ms, request("c", 3), 20*ms)
		b.finish()
		if got, want := eng.Batches(), []int{1, 5}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}

// A delegate is an instance that records the callers of its batches.
type delegate struct {
	engine.Instance
	callers []string
}

func (d *delegate) RunFor(ctx context.Context, caller *access.Caller, in []tensor.Tensor, out *engine.Outputs) error {
	d.callers = append(d.callers, caller.Name())
	return d.Run(ctx, in, out)
}

func TestAModelThatCallsOthersDoesSoForAllCallersOfItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		model := &delegate{Instance: open(t, &enginetest.Echo{Takes: constant(10 * ms)}, 1)[0]}
		b := &bench{
			Scheduler: New([]engine.Instance{model}, Options{Pacer: p, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}}),
			t:         t, began: time.Now(),
		}
		of := func(name string) *infer.Request {
			req := request(name, 1)
			if name != "none" {
				req.Caller = &access.Caller{Principals: []*access.Principal{{Name: name}}}
			}
			return req
		}
		b.submit(0, of("ann"), 10*ms)
		b.submit(1*ms, of("ann"), 20*ms)
		b.submit(2*ms, of("bob"), 20*ms)
		b.submit(11*ms, of("ann"), 30*ms)
		b.submit(12*ms, of("none"), 30*ms)
		b.finish()
		if want := []string{"ann", "ann, bob", "anonymous"}; !slices.Equal(model.callers, want) {
			t.Errorf("batches were run for %q, want %q", model.callers, want)
		}
	})
}

func TestTheDelayIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8, MaxDelay: 5 * ms}}})
		b.submit(0, request("a", 1), 6*ms)
		b.submit(3*ms, request("b", 1), 6*ms)
		b.submit(20*ms, request("full", 8), 21*ms)
		b.finish()
	})
}

func TestAWaitingCallLeavesWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(100 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, request("z", 8), 100*ms)
		ctx, cancel := context.WithCancel(t.Context())
		b.submitContext(ctx, 10*ms, request("a", 1), 30*ms, infer.Cancelled)
		b.submit(20*ms, request("b", 1), 200*ms)
		time.Sleep(30 * ms)
		cancel()
		b.finish()
		if got, want := eng.Batches(), []int{8, 1}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v: what its client left must not run", got, want)
		}
	})
}

func TestACallIsAnsweredAtItsDeadlineWhileItsBatchRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(100 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		b.submit(0, request("z", 8), 100*ms)
		b.submitContext(ctx, 1*ms, request("waits", 1), 50*ms, infer.Deadline)
		late, cancelLate := context.WithTimeout(t.Context(), 150*ms)
		defer cancelLate()
		b.submitContext(late, 2*ms, request("runs", 1), 150*ms, infer.Deadline)
		b.submit(3*ms, request("stays", 1), 200*ms)
		b.finish()
	})
}

func TestABatchThatEverybodyLeftIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(time.Hour)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		ctx, cancel := context.WithCancel(t.Context())
		b.submitContext(ctx, 0, request("a", 1), 10*ms, infer.Cancelled)
		time.Sleep(10 * ms)
		cancel()
		b.calls.Wait()
		eng.Takes = constant(ms)
		synctest.Wait()
		b.submit(20*ms, request("next", 1), 21*ms)
		b.finish()
	})
}

func TestOutcomesKeepTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: func(rows int) time.Duration { return time.Duration(rows) * 10 * ms }}
		b := start(t, eng, 2, Options{Batching: batching.Config{MaxRows: 8, KeepOrder: true, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, request("slow", 8), 80*ms)
		b.submit(1*ms, request("fast", 1), 80*ms)
		b.submit(90*ms, request("later", 1), 100*ms)
		b.finish()
	})
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(100 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{
			MaxRows: 8, Policy: batching.Triton{MaxRows: 8}, Levels: []batching.Level{{MaxQueue: 1}}, DefaultLevel: 1,
		}})
		b.submit(0, request("z", 8), 100*ms)
		b.submit(1*ms, request("a", 1), 200*ms)
		b.submit(2*ms, request("b", 1), 2*ms, infer.Overloaded)
		b.finish()
	})
}

func TestWhoWouldBeLateIsToldAtOnceAndWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(100 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}, Objective: 150 * ms}})
		for i := range 5 { // until it is known how long batches take
			b.submit(time.Duration(i)*100*ms, request("warm", 8), time.Duration(i+1)*100*ms)
			time.Sleep(100 * ms)
		}
		b.submit(0, request("runs", 8), 600*ms)
		time.Sleep(10 * ms)
		// It would be answered after 90 ms and 104 ms, and has 142.5 ms.
		req := request("late", 1)
		defer req.Memory.Release()
		err := b.Submit(t.Context(), req, &infer.Response{})
		e, ok := errors.AsType[*infer.Error](err)
		if !ok || e.Code != infer.Late || e.RetryAfter != 51500*time.Microsecond || time.Since(b.began) != 510*ms {
			t.Errorf("%v after %v: come back in %v", err, time.Since(b.began), e.RetryAfter)
		}
		time.Sleep(e.RetryAfter)
		b.submit(0, request("again", 1), 700*ms)
		b.calls.Wait()
		b.finish()
	})
}

func TestCloseLetsThoseRunThatAreHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(100 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8, MaxDelay: time.Hour}}})
		b.submit(0, request("full", 8), 100*ms)
		b.submit(1*ms, request("waits", 1), 200*ms)
		b.submit(60*ms, request("late", 1), 60*ms, infer.Unavailable)
		time.Sleep(50 * ms)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(b.began); took != 200*ms {
			t.Errorf("closed after %v, want 200ms, when the last batch ended", took)
		}
		b.calls.Wait()
	})
}

func TestAFailureReachesEveryMemberOfItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("out of order")
		for name, fails := range map[string]func([]tensor.Tensor) error{
			"error": func([]tensor.Tensor) error { return broken },
			"panic": func([]tensor.Tensor) error { panic(broken) },
		} {
			eng := &enginetest.Echo{Takes: constant(ms), Fails: fails}
			b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
			b.submit(0, request(name, 8), 1*ms, infer.Internal)
			b.submit(ms/10, request(name+"2", 1), 2*ms, infer.Internal)
			b.submit(ms/5, request(name+"3", 1), 2*ms, infer.Internal)
			b.calls.Wait()
			b.finish()
		}
	})
}

// A closing instance counts how often it is closed.
type closing struct {
	engine.Instance
	closed *int
}

func (c closing) Close() error {
	*c.closed++
	return c.Instance.Close()
}

func TestAnInstanceIsReplacedAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defect := true
		eng := &enginetest.Echo{Fails: func([]tensor.Tensor) error {
			if defect {
				panic("a defect")
			}
			return nil
		}}
		inst, _ := eng.Instance(t.Context())
		closed, opened, before := 0, 0, panics.Count()
		p := pacer.NewPortable()
		t.Cleanup(p.Close)
		s := New([]engine.Instance{closing{inst, &closed}}, Options{
			Batching: batching.Config{MaxRows: 8}, Pacer: p, Log: slog.New(slog.DiscardHandler),
			NewInstance: func(ctx context.Context) (engine.Instance, error) {
				opened++
				defect = false
				return eng.Instance(ctx)
			},
		})
		for i, want := range []bool{false, true, true} {
			req, resp := request("a", 1), new(infer.Response)
			if err := s.Submit(t.Context(), req, resp); (err == nil) != want {
				t.Errorf("request %d: %v", i, err)
			} else if err == nil {
				resp.Release()
			}
			req.Memory.Release()
			synctest.Wait()
		}
		if opened != 1 || closed != 1 || panics.Count() != before+1 {
			t.Errorf("%d instances opened, %d closed after %d panics, want one of each", opened, closed, panics.Count()-before)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAPanicIsForTheLogAndNotForTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		eng := &enginetest.Echo{Fails: func([]tensor.Tensor) error { panic("a secret of the engine") }}
		s := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		req := request("a", 1)
		defer req.Memory.Release()
		err := s.Submit(t.Context(), req, new(infer.Response))
		if infer.CodeOf(err) != infer.Internal || !strings.HasPrefix(err.Error(), "the engine panicked") || strings.Contains(err.Error(), "secret") {
			t.Errorf("the client got: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, want := range []string{"a secret of the engine", "worker.go", "instance=1"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q: %s", want, &log)
			}
		}
	})
}

func TestModelsThatTakeTurnsShareADevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		device := NewDevice(1)
		cfg := batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}, TakeTurns: true}
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		one := start(t, eng, 2, Options{Batching: cfg, Device: device})
		two := start(t, eng, 2, Options{Batching: cfg, Device: device})
		one.submit(0, request("1a", 8), 10*ms)
		two.submit(1*ms, request("2a", 8), 20*ms)
		one.submit(2*ms, request("1b", 8), 30*ms)
		two.submit(3*ms, request("2b", 8), 40*ms)
		one.finish()
		two.finish()
	})
}

// TestATurnGoesToTheRequestThatIsDueFirst has models whose schedulers began at different times.
func TestATurnGoesToTheRequestThatIsDueFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		device := NewDevice(1)
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		open := func(objective time.Duration) *bench {
			return start(t, eng, 1, Options{Device: device, Batching: batching.Config{
				MaxRows: 8, Policy: batching.Triton{MaxRows: 8}, TakeTurns: true, Predictor: &batching.Learner{}, Objective: objective,
			}})
		}
		busy, patient := open(200*ms), open(200*ms)
		time.Sleep(50 * ms)
		hasty, later := open(100*ms), open(200*ms)
		busy.submit(100*ms, request("busy", 8), 110*ms)
		patient.submit(101*ms, request("patient", 8), 130*ms)
		hasty.submit(52*ms, request("hasty", 8), 70*ms) // 102 ms after the first two began
		later.submit(53*ms, request("later", 8), 90*ms)
		for _, b := range []*bench{busy, patient, hasty, later} {
			b.finish()
		}
	})
}

// TestManyCallersWhoComeAndGo looks for races, lost calls and leaked memory; what
// it asks of the outcome is only that everybody gets one of their own.
func TestManyCallersWhoComeAndGo(t *testing.T) {
	p := pacer.New()
	defer p.Close()
	eng := &enginetest.Echo{Takes: func(rows int) time.Duration { return time.Duration(rows) * 10 * time.Microsecond }}
	s := New(open(t, eng, 3), Options{Pacer: p, Batching: batching.Config{
		MaxRows: 16, Policy: batching.Triton{MaxRows: 16, MaxDelay: 50 * time.Microsecond},
		Levels: []batching.Level{{Timeout: 2 * ms}, {Timeout: ms, DelayOnTimeout: true, MaxQueue: 20}}, DefaultLevel: 2,
	}})
	var callers sync.WaitGroup
	var answered atomic.Int64
	for n := range 32 {
		callers.Go(func() {
			for i := range 100 {
				req := request(fmt.Sprint(n, i), 1+(n+i)%4)
				req.Priority = uint64(i % 3)
				ctx, cancel := context.WithCancel(context.Background())
				if i%3 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*10*time.Microsecond)
				}
				var resp infer.Response
				if s.Submit(ctx, req, &resp) == nil {
					if !bytes.Equal(resp.Outputs[0].Data, req.Inputs[0].Data) {
						t.Errorf("%s got somebody else's rows", req.ID)
					}
					resp.Release()
					answered.Add(1)
				}
				cancel()
				req.Memory.Release()
			}
		})
	}
	callers.Wait()
	if answered.Load() < 100 {
		t.Errorf("%d of 3200 requests were answered and compared", answered.Load())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
