package sched

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// largeRequest makes one whose rows are worth staging. Each is filled with its
// name.
func largeRequest(name string, rows int) *infer.Request {
	const perRow = 4 * minStagedBytes
	memory := buf.Get(rows * perRow)
	for i := 0; i < len(memory.B); {
		i += copy(memory.B[i:], name)
	}
	in := tensor.Tensor{Name: "x", Type: tensor.Uint8, Shape: []int64{int64(rows), perRow}, Data: memory.B}
	return &infer.Request{ID: name, Rows: rows, Inputs: []tensor.Tensor{in}, Memory: memory}
}

func staged(s *Scheduler) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for i, st := range s.stages {
		for _, c := range st.calls {
			if !st.has(c) {
				names = append(names, fmt.Sprint(i+1, " left"))
				continue
			}
			names = append(names, fmt.Sprint(i+1, c.req.ID))
			if c.slot.state.Load() != copied {
				names = append(names, "not there yet")
			}
		}
	}
	return names
}

func TestRowsOfTheNextBatchAreStagedWhileOneRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, largeRequest("z", 8), 10*ms)
		b.submit(1*ms, largeRequest("a", 2), 20*ms)
		b.submit(2*ms, largeRequest("b", 3), 20*ms)
		other := request("other", 1) // of another shape, and not worth a place
		other.Shape = 1
		b.submit(3*ms, other, 30*ms)
		time.Sleep(5 * ms)
		if got, want := staged(b.Scheduler), []string{"1a", "1b"}; !slices.Equal(got, want) {
			t.Errorf("on the stages are %v, want %v", got, want)
		}
		b.finish()
	})
}

func TestThoseWhoDoNotFitTheNextBatchAreStagedForTheOneAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 4, Policy: batching.Triton{MaxRows: 4}}})
		b.submit(0, largeRequest("z", 4), 10*ms)
		b.submit(1*ms, largeRequest("a", 3), 20*ms)
		b.submit(2*ms, largeRequest("b", 2), 30*ms)
		b.submit(3*ms, largeRequest("c", 1), 30*ms)
		time.Sleep(5 * ms)
		if got, want := staged(b.Scheduler), []string{"1a", "2b", "2c"}; !slices.Equal(got, want) {
			t.Errorf("on the stages are %v, want %v", got, want)
		}
		b.finish()
	})
}

func TestEachShapeHasStagesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 4, Policy: batching.Triton{MaxRows: 4}, OvertakeOtherShapes: true}})
		shaped := func(name string, shape uint64) *infer.Request {
			req := largeRequest(name, 1)
			req.Shape = shape
			return req
		}
		b.submit(0, largeRequest("z", 4), 10*ms)
		b.submit(1*ms, shaped("a", 1), 20*ms)
		b.submit(2*ms, shaped("b", 2), 30*ms)
		b.submit(3*ms, shaped("c", 1), 20*ms)
		b.submit(4*ms, shaped("d", 2), 30*ms)
		time.Sleep(5 * ms)
		if got, want := staged(b.Scheduler), []string{"1a", "1c", "2b", "2d"}; !slices.Equal(got, want) {
			t.Errorf("on the stages are %v, want %v", got, want)
		}
		time.Sleep(10 * ms)
		if got, want := staged(b.Scheduler), []string{"1b", "1d"}; !slices.Equal(got, want) {
			t.Errorf("while the first shape runs, on the stages are %v, want %v", got, want)
		}
		b.finish()
	})
}

func TestAStageThatSomebodyLeftIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, largeRequest("z", 8), 10*ms)
		ctx, cancel := context.WithCancel(t.Context())
		b.submitContext(ctx, 1*ms, largeRequest("a", 1), 4*ms, infer.Cancelled)
		b.submit(2*ms, largeRequest("b", 1), 20*ms)
		b.submit(3*ms, largeRequest("c", 1), 20*ms)
		time.Sleep(4 * ms)
		cancel()
		b.finish()
		if got, want := eng.Batches(), []int{8, 2}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}

// Requests of shapes that do not come again leave stages that no batch claims.
func TestStagesOfThoseWhoLeftMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}, OvertakeOtherShapes: true}})
		b.submit(0, largeRequest("z", 8), 10*ms)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range maxStages {
			req := largeRequest(fmt.Sprint(i), 1)
			req.Shape = uint64(100 + i)
			b.submitContext(ctx, time.Duration(i+1)*ms, req, 6*ms, infer.Cancelled)
		}
		time.Sleep(6 * ms)
		if got := len(staged(b.Scheduler)); got != maxStages {
			t.Fatalf("%d stages, want %d", got, maxStages)
		}
		cancel()
		b.submit(7*ms, largeRequest("a", 1), 20*ms)
		time.Sleep(2 * ms)
		if got, want := staged(b.Scheduler), []string{"1a"}; !slices.Equal(got, want) {
			t.Errorf("on the stages are %v, want %v", got, want)
		}
		b.finish()
	})
}

func TestWhoOvertakesTheStageRunsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{
			MaxRows: 4, Policy: batching.Triton{MaxRows: 4}, Levels: make([]batching.Level, 2), DefaultLevel: 2,
		}})
		b.submit(0, largeRequest("z", 4), 10*ms)
		b.submit(1*ms, largeRequest("low", 2), 30*ms)
		b.submit(2*ms, largeRequest("low2", 2), 30*ms)
		high := largeRequest("high", 4)
		high.Priority = 1
		b.submit(3*ms, high, 20*ms)
		b.finish()
	})
}

// TestStagedRowsReachTheirOwners looks for races between callers that come, go
// and copy, and workers that take.
func TestStagedRowsReachTheirOwners(t *testing.T) {
	p := pacer.New()
	defer p.Close()
	eng := &enginetest.Echo{Takes: constant(50 * time.Microsecond)}
	s := New(open(t, eng, 2), Options{Pacer: p, Batching: batching.Config{MaxRows: 6, Policy: batching.Triton{MaxRows: 6, Preferred: []int{4}}}})
	var callers sync.WaitGroup
	var answered atomic.Int64
	const clients, requests, withTimeout = 16, 60, 4 // every fourth may be late
	for n := range clients {
		callers.Go(func() {
			for i := range requests {
				req := largeRequest(fmt.Sprintf("%d.%d,", n, i), 1+(n+i)%3)
				ctx, cancel := context.WithCancel(context.Background())
				if i%withTimeout == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(50+7*i)*time.Microsecond)
				}
				var resp infer.Response
				if err := s.Submit(ctx, req, &resp); err != nil {
					if i%withTimeout != 0 {
						t.Errorf("%s, which has time, got %v", req.ID, err)
					}
				} else {
					answered.Add(1)
					if !bytes.Equal(resp.Outputs[0].Data, req.Inputs[0].Data) {
						t.Errorf("%s got somebody else's rows", req.ID)
					}
					resp.Release()
				}
				cancel()
				req.Memory.Release()
			}
		})
	}
	callers.Wait()
	if got := answered.Load(); got < clients*requests*(withTimeout-1)/withTimeout {
		t.Errorf("%d requests were answered and compared", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestStagesOfCallersThatLeaveAreDropped looks for races between callers that leave, whose calls are
// used again, and those that need their stages. Each request fills a stage.
func TestStagesOfCallersThatLeaveAreDropped(t *testing.T) {
	p := pacer.New()
	defer p.Close()
	eng := &enginetest.Echo{Takes: constant(200 * time.Millisecond)}
	s := New(open(t, eng, 1), Options{Pacer: p, Batching: batching.Config{MaxRows: 4, Policy: batching.Triton{MaxRows: 4}}})
	const clients, requests = 8, 400
	var callers sync.WaitGroup
	for range clients {
		callers.Go(func() {
			for i := range requests {
				req := largeRequest("leaves", 3)
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%100)*time.Microsecond)
				var resp infer.Response
				if err := s.Submit(ctx, req, &resp); err == nil {
					resp.Release()
				}
				cancel()
				req.Memory.Release()
			}
		})
	}
	callers.Wait()
	if s.stagesOpened <= maxStages {
		t.Errorf("%d stages were opened: none was dropped for another", s.stagesOpened)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A gapEngine takes a millisecond for each batch, and adds up how long it had
// nothing to do between two.
type gapEngine struct {
	pacer *pacer.Pacer
	last  time.Time
	idle  time.Duration
	runs  int
}

func (e *gapEngine) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	now := time.Now()
	if !e.last.IsZero() {
		e.idle += now.Sub(e.last)
		e.runs++
	}
	if err := e.pacer.Sleep(ctx, now.Add(time.Millisecond)); err != nil {
		return err
	}
	out.Tensors = append(out.Tensors[:0], in...)
	e.last = time.Now()
	return nil
}

func (e *gapEngine) Close() error { return nil }

// BenchmarkGapBetweenLargeBatches measures how long an instance waits for its next
// batch of 8 rows of 600 KB when there are always enough callers.
func BenchmarkGapBetweenLargeBatches(b *testing.B) {
	p := pacer.New()
	defer p.Close()
	eng := &gapEngine{pacer: p}
	s := New([]engine.Instance{eng}, Options{Pacer: p, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			in := tensor.Tensor{Name: "x", Type: tensor.Uint8, Shape: []int64{1, 600_000}, Data: make([]byte, 600_000)}
			req := &infer.Request{Rows: 1, Inputs: []tensor.Tensor{in}}
			var resp infer.Response
			for range b.N / 2 {
				if err := s.Submit(context.Background(), req, &resp); err != nil {
					b.Error(err)
				}
				resp.Release()
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		b.Error(err)
	}
	b.ReportMetric(float64(eng.idle.Microseconds())/float64(max(eng.runs, 1)), "µs-gap")
}
