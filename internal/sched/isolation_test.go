package sched

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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

// shareBatch submits requests while the only instance is busy, so that they share a batch,
// and checks that each gets all of its own inputs back.
func shareBatch(t *testing.T, requests ...*infer.Request) {
	t.Helper()
	rows := 0
	for _, req := range requests {
		rows += req.Rows
	}
	runInBatches(t, 8, 8, []int{8, rows}, requests...)
}

// runInBatches submits requests while the only instance is busy with a batch of the greatest
// size that the model takes. It checks that they run in batches of the given rows, of which the
// policy puts at most perBatch into one, and that each gets all of its own inputs back.
func runInBatches(t *testing.T, maxRows, perBatch int, want []int, requests ...*infer.Request) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: maxRows, Policy: batching.Triton{MaxRows: perBatch}}})
		b.submit(0, largeRequest("z", maxRows), 10*ms)
		for i, req := range requests {
			req.Shape = 1 // not that of the first batch
			b.calls.Go(func() {
				time.Sleep(time.Duration(i+1) * ms)
				var resp infer.Response
				if err := b.Submit(t.Context(), req, &resp); err != nil {
					t.Errorf("%s: %v", req.ID, err)
					return
				}
				defer resp.Release()
				for k, in := range req.Inputs {
					if out := resp.Outputs[k]; out.Name != in.Name || !bytes.Equal(out.Data, in.Data) || !slices.Equal(out.Shape, in.Shape) {
						t.Errorf("%s: output %d is not what was sent", req.ID, k)
					}
				}
			})
		}
		b.finish()
		if got := eng.Batches(); !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}

// twoInputs returns a request with two inputs, the second with rows of twice the size.
func twoInputs(name string, rows, perRow int) *infer.Request {
	x := bytes.Repeat([]byte(name+"x"), rows*perRow)[:rows*perRow]
	y := bytes.Repeat([]byte("y"+name), rows*perRow)
	return &infer.Request{ID: name, Rows: rows, Inputs: []tensor.Tensor{
		{Name: "x", Type: tensor.Uint8, Shape: []int64{int64(rows), int64(perRow)}, Data: x},
		{Name: "y", Type: tensor.Uint8, Shape: []int64{int64(rows), int64(2 * perRow)}, Data: y},
	}}
}

func TestTheInputsOfABatchAreJoinedEachByItself(t *testing.T) {
	shareBatch(t, twoInputs("a", 2, 16), twoInputs("b", 3, 16), twoInputs("c", 1, 16))
}

func TestTheInputsOfABatchAreStagedEachByItself(t *testing.T) {
	shareBatch(t, twoInputs("a", 2, minStagedBytes), twoInputs("b", 3, minStagedBytes), twoInputs("c", 1, minStagedBytes))
}

// The hash of the last request's shape is that of the others, but its rows are larger, or it has
// fewer inputs. Its slot would be the last of the first input, before the rows of the second.
func TestRowsOfAnotherSizeAreNotStagedWithOthers(t *testing.T) {
	larger := twoInputs("x", 1, minStagedBytes)
	larger.Inputs[0] = twoInputs("x", 1, 2*minStagedBytes).Inputs[0]
	fewer := twoInputs("x", 1, minStagedBytes)
	fewer.Inputs = fewer.Inputs[:1]
	for _, x := range []*infer.Request{larger, fewer} {
		runInBatches(t, 3, 2, []int{3, 2, 1}, twoInputs("a", 1, minStagedBytes), twoInputs("b", 1, minStagedBytes), x)
	}
}

func TestStringsOfDifferentLengthsReachTheirOwners(t *testing.T) {
	text := func(name string, n int) *infer.Request {
		data := tensor.AppendString(nil, strings.Repeat(name, n))
		return &infer.Request{ID: name, Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Bytes, Shape: []int64{1, 1}, Data: data}}}
	}
	shareBatch(t, text("a", minStagedBytes), text("b", 3*minStagedBytes), text("c", 2*minStagedBytes))
}

// A miscounting instance returns another number of rows than it got, or less data than its
// output should have.
type miscounting struct{ rows, missing int }

func (m miscounting) Run(_ context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	x := in[0]
	rows := x.Rows() + m.rows
	out.Memory = buf.Get(rows*4 - m.missing)
	x.Shape, x.Data = []int64{int64(rows), 4}, out.Memory.B
	out.Tensors = append(out.Tensors[:0], x)
	return nil
}

func (miscounting) Close() error { return nil }

func TestAnOutputWithTheWrongNumberOfRowsGoesToNoClient(t *testing.T) {
	for _, bisect := range []bool{false, true} {
		for _, tt := range []struct {
			inst miscounting
			want string
		}{{miscounting{rows: -1}, "rows"}, {miscounting{rows: 1}, "rows"}, {miscounting{missing: 1}, "output x of the model"}} {
			synctest.Test(t, func(t *testing.T) {
				p := pacer.NewPortable()
				defer p.Close()
				s := New([]engine.Instance{tt.inst}, Options{Pacer: p, Bisect: bisect, Batching: batching.Config{
					MaxRows: 8, Policy: batching.Triton{MaxRows: 8, MaxDelay: 5 * ms},
				}})
				var calls sync.WaitGroup
				for _, name := range []string{"a", "b"} {
					calls.Go(func() {
						req := request(name, 2)
						defer req.Memory.Release()
						var resp infer.Response
						err := s.Submit(t.Context(), req, &resp)
						if err == nil {
							resp.Release()
						}
						if infer.CodeOf(err) != infer.Internal || !strings.Contains(fmt.Sprint(err), tt.want) {
							t.Errorf("%+v, bisect %t: %s: %v", tt.inst, bisect, name, err)
						}
					})
				}
				calls.Wait()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// The hashes of two shapes are the same, and the core puts the requests into one batch.
func TestRequestsOfDifferentSizesAreNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.submit(0, request("z", 8), 10*ms)
		other := request("b", 2)
		other.Inputs[0].Shape, other.Rows = []int64{1, 8}, 1
		b.submit(1*ms, request("a", 1), 10*ms, infer.Internal)
		b.submit(2*ms, other, 10*ms, infer.Internal)
		b.finish()
		if got, want := eng.Batches(), []int{8}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}

// newStagedCall returns a call with a slot on a new stage.
func newStagedCall(number uint64) (*call, *stage) {
	req := largeRequest("a", 1)
	c := &call{req: req}
	c.item.Rows = 1
	st := newStage(c, 4)
	st.number, st.memory = number, buf.Get(st.size())
	st.add(c)
	return c, &st
}

func TestACallThatReturnedKeepsItsNewSlot(t *testing.T) {
	c, old := newStagedCall(1)
	c.copyToStage()
	next := newStage(c, 4)
	next.number, next.memory = 2, buf.Get(next.size())
	next.add(c) // the same call, with another request
	if old.has(c) || !next.has(c) || old.startsWith([]*call{c}) || !next.startsWith([]*call{c}) {
		t.Error("the call is taken to be on its old stage")
	}
	old.dropFrom(0)
	if c.slot.state.Load() != reserved {
		t.Error("the old stage took the slot on the new one")
	}
	c.copyToStage()
	if !bytes.HasPrefix(next.input(0, 1), []byte("aaaa")) {
		t.Error("the rows are not on the new stage")
	}
	old.memory.Release()
	next.memory.Release()
	c.req.Memory.Release()
}

func TestAWorkerWaitsForACallerThatIsCopying(t *testing.T) {
	c, st := newStagedCall(1)
	c.slot.state.Store(copying)
	var there atomic.Bool
	completed := make(chan bool)
	go func() {
		st.complete([]*call{c})
		completed <- there.Load()
	}()
	for range 1000 {
		runtime.Gosched()
	}
	there.Store(true)
	c.slot.state.Store(copied)
	if !<-completed {
		t.Error("the worker went on before the rows were there")
	}
	c.slot.memory.Release()
	st.memory.Release()
	c.req.Memory.Release()
}

func TestABatchOfTheMaximumSizeIsStagedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 4, Policy: batching.Triton{MaxRows: 4}}})
		b.submit(0, largeRequest("z", 4), 10*ms)
		b.submit(1*ms, largeRequest("a", 3), 20*ms)
		b.submit(2*ms, largeRequest("b", 1), 20*ms)
		b.submit(3*ms, largeRequest("c", 4), 30*ms)
		time.Sleep(5 * ms)
		if got, want := staged(b.Scheduler), []string{"1a", "1b", "2c"}; !slices.Equal(got, want) {
			t.Errorf("on the stages are %v, want %v", got, want)
		}
		b.finish()
	})
}

func TestStagesAreLimitedInNumberAndSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 4, Policy: batching.Triton{MaxRows: 4}, OvertakeOtherShapes: true}})
		b.submit(0, largeRequest("z", 4), 10*ms)
		var want []string
		for i := range maxStages + 2 {
			req := largeRequest(string(rune('a'+i)), 1)
			req.Shape = uint64(i + 1)
			b.submit(time.Duration(i+1)*ms, req, time.Duration(20+10*i)*ms)
			if i < maxStages {
				want = append(want, fmt.Sprint(i+1, req.ID))
			}
		}
		time.Sleep(9 * ms)
		if got := staged(b.Scheduler); !slices.Equal(got, want) {
			t.Errorf("on the stages are %v, want %v", got, want)
		}
		b.finish()
	})
	row := maxStageBytes/3 + 1
	c := &call{req: &infer.Request{Inputs: []tensor.Tensor{{Data: make([]byte, 2*row)}}}}
	c.item.Rows = 2
	if st := newStage(c, 8); st.capacity != 2 || st.size() > maxStageBytes {
		t.Errorf("a stage for rows of %d bytes has %d bytes for %d rows", row, st.size(), st.capacity)
	}
}

// isolated reports whether the requests of client 7 run in batches of their own.
func (b *bench) isolated() bool {
	_, isolated := b.quarantine.isolate(7, time.Since(b.began))
	return isolated
}

// failures submits a request of client 7 three times, and each time another one just after
// it.
func (b *bench) failures(from time.Duration, others bool) {
	for i := range maxFailures {
		at := from + time.Duration(i)*10*ms
		b.submit(at, request("z", 8), at+ms)
		r := request("bad", 1)
		r.Client = 7
		b.submit(at+1, r, at+2*ms, infer.Internal)
		if others {
			b.submit(at+2, request("also", 1), at+2*ms, infer.Internal)
		}
	}
}

func TestAClientIsNotBlamedForABatchWithOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(ms), Fails: poisoned}
		b := start(t, eng, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		b.failures(0, true)
		b.calls.Wait()
		if b.isolated() {
			t.Error("a client is isolated, although any request of its batches may have been bad")
		}
		b.failures(100*ms, false)
		b.calls.Wait()
		if !b.isolated() {
			t.Error("a client whose requests failed by themselves is not isolated")
		}
		b.finish()
	})
}

// Of eight requests every other one is bad. The last two are not run by themselves: the runs that a
// batch may use are used up by then, so that the good one fails, too.
func TestAClientIsNotBlamedForARequestThatDidNotRunAlone(t *testing.T) {
	const client = 7
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(ms), Fails: poisoned}
		b := start(t, eng, 1, Options{Bisect: true, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		for round := range maxFailures {
			began := time.Duration(round) * 100 * ms
			b.submit(began, request("z", 8), began+ms)
			for i := range 8 {
				at, end := began+time.Duration(1+i)*ms/10, began+ms+(1+4*3)*ms
				switch i {
				case 0, 2, 4, 6:
					b.submit(at, request("bad", 1), end, infer.Internal)
				case 7:
					req := request("good", 1)
					req.Client = client
					b.submit(at, req, end, infer.Internal)
				default:
					b.submit(at, request("good", 1), end)
				}
			}
		}
		b.calls.Wait()
		if _, isolated := b.quarantine.isolate(client, time.Since(b.epoch)); isolated {
			t.Error("a client is isolated, none of whose requests has failed by itself")
		}
		b.finish()
	})
}

func TestAClientIsNotBlamedForWhatNoRequestCauses(t *testing.T) {
	for _, cause := range []error{engine.ErrDied, engine.ErrExhausted, context.Canceled} {
		synctest.Test(t, func(t *testing.T) {
			eng := &enginetest.Echo{Takes: constant(ms), Fails: func(in []tensor.Tensor) error {
				if poisoned(in) == nil {
					return nil
				}
				return infer.Errorf(infer.Internal, "%w", cause)
			}}
			b := start(t, eng, 1, Options{Bisect: true, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
			b.failures(0, false)
			b.failures(100*ms, true)
			b.calls.Wait()
			if b.isolated() {
				t.Errorf("a client is isolated because of %v", cause)
			}
			b.finish()
		})
	}
}

func TestABisectionEndsWhereMemoryRunsOut(t *testing.T) {
	for _, cause := range []error{engine.ErrDied, engine.ErrExhausted} {
		synctest.Test(t, func(t *testing.T) {
			b, eng := startBisecting(t, func(in []tensor.Tensor) error {
				switch {
				case in[0].Rows() == 4:
					return errors.New("one of these is bad")
				case in[0].Rows() == 2 && bytes.Contains(in[0].Data, []byte("a")):
					return infer.Errorf(infer.Internal, "%w", cause)
				}
				return nil
			})
			const ends = 10*ms + 3*ms // all four, the first two, the last two
			b.submit(1*ms, request("a", 1), ends, infer.Internal)
			b.submit(2*ms, request("a2", 1), ends, infer.Internal)
			b.submit(3*ms, request("b", 1), ends)
			b.submit(4*ms, request("b2", 1), ends)
			b.finish()
			if got, want := eng.Batches(), []int{8, 4, 2, 2}; !slices.Equal(got, want) {
				t.Errorf("%v: batches of %v rows, want %v", cause, got, want)
			}
		})
	}
}

// An instance that dies whenever it is started is not waited for.
func TestABatchIsNotRetriedOnAnInstanceThatKeepsDying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := startMortal(t, Options{RetryDied: true})
		m.failing = true
		b.submit(0, request("die", 1), ms, infer.Unavailable)
		b.end()
		if got := m.ran(); len(got) != 1 {
			t.Errorf("batches %q, want one", got)
		}
	})
}

// A call can be cancelled before the core knows it, if its caller did not get the lock.
func TestACallThatIsNotAdmittedYetCanBeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{}, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8, MaxDelay: time.Minute}}})
		ctx, cancel := context.WithCancel(t.Context())
		synctest.Wait() // until the worker is parked: it would admit the call otherwise
		b.Scheduler.mu.Lock()
		b.submitContext(ctx, 0, request("a", 1), 0, infer.Cancelled)
		for b.intake.empty() {
			runtime.Gosched()
		}
		for range 1000 { // until the caller has found the lock taken
			runtime.Gosched()
		}
		cancel()
		b.Scheduler.mu.Unlock()
		b.finish()
	})
}

func TestWorkStopsTheProbeInProgress(t *testing.T) {
	var g IdleGate
	stopped := 0
	if !g.acquire(func() { stopped++ }) {
		t.Fatal("an idle gate refuses a probe")
	}
	g.BeginWork()
	if stopped != 1 {
		t.Errorf("the probe was stopped %d times, want once", stopped)
	}
	g.release()
	if g.acquire(func() { stopped++ }) {
		t.Error("a probe begins while there is work")
	}
	g.EndWork()
	g.BeginWork() // no probe is in progress
	g.EndWork()
	if stopped != 1 {
		t.Error("a probe that had ended was stopped")
	}
}
