package sched

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// A sending instance opens a stream of responses for every request when it may, and runs
// until it may end. It records the requests whose clients left.
type sending struct {
	open, end chan struct{}
	closed    atomic.Int32
	left      chan string // with room for all
}

func (s *sending) Run(context.Context, []tensor.Tensor, *engine.Outputs) error { panic("joined") }
func (s *sending) Close() error                                                { return nil }
func (s *sending) Left(req *infer.Request)                                     { s.left <- req.ID }

func (s *sending) RunEach(_ context.Context, calls []engine.Call) error {
	<-s.open
	for i := range calls {
		calls[i].Opened <- s.more()
	}
	<-s.end
	return nil
}

func (s *sending) more() infer.ResponseStream { return closer{&s.closed} }

type closer struct{ closed *atomic.Int32 }

func (c closer) Next(context.Context, *infer.Response) error { panic("nobody asks") }
func (c closer) Close()                                      { c.closed.Add(1) }

func newSending() *sending {
	return &sending{open: make(chan struct{}), end: make(chan struct{}), left: make(chan string, 8)}
}

func startSending(t *testing.T) (*Scheduler, *sending) {
	t.Helper()
	inst := newSending()
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	return New([]engine.Instance{inst}, Options{
		Pacer: p, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}},
	}), inst
}

func named(id string) *infer.Request {
	return &infer.Request{ID: id, Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Int8, Shape: []int64{1, 1}, Data: []byte{1}}}}
}

func TestWhoIsSentResponsesDoesNotWaitForTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inst := startSending(t)
		close(inst.open)
		var resp infer.Response
		if err := s.Submit(t.Context(), named("a"), &resp); err != nil || resp.Stream == nil {
			t.Fatalf("error %v, more %v", err, resp.Stream)
		}
		if resp.Times.Taken.IsZero() || !resp.Times.RunEnded.IsZero() {
			t.Errorf("times %+v, want those until it ran", resp.Times)
		}
		close(inst.end)
		resp.Stream.Close()
		if err := s.Close(); err != nil || inst.closed.Load() != 1 {
			t.Errorf("error %v, closed %d times", err, inst.closed.Load())
		}
	})
}

func TestWhatSendsToNobodyIsClosedAndTheInstanceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inst := startSending(t)
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 2)
		submit := func(ctx context.Context, id string) {
			var resp infer.Response
			err := s.Submit(ctx, named(id), &resp)
			if err == nil {
				resp.Stream.Close()
			}
			returned <- err
		}
		go submit(t.Context(), "first") // runs alone, and the others wait for it
		synctest.Wait()
		go submit(ctx, "leaves")
		go submit(t.Context(), "stays")
		synctest.Wait()
		inst.open <- struct{}{}
		inst.end <- struct{}{}
		if err := <-returned; err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // both are in a batch
		cancel()
		if err := <-returned; infer.CodeOf(err) != infer.Cancelled {
			t.Errorf("error %v", err)
		}
		if who := <-inst.left; who != "leaves" || len(inst.left) != 0 {
			t.Errorf("%s left, and %d more", who, len(inst.left))
		}
		close(inst.open)
		if err := <-returned; err != nil {
			t.Error(err)
		}
		close(inst.end)
		if err := s.Close(); err != nil || inst.closed.Load() != 3 {
			t.Errorf("error %v, %d of 3 closed", err, inst.closed.Load())
		}
	})
}

// A waiting instance opens a stream and returns when it is closed, as a model does that sends more
// than a connection holds and that its client does not read.
type waiting struct {
	sending
	opened chan struct{}
}

func (w *waiting) Left(*infer.Request) {}

func (w *waiting) RunEach(_ context.Context, calls []engine.Call) error {
	stream := signalling{make(chan struct{})}
	calls[0].Opened <- stream
	w.opened <- struct{}{}
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	select {
	case <-stream.closed:
		return nil
	case <-patience.C:
		return errors.New("the stream stays open")
	}
}

type signalling struct{ closed chan struct{} }

func (c signalling) Next(context.Context, *infer.Response) error { panic("not read") }
func (c signalling) Close()                                      { close(c.closed) }

// A lateContext runs before when it is asked for its end: then a caller waits for several things at
// once, of which it takes any.
type lateContext struct {
	context.Context //nolint:containedctx // it changes a method
	before          func()
}

func (c lateContext) Done() <-chan struct{} {
	c.before()
	return c.Context.Done()
}

// Whether the caller notices its end or the stream first is up to chance, so it is tried often.
func TestAStreamThatOpensWhileItsClientLeavesIsClosedBeforeTheBatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := &waiting{opened: make(chan struct{})}
		p := pacer.NewPortable()
		t.Cleanup(p.Close)
		s := New([]engine.Instance{inst}, Options{Pacer: p, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		start := time.Now()
		left := 0
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			var resp infer.Response
			err := s.Submit(lateContext{ctx, func() {
				<-inst.opened
				cancel()
			}}, named("leaves"), &resp)
			switch {
			case err == nil:
				resp.Stream.Close()
			case infer.CodeOf(err) == infer.Cancelled:
				left++
			default:
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil || left == 0 {
			t.Errorf("error %v, %d left before they took the stream", err, left)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("batches waited %v for a reader that had left", took)
		}
	})
}

// A revived instance dies in its second run, and starts again when it may. A run of one request waits
// until it may end. It records whose clients have left at the start of each run.
type revived struct {
	sending
	died, restarting, start chan struct{}
	runs                    []string
}

func (r *revived) RunEach(_ context.Context, calls []engine.Call) error {
	run := ""
	for i := range calls {
		run += fmt.Sprint(calls[i].Request.ID, " left ", calls[i].Left.Load(), ", ")
	}
	r.runs = append(r.runs, run)
	if len(calls) == 1 {
		<-r.open
	}
	if len(r.runs) == 2 {
		close(r.died)
		return engine.ErrDied
	}
	return nil
}

func (r *revived) Died() <-chan struct{} { return r.died }
func (r *revived) Failing() *infer.Error { return nil }

func (r *revived) Restart(context.Context) error {
	close(r.restarting)
	<-r.start
	r.died = make(chan struct{})
	return nil
}

// While an instance restarts, it has no batch in which Left could find the request. Calls are used
// again, and those of the next requests must not be marked.
func TestAClientThatLeavesWhileItsInstanceRestartsIsKnownToTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := &revived{sending: *newSending(), died: make(chan struct{}), restarting: make(chan struct{}), start: make(chan struct{})}
		p := pacer.NewPortable()
		t.Cleanup(p.Close)
		s := New([]engine.Instance{inst}, Options{Pacer: p, RetryDied: true, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		leaving, leave := context.WithCancel(t.Context())
		submit := func(ids ...string) {
			for _, id := range ids {
				ctx := t.Context()
				if id == "leaves" {
					ctx = leaving
				}
				go func() {
					var resp infer.Response
					if err := s.Submit(ctx, named(id), &resp); (err != nil) != (id == "leaves") {
						t.Errorf("%s: error %v", id, err)
					}
				}()
				synctest.Wait() // the first runs while the others wait
			}
			inst.open <- struct{}{}
		}
		submit("first", "leaves", "stays")
		<-inst.restarting
		leave()
		synctest.Wait()
		close(inst.start)
		synctest.Wait()
		submit("a", "b", "c") // they use the calls of the three
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		want := []string{
			"first left false, ", "leaves left false, stays left false, ", "leaves left true, stays left false, ",
			"a left false, ", "b left false, c left false, ",
		}
		if !slices.Equal(inst.runs, want) {
			t.Errorf("runs %q, want %q", inst.runs, want)
		}
	})
}

// A request whose caller has its stream already belongs to the core until all earlier ones have
// ended: the call must not be used for another request before.
func TestCallsWithStreamsAreKeptUntilTheyAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked, free := newSending(), newSending()
		close(blocked.open)
		close(free.open)
		close(free.end)
		p := pacer.NewPortable()
		defer p.Close()
		s := New([]engine.Instance{blocked, free}, Options{
			Pacer: p, Batching: batching.Config{MaxRows: 1, KeepOrder: true, Policy: batching.Triton{MaxRows: 1}},
		})
		submit := func() {
			t.Helper()
			var resp infer.Response
			if err := s.Submit(t.Context(), named("a"), &resp); err != nil || resp.Stream == nil {
				t.Fatalf("error %v, stream %v", err, resp.Stream)
			}
			if !s.Busy() {
				t.Error("a model with an open stream is not in use")
			}
			resp.Stream.Close()
			resp.Stream.Close() // counts once
			synctest.Wait()
		}
		for range 20 { // one of them runs until the end
			submit()
		}
		close(blocked.end)
		synctest.Wait()
		if s.Busy() {
			t.Error("a model is in use after its last request")
		}
		for range 20 {
			submit()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A failing instance opens a stream for the first request of a batch, and fails if the batch has
// more than one. It records its batches.
type failing struct {
	sending
	batches [][]string
}

func (f *failing) RunEach(_ context.Context, calls []engine.Call) error {
	<-f.open
	var ids []string
	for i := range calls {
		ids = append(ids, calls[i].Request.ID)
	}
	f.batches = append(f.batches, ids)
	if len(calls) == 1 {
		return nil
	}
	calls[0].Opened <- f.more()
	calls[0].Streaming = true
	return errors.New("an exception")
}

func TestARequestWhoseClientHasAStreamIsNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := &failing{sending: *newSending()}
		p := pacer.NewPortable()
		t.Cleanup(p.Close)
		s := New([]engine.Instance{inst}, Options{Pacer: p, Bisect: true, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		for _, id := range []string{"before", "streams", "fails"} {
			go func() {
				var resp infer.Response
				if err := s.Submit(t.Context(), named(id), &resp); err == nil && resp.Stream != nil {
					resp.Stream.Close()
				}
			}()
			synctest.Wait() // the first runs while the others wait
		}
		close(inst.open)
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if want := "[[before] [streams fails] [fails]]"; fmt.Sprint(inst.batches) != want {
			t.Errorf("batches %v, want %s", inst.batches, want)
		}
	})
}

func TestAProbeDoesNotOpenAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := &refusing{}
		p := pacer.NewPortable()
		t.Cleanup(p.Close)
		s := New([]engine.Instance{inst}, Options{Pacer: p, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		if err := s.WarmUp(t.Context(), named("a"), 1); err != nil || !inst.refused {
			t.Errorf("error %v; the probe takes a stream: %v", err, !inst.refused)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A refusing instance notes that a request takes no stream.
type refusing struct {
	sending
	refused bool
}

func (r *refusing) RunEach(_ context.Context, calls []engine.Call) error {
	r.refused = calls[0].Opened == nil && calls[0].Streaming
	return nil
}
