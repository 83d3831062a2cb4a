package sched

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// A mortal takes requests one by one, 1ms for a batch. A request that begins with
// "bad" gets an error of its own, one with "all" fails the batch, one with "die" is
// the death of it, and an attempt to start it takes 5ms.
type mortal struct {
	mu       sync.Mutex // guards the following
	died     chan struct{}
	batches  []string
	failures int  // attempts to start it that still fail
	failing  bool // the last one did
}

func (m *mortal) Run(context.Context, []tensor.Tensor, *engine.Outputs) error { panic("joined") }
func (m *mortal) Close() error                                                { return nil }

func (m *mortal) RunEach(_ context.Context, calls []engine.Call) error {
	select {
	case <-m.Died():
		return engine.ErrDied
	default:
	}
	time.Sleep(ms)
	var names []string
	for i := range calls {
		names = append(names, calls[i].Request.ID)
	}
	m.mu.Lock()
	m.batches = append(m.batches, strings.Join(names, " "))
	m.mu.Unlock()
	for i := range calls {
		c := &calls[i]
		switch {
		case strings.HasPrefix(c.Request.ID, "die"):
			m.kill()
			return infer.Errorf(infer.Unavailable, "it is gone: %w", engine.ErrDied)
		case strings.HasPrefix(c.Request.ID, "all"):
			return errors.New("an exception")
		case strings.HasPrefix(c.Request.ID, "bad"):
			c.Err = infer.Errorf(infer.Invalid, "bad")
			continue
		}
	}
	for i := range calls {
		c := &calls[i]
		if c.Err == nil {
			x := c.Request.Inputs[0]
			c.Outputs.Memory = buf.Get(len(x.Data))
			copy(c.Outputs.Memory.B, x.Data)
			x.Data = c.Outputs.Memory.B
			c.Outputs.Tensors = append(c.Outputs.Tensors, x)
		}
	}
	return nil
}

func (m *mortal) Died() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.died
}

func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.died)
}

func (m *mortal) Restart(ctx context.Context) error {
	timer := time.NewTimer(5 * ms)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing = m.failures > 0; m.failing {
		m.failures--
		return errNotStarted
	}
	m.died = make(chan struct{})
	return nil
}

var errNotStarted = infer.Errorf(infer.Unavailable, "it cannot be started")

func (m *mortal) Failing() *infer.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing {
		return errNotStarted
	}
	return nil
}

func (m *mortal) ran() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.batches)
}

func startMortal(t *testing.T, opts Options) (*bench, *mortal) {
	t.Helper()
	m := &mortal{died: make(chan struct{})}
	opts.Pacer = pacer.NewPortable()
	opts.Batching = batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}
	t.Cleanup(opts.Pacer.Close)
	return &bench{Scheduler: New([]engine.Instance{m}, opts), t: t, began: time.Now()}, m
}

func (b *bench) end() {
	b.calls.Wait()
	if err := b.Close(); err != nil {
		b.t.Error(err)
	}
}

func TestRequestsThatAreTakenOneByOneFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{})
		b.submit(0, request("z", 8), ms)
		for i, name := range []string{"a", "bad", "c"} {
			at := time.Duration(i+1) * 100 * time.Microsecond
			if name == "bad" {
				b.submit(at, request(name, 1), 2*ms, infer.Invalid)
			} else {
				b.submit(at, request(name, i+1), 2*ms)
			}
		}
		b.end()
		if want := []string{"z", "a bad c"}; !slices.Equal(m.ran(), want) {
			t.Errorf("batches %q, want %q", m.ran(), want)
		}
	})
}

func TestABatchThatIsTakenOneByOneIsRunInPartsIfItsModelAllows(t *testing.T) {
	for _, apart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, m := startMortal(t, Options{Bisect: apart})
			b.submit(0, request("z", 8), ms)
			want, ends, code := []string{"z", "a all"}, 2*ms, []infer.Code{infer.Internal}
			if apart {
				want, ends, code = append(want, "a", "all"), 4*ms, nil
			}
			b.submit(100*time.Microsecond, request("a", 1), ends, code...)
			b.submit(200*time.Microsecond, request("all", 1), ends, infer.Internal)
			b.end()
			if !slices.Equal(m.ran(), want) {
				t.Errorf("batches %q, want %q", m.ran(), want)
			}
		})
	}
}

func TestAWarmUpFailsWithTheErrorOfItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := startMortal(t, Options{})
		req := request("bad", 1)
		if err := b.WarmUp(t.Context(), req, 2); infer.CodeOf(err) != infer.Invalid || err == nil {
			t.Errorf("the warm-up returned %v, want the error of the model", err)
		}
		req.Memory.Release()
		b.end()
	})
}

func TestABrokenInstanceThatWasRemovedDoesNotFailRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &mortal{died: make(chan struct{})}, &mortal{died: make(chan struct{}), failures: 100}
		p := pacer.NewPortable()
		t.Cleanup(p.Close)
		b := &bench{t: t, began: time.Now(), Scheduler: New([]engine.Instance{first, second}, Options{
			Pacer: p, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}},
		})}
		second.kill()
		time.Sleep(20 * ms) // it cannot be started
		b.remove()
		first.kill()
		synctest.Wait()
		b.began = time.Now()
		b.submit(0, request("a", 1), 6*ms) // it is back after 5 ms
		b.end()
	})
}

func TestWhileAnInstanceIsDeadRequestsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := startMortal(t, Options{})
		b.submit(0, request("die", 1), ms, infer.Unavailable)
		b.submit(2*ms, request("a", 1), 7*ms)
		b.submit(3*ms, request("b", 1), 7*ms)
		for _, tt := range []struct {
			at   time.Duration
			want bool
		}{{0, true}, {2 * ms, false}, {5 * ms, false}, {8 * ms, true}} {
			time.Sleep(tt.at - time.Since(b.began))
			synctest.Wait()
			if got := b.Ready(); got != tt.want {
				t.Errorf("after %v it is ready: %v", tt.at, got)
			}
		}
		b.end()
	})
}

func TestAnInstanceThatDiesIdleIsRevivedBeforeItIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{})
		time.Sleep(10 * ms)
		m.kill()
		time.Sleep(ms)
		if b.Ready() {
			t.Error("ready with nobody there")
		}
		time.Sleep(4 * ms)
		b.submit(15*ms, request("a", 1), 16*ms)
		b.end()
	})
}

func TestEveryAttemptToRestartIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := stats.New(8)
		b, m := startMortal(t, Options{Stats: counters})
		m.failures = 2
		time.Sleep(10 * ms)
		if got := counters.Snapshot().Restarts; got != 0 {
			t.Errorf("%d restarts of an instance that is alive", got)
		}
		m.kill()
		time.Sleep(16 * ms) // the third attempt has just ended
		b.submit(26*ms, request("a", 1), 27*ms)
		b.end()
		if got := counters.Snapshot().Restarts; got != 3 {
			t.Errorf("%d restarts, want 3: two that fail, and one", got)
		}
	})
}

func TestABatchIsRunOnceMoreIfItsModelAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{RetryDied: true})
		b.submit(0, request("die", 1), 7*ms, infer.Unavailable) // dies, is back after 5ms, dies again
		b.end()
		if want := []string{"die", "die"}; !slices.Equal(m.ran(), want) {
			t.Errorf("batches %q, want %q", m.ran(), want)
		}
	})
}

func TestClosingDoesNotWaitForTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := startMortal(t, Options{})
		b.submit(0, request("die", 1), ms, infer.Unavailable)
		b.submit(2*ms, request("a", 1), 3*ms, infer.Internal) // the dead instance fails it
		time.Sleep(3 * ms)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		b.calls.Wait()
		if took := time.Since(b.began); took != 3*ms {
			t.Errorf("closed after %v", took)
		}
	})
}

func TestInstancesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		s := New(nil, Options{Pacer: p, Batching: batching.Config{Policy: &batching.Collect{Size: 2}, MaxRows: 2}})
		first, second := &mortal{died: make(chan struct{})}, &mortal{died: make(chan struct{})}
		if s.Alive() != 0 {
			t.Errorf("%d instances live, none were added", s.Alive())
		}
		var calls sync.WaitGroup
		submit := func(name string) {
			calls.Go(func() {
				req := request(name, 1)
				defer req.Memory.Release()
				var resp infer.Response
				if err := s.Submit(t.Context(), req, &resp); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				resp.Release()
			})
			synctest.Wait()
		}
		submit("a") // waits for somebody to come
		s.Add(first)
		calls.Wait()
		s.Add(second)
		if s.Alive() != 2 {
			t.Errorf("%d instances live, want 2", s.Alive())
		}
		second.kill()
		synctest.Wait()
		if s.Alive() != 1 {
			t.Errorf("%d instances live, want 1 and one that is dead", s.Alive())
		}
		for range 2 {
			if ok, err := s.Remove(); !ok || err != nil { // the dead one, and that which lives
				t.Errorf("Remove: %v, %v", ok, err)
			}
		}
		if ok, _ := s.Remove(); ok || s.Alive() != 0 {
			t.Errorf("an instance more was removed, or %d live", s.Alive())
		}
		submit("b")
		third := &mortal{died: make(chan struct{})}
		s.Add(third) // has the number of one that left
		calls.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(first.batches, []string{"a"}) || !slices.Equal(third.batches, []string{"b"}) {
			t.Errorf("ran %q, %q", first.batches, third.batches)
		}
	})
}

// A judge says itself whether it is ready.
type judge struct {
	*mortal
	ready bool
}

func (j *judge) Ready() bool { return j.ready }

func TestAModelIsReadyIfNoInstanceSaysOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		first, second := &judge{mortal: &mortal{died: make(chan struct{})}, ready: true}, &judge{mortal: &mortal{died: make(chan struct{})}}
		s := New([]engine.Instance{first, second}, Options{Pacer: p})
		if s.Ready() {
			t.Error("ready, although the second instance says that it is not")
		}
		second.ready = true
		if !s.Ready() {
			t.Error("not ready, although both instances say that they are")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An inspected instance counts how often it is asked.
type inspected struct{ asked int }

func (*inspected) Run(context.Context, []tensor.Tensor, *engine.Outputs) error { return nil }
func (*inspected) Close() error                                                { return nil }

func (i *inspected) Ready() bool {
	i.asked++
	return true
}

func TestOneInstanceInSeveralPlacesIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		i := &inspected{}
		s := New([]engine.Instance{i, i, i}, Options{Pacer: p})
		if !s.Ready() || i.asked != 1 {
			t.Errorf("ready %v, asked %d times", s.Ready(), i.asked)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNoRequestWaitsForAnInstanceThatCannotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{})
		m.failures = 2 // attempts at 1..6 and 6..11 ms
		b.submit(0, request("die", 1), ms, infer.Unavailable)
		b.submit(2*ms, request("a", 1), 6*ms, infer.Unavailable)
		b.submit(7*ms, request("b", 1), 7*ms, infer.Unavailable)
		b.submit(12*ms, request("c", 1), 12*ms, infer.Unavailable)
		b.submit(17*ms, request("d", 1), 18*ms) // back at 16 ms
		for _, tt := range []struct {
			at   time.Duration
			want error
		}{{0, nil}, {2 * ms, nil}, {8 * ms, errNotStarted}, {13 * ms, errNotStarted}, {17 * ms, nil}} {
			time.Sleep(tt.at - time.Since(b.began))
			synctest.Wait()
			if got := b.Outage(); !errors.Is(got, tt.want) {
				t.Errorf("after %v the outage is %v, want %v", tt.at, got, tt.want)
			}
		}
		b.end()
	})
}

func TestABatchIsNotRetriedOnAnInstanceThatCannotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{RetryDied: true})
		m.failures = 1
		b.submit(0, request("die", 1), 6*ms, infer.Unavailable) // dies, and the attempt fails after 5 ms
		b.submit(2*ms, request("a", 1), 6*ms, infer.Unavailable)
		b.end()
		if got := m.ran(); len(got) != 1 {
			t.Errorf("batches %q, want one", got)
		}
	})
}

func TestRequestsWaitForAnInstanceThatServesBesideOneThatCannotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{})
		m.failures = 1000
		b.Add(open(t, &enginetest.Echo{Takes: constant(10 * ms)}, 1)[0])
		time.Sleep(ms)
		m.kill()
		time.Sleep(9 * ms)
		b.submit(10*ms, request("a", 1), 20*ms)
		b.submit(12*ms, request("b", 1), 30*ms)
		b.end()
	})
}
