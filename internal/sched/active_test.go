package sched

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestABatchIsExclusiveIfItBeginsAloneAsTheLastDid(t *testing.T) {
	var a activeBatches
	begin := func(why string, want bool) {
		t.Helper()
		if got := a.Begin(); got != want {
			t.Errorf("%s: exclusive %v", why, got)
		}
	}
	begin("the first", true)
	begin("beside it", false)
	a.End()
	a.End()
	begin("alone, after two that overlapped", false)
	a.End()
	begin("alone, after one that was", true)
}

// A notebook has what was said of each batch, by the name of its first request.
type notebook struct {
	mu                        sync.Mutex // guards the following
	engine, scheduler, policy map[string]bool
}

// A noting policy is Triton's rule, and writes down which batches are exclusive.
type noting struct {
	batching.Triton
	notes *notebook
}

func (p noting) Arrived(batching.Time, *batching.Item)            {}
func (p noting) Left(batching.Time, *batching.Item)               {}
func (p noting) Held(batching.Time, batching.Decision)            {}
func (p noting) Ended(batching.Time, int, []*batching.Item, bool) {}
func (p noting) Began(_ batching.Time, run *batching.Action) {
	p.notes.mu.Lock()
	defer p.notes.mu.Unlock()
	p.notes.policy[callOf(run.Items[0]).req.ID] = run.Exclusive
}

// A notingInstance writes down how it was asked to run, and what its worker thought.
type notingInstance struct {
	engine.Instance
	notes *notebook
	own   func() *worker
}

func (i *notingInstance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	i.note(in, false)
	return i.Instance.Run(ctx, in, out)
}

func (i *notingInstance) RunExclusive(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	i.note(in, true)
	return i.Instance.Run(ctx, in, out)
}

func (i *notingInstance) note(in []tensor.Tensor, exclusive bool) {
	name := strings.TrimSpace(string(in[0].Data[:4]))
	i.notes.mu.Lock()
	defer i.notes.mu.Unlock()
	i.notes.engine[name], i.notes.scheduler[name] = exclusive, i.own().exclusive
}

func startNoting(t *testing.T, notes *notebook, device *Device, instances int, takes func(int) time.Duration) *bench {
	b := &bench{t: t, began: time.Now()}
	opened := open(t, &enginetest.Echo{Takes: takes}, instances)
	for n := range opened {
		opened[n] = &notingInstance{opened[n], notes, func() *worker { return b.workers()[n] }}
	}
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	b.Scheduler = New(opened, Options{Pacer: p, Device: device, Batching: batching.Config{MaxRows: 4, Policy: noting{batching.Triton{MaxRows: 4}, notes}}})
	return b
}

func newNotebook() *notebook {
	return &notebook{engine: map[string]bool{}, scheduler: map[string]bool{}, policy: map[string]bool{}}
}

// A policy that counted the batches of its own model would take b1 and a2 for
// exclusive.
func TestBatchesOfOtherModelsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notes, device := newNotebook(), NewDevice(2)
		a, b := startNoting(t, notes, device, 1, constant(10*ms)), startNoting(t, notes, device, 1, constant(10*ms))
		a.submit(0, request("a1", 1), 10*ms)
		b.submit(5*ms, request("b1", 1), 15*ms)
		a.submit(20*ms, request("a2", 1), 30*ms)
		a.submit(40*ms, request("a3", 1), 50*ms)
		b.submit(60*ms, request("b2", 1), 70*ms)
		a.finish()
		b.finish()
		want := map[string]bool{"a1": true, "b1": false, "a2": false, "a3": true, "b2": true}
		if got := fmt.Sprint(notes.engine); got != fmt.Sprint(want) {
			t.Errorf("exclusive are %v, want %v", got, want)
		}
		notes.agree(t)
	})
}

func TestEngineSchedulerAndPolicyAgreeWhichBatchesAreExclusive(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			notes, device, rnd := newNotebook(), NewDevice(2), rand.New(rand.NewPCG(3, seed))
			takes := func(rows int) time.Duration { return time.Duration(1+rows) * ms }
			a, b := startNoting(t, notes, device, 2, takes), startNoting(t, notes, device, 1, takes)
			for n := range 100 {
				for name, model := range map[string]*bench{"a": a, "b": b} {
					req := request(fmt.Sprintf("%s%d", name, n), 1)
					at := time.Duration(rnd.IntN(int(600 * ms)))
					model.calls.Go(func() {
						time.Sleep(at)
						defer req.Memory.Release()
						var resp infer.Response
						if err := model.Submit(context.Background(), req, &resp); err != nil {
							t.Error(err)
							return
						}
						resp.Release()
					})
				}
			}
			a.finish()
			b.finish()
			exclusive := 0
			for _, e := range notes.engine {
				if e {
					exclusive++
				}
			}
			if n := len(notes.engine); exclusive < 5 || exclusive > n-5 {
				t.Errorf("seed %d: %d batches of %d are exclusive, want some of both kinds", seed, exclusive, n)
			}
			notes.agree(t)
		})
	}
}

func (n *notebook) agree(t *testing.T) {
	t.Helper()
	if fmt.Sprint(n.engine) != fmt.Sprint(n.scheduler) || fmt.Sprint(n.engine) != fmt.Sprint(n.policy) {
		t.Errorf("exclusive are, to the engine, the scheduler and the policy:\n%v\n%v\n%v", n.engine, n.scheduler, n.policy)
	}
}
