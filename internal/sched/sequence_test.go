package sched

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// A summer adds its input x to its state, and returns the sum as y and as the next state. It
// takes a millisecond for a batch, and fails if a row that is ready has the input 13.
type summer struct {
	mu   sync.Mutex
	rows []string // of each batch: inputs of rows, "-" for those that are not ready
}

func (s *summer) Run(_ context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	time.Sleep(ms)
	byName := map[string]tensor.Tensor{}
	for _, x := range in {
		byName[x.Name] = x
	}
	rows := int(byName["x"].Shape[0])
	sums, seen := make([]byte, 4*rows), []string{}
	for i := range rows {
		at := func(name string) int32 { return int32(binary.LittleEndian.Uint32(byName[name].Data[4*i:])) }
		binary.LittleEndian.PutUint32(sums[4*i:], uint32(at("x")+at("sum")))
		switch {
		case at("READY") == 0:
			seen = append(seen, "-")
		case at("x") == 13:
			return errors.New("an unlucky number")
		default:
			seen = append(seen, fmt.Sprint(at("x")))
		}
	}
	s.mu.Lock()
	s.rows = append(s.rows, fmt.Sprint(seen))
	s.mu.Unlock()
	shape := []int64{int64(rows), 1}
	out.Tensors = append(out.Tensors[:0], tensor.Tensor{Name: "y", Type: tensor.Int32, Shape: shape, Data: sums}, tensor.Tensor{Name: "next", Type: tensor.Int32, Shape: shape, Data: sums})
	return nil
}

func (*summer) Close() error { return nil }

// A forgetful model has a second state, and does not return it for the input 7.
type forgetful struct{ summer }

func (f *forgetful) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	err := f.summer.Run(ctx, in, out)
	if x := in[slices.IndexFunc(in, func(x tensor.Tensor) bool { return x.Name == "x" })]; err == nil && binary.LittleEndian.Uint32(x.Data) != 7 {
		out.Tensors = append(out.Tensors, tensor.Tensor{Name: "again", Type: tensor.Int32, Shape: x.Shape, Data: x.Data})
	}
	return err
}

// sequenceConfig returns the part of a configuration that a summer needs.
func sequenceConfig(t *testing.T, strategy string) *modelconfig.Config {
	t.Helper()
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(`
		name: "m" backend: "simulated" max_batch_size: 4
		input { name: "x" data_type: TYPE_INT32 dims: 1 }
		output { name: "y" data_type: TYPE_INT32 dims: 1 }
		sequence_batching {
			control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
			state { input_name: "sum" output_name: "next" data_type: TYPE_INT32 dims: 1 }
			`+strategy+`
		}`))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func startSequences(t *testing.T, model engine.Instance, strategy string) *Scheduler {
	t.Helper()
	cfg := sequenceConfig(t, strategy)
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	return New([]engine.Instance{model}, Options{
		Batching: cfg.Batching(batching.Bound{}), Pacer: p, Sequences: &Sequences{Model: cfg.Sequence, Slots: cfg.Slots()},
	})
}

// add submits a request of a sequence, and returns the sum.
func add(ctx context.Context, s *Scheduler, id uint64, x int32, flags uint32) (int32, error) {
	req := &infer.Request{
		Correlation: id, Flags: flags, Rows: 1, Caller: access.CallerOf(ctx),
		Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Int32, Shape: []int64{1, 1}, Data: binary.LittleEndian.AppendUint32(nil, uint32(x))}},
	}
	var resp infer.Response
	if err := s.Submit(ctx, req, &resp); err != nil {
		return 0, err
	}
	defer resp.Release()
	if len(resp.Outputs) != 1 || resp.Outputs[0].Name != "y" {
		return 0, fmt.Errorf("outputs %v, want y alone", resp.Outputs)
	}
	return int32(binary.LittleEndian.Uint32(resp.Outputs[0].Data)), nil
}

func TestSequencesKeepTheirStatesApart(t *testing.T) {
	for _, strategy := range []string{"oldest { max_candidate_sequences: 8 }", "direct { }"} {
		t.Run(strategy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model := &summer{}
				s := startSequences(t, model, strategy)
				const sequences, length = 6, 20 // more than there are rows
				var clients sync.WaitGroup
				for n := range sequences {
					clients.Go(func() {
						want := int32(0)
						for i := range length {
							flags := uint32(0)
							if i == 0 {
								flags |= infer.SequenceStart
							}
							if i == length-1 {
								flags |= infer.SequenceEnd
							}
							x := int32(100*n + i + 14)
							want += x
							if got, err := add(t.Context(), s, uint64(n+1), x, flags); err != nil || got != want {
								t.Errorf("sequence %d: %d, %v, want %d", n, got, err, want)
							}
						}
					})
				}
				clients.Wait()
				if len(model.rows) > sequences*length*3/4 {
					t.Errorf("%d batches for %d requests, want three quarters as many at most", len(model.rows), sequences*length)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Clients often count their sequences from 1.
func TestCallersHaveSequencesOfTheirOwn(t *testing.T) {
	by := func(name, tenant string) *access.Caller {
		return &access.Caller{Principals: []*access.Principal{{Name: name, Tenant: tenant}}}
	}
	for _, strategy := range []string{"oldest { max_candidate_sequences: 8 }", "direct { }"} {
		t.Run(strategy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startSequences(t, &summer{}, strategy)
				for _, r := range []struct {
					caller *access.Caller
					x      int32
					flags  uint32
					want   int32
				}{
					{by("ann", "blue"), 1, infer.SequenceStart, 1},
					{by("ben", "blue"), 10, infer.SequenceStart, 10},
					{by("ann", "red"), 100, infer.SequenceStart, 100},
					{nil, 1000, infer.SequenceStart, 1000},
					{by("ann", "blue"), 2, 0, 3}, // over another connection
					{by("ben", "blue"), 20, infer.SequenceEnd, 30},
					{by("ann", "blue"), 3, 0, 6},
					{by("ann", "red"), 200, 0, 300},
					{nil, 2000, 0, 3000},
				} {
					if got, err := add(access.WithCaller(t.Context(), r.caller), s, 1, r.x, r.flags); err != nil || got != r.want {
						t.Errorf("%s adds %d: %d, %v, want %d", r.caller.Name(), r.x, got, err, r.want)
					}
				}
				if _, err := add(access.WithCaller(t.Context(), by("cid", "")), s, 1, 1, 0); infer.CodeOf(err) != infer.Invalid {
					t.Errorf("a caller continues the sequence of another: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestRowsWithoutARequestAreEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &summer{}
		s := startSequences(t, model, "direct { }")
		for n := range uint64(3) {
			if _, err := add(t.Context(), s, n+1, int32(n+1), infer.SequenceStart); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := add(t.Context(), s, 3, 4, 0); err != nil || got != 7 {
			t.Errorf("%d, %v, want 7", got, err)
		}
		if want := []string{"[1]", "[- 2]", "[- - 3]", "[- - 4]"}; !slices.Equal(model.rows, want) {
			t.Errorf("batches %v, want %v", model.rows, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAFailedRequestLeavesTheStateOfItsSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "oldest { }")
		_, first := add(t.Context(), s, 1, 5, infer.SequenceStart)
		_, failed := add(t.Context(), s, 1, 13, 0)
		got, err := add(t.Context(), s, 1, 6, infer.SequenceEnd)
		if first != nil || failed == nil || err != nil || got != 11 {
			t.Errorf("%v, %v, then %d, %v; want an error in the middle, and 11", first, failed, got, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestARequestWithoutOneOfItsStatesKeepsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &forgetful{}, `oldest { }`+
			` state { input_name: "last" output_name: "again" data_type: TYPE_INT32 dims: 1 }`)
		_, first := add(t.Context(), s, 1, 5, infer.SequenceStart)
		_, failed := add(t.Context(), s, 1, 7, 0)
		got, err := add(t.Context(), s, 1, 6, infer.SequenceEnd)
		if first != nil || failed == nil || err != nil || got != 11 {
			t.Errorf("%v, %v, then %d, %v; want an error in the middle, and 11", first, failed, got, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestASequenceThatStartsAgainForgetsItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "direct { }")
		for range 2 {
			if got, err := add(t.Context(), s, 1, 5, infer.SequenceStart); err != nil || got != 5 {
				t.Errorf("%d, %v, want 5", got, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestASequenceWhoseStartFailedHasNoStateOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "oldest { }")
		_, first := add(t.Context(), s, 1, 100, infer.SequenceStart)
		_, failed := add(t.Context(), s, 1, 13, infer.SequenceStart)
		got, err := add(t.Context(), s, 1, 5, 0)
		if first != nil || failed == nil || err != nil || got != 5 {
			t.Errorf("%v, %v, then %d, %v; want an error in the middle, and 5", first, failed, got, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An accumulator keeps the sum of its one sequence itself. It dies of its first 13.
type accumulator struct {
	life mortal
	sum  int32
	died bool
}

func (a *accumulator) Run(_ context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	x := int32(binary.LittleEndian.Uint32(in[0].Data))
	if x == 13 && !a.died {
		a.died = true
		a.life.kill()
		return infer.Errorf(infer.Unavailable, "%w", engine.ErrDied)
	}
	a.sum += x
	shape, sum := []int64{1, 1}, binary.LittleEndian.AppendUint32(nil, uint32(a.sum))
	out.Tensors = append(out.Tensors[:0], tensor.Tensor{Name: "y", Type: tensor.Int32, Shape: shape, Data: sum}, tensor.Tensor{Name: "next", Type: tensor.Int32, Shape: shape, Data: sum})
	return nil
}

func (a *accumulator) Died() <-chan struct{} { return a.life.Died() }
func (a *accumulator) Failing() *infer.Error { return a.life.Failing() }
func (a *accumulator) Close() error          { return nil }
func (a *accumulator) Restart(ctx context.Context) error {
	a.sum = 0
	return a.life.Restart(ctx)
}

func TestASequenceEndsWithItsInstanceAlsoIfBatchesAreRunOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := sequenceConfig(t, "oldest { }")
		p := pacer.NewPortable()
		defer p.Close()
		model := &accumulator{life: mortal{died: make(chan struct{})}}
		s := New([]engine.Instance{model}, Options{
			Batching: cfg.Batching(batching.Bound{}), Pacer: p, Sequences: &Sequences{Model: cfg.Sequence, Slots: cfg.Slots()}, RetryDied: true,
		})
		if sum, err := add(t.Context(), s, 1, 5, infer.SequenceStart); err != nil || sum != 5 {
			t.Errorf("%d, %v, want 5", sum, err)
		}
		if sum, err := add(t.Context(), s, 1, 13, 0); infer.CodeOf(err) != infer.Unavailable {
			t.Errorf("%d, %v from an instance that does not know the 5 any more", sum, err)
		}
		if sum, err := add(t.Context(), s, 1, 1, 0); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%d, %v, want that the sequence has to start again", sum, err)
		}
		if sum, err := add(t.Context(), s, 1, 2, infer.SequenceStart); err != nil || sum != 2 {
			t.Errorf("%d, %v, want 2 of the instance that was started again", sum, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A clumsy instance panics if its input is 13. It cannot die.
type clumsy struct{ engine.Instance }

func (c clumsy) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	if binary.LittleEndian.Uint32(in[0].Data) == 13 {
		panic("an unlucky number")
	}
	return c.Instance.Run(ctx, in, out)
}

func TestSequencesEndWithAnInstanceThatIsReplacedAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := sequenceConfig(t, "oldest { }")
		p := pacer.NewPortable()
		defer p.Close()
		s := New([]engine.Instance{clumsy{&accumulator{}}}, Options{
			Batching: cfg.Batching(batching.Bound{}), Pacer: p, Sequences: &Sequences{Model: cfg.Sequence, Slots: cfg.Slots()}, Log: slog.New(slog.DiscardHandler),
			NewInstance: func(context.Context) (engine.Instance, error) { return clumsy{&accumulator{}}, nil },
		})
		if sum, err := add(t.Context(), s, 1, 5, infer.SequenceStart); err != nil || sum != 5 {
			t.Errorf("%d, %v, want 5", sum, err)
		}
		if sum, err := add(t.Context(), s, 2, 13, infer.SequenceStart); infer.CodeOf(err) != infer.Internal {
			t.Errorf("%d, %v, want that the model panicked", sum, err)
		}
		for id := range uint64(2) {
			if sum, err := add(t.Context(), s, id+1, 1, 0); infer.CodeOf(err) != infer.Invalid {
				t.Errorf("sequence %d: %d, %v, want that it has to start again", id+1, sum, err)
			}
		}
		if sum, err := add(t.Context(), s, 1, 2, infer.SequenceStart); err != nil || sum != 2 || s.Alive() != 1 {
			t.Errorf("%d, %v from %d instances, want 2 of the one that is new", sum, err, s.Alive())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnIdleSequenceHasToStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "oldest { }")
		if _, err := add(t.Context(), s, 1, 5, infer.SequenceStart); err != nil {
			t.Fatal(err)
		}
		time.Sleep(999 * ms)
		if _, err := add(t.Context(), s, 1, 5, 0); err != nil {
			t.Errorf("after almost a second: %v", err)
		}
		time.Sleep(1001 * ms)
		_, err := add(t.Context(), s, 1, 5, 0)
		if e, ok := errors.AsType[*infer.Error](err); !ok || e.Reason != infer.SequenceNotStarted {
			t.Errorf("after a second: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSlotsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "direct { }") // with four rows
		expect := func(when string, want explain.Slots) {
			t.Helper()
			synctest.Wait()
			if got := s.Slots(); got == nil || *got != want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		expect("at first", explain.Slots{All: 4})
		ctx, cancel := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for n := range uint64(6) {
			clients.Go(func() { _, _ = add(ctx, s, n+1, 1, infer.SequenceStart) })
		}
		expect("with six sequences", explain.Slots{All: 4, Used: 4, Waiting: 2})
		cancel()
		clients.Wait()
		time.Sleep(1001 * ms)
		expect("when they are idle", explain.Slots{All: 4})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A reader takes requests one by one, and keeps where the inputs of a batch are.
type reader struct {
	inputs [][][]byte     // of the rows of the last batch
	caller *access.Caller // of all of them
}

func (*reader) Run(context.Context, []tensor.Tensor, *engine.Outputs) error { panic("joined") }
func (*reader) Close() error                                                { return nil }

func (r *reader) RunEach(_ context.Context, calls []engine.Call) error {
	r.inputs = nil
	var callers []*access.Caller
	for i := range calls {
		callers = append(callers, calls[i].Request.Caller)
		var row [][]byte
		for _, x := range calls[i].Request.Inputs {
			row = append(row, x.Data)
			if x.Name == "sum" {
				calls[i].Outputs.Tensors = append(calls[i].Outputs.Tensors, tensor.Tensor{Name: "next", Type: x.Type, Shape: x.Shape, Data: x.Data})
			}
		}
		r.inputs = append(r.inputs, row)
	}
	r.caller = access.Join(callers...)
	return nil
}

// A caller without principals may do nothing: a model could not call others.
func TestRowsWithoutARequestTakeNoRightsFromTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &reader{}
		s := startSequences(t, model, "direct { }")
		ann := &access.Principal{Name: "ann"}
		for n := range uint64(4) {
			req := wide(n+1, 1)
			req.Caller = &access.Caller{Principals: []*access.Principal{ann}}
			var resp infer.Response
			if err := s.Submit(t.Context(), req, &resp); err != nil {
				t.Fatal(err)
			}
			resp.Release()
			if model.caller.Name() != "ann" {
				t.Errorf("a batch of %d rows is run for %s, want ann", len(model.inputs), model.caller.Name())
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestRowsWithoutARequestShareTheirZeros(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &reader{}
		s := startSequences(t, model, "direct { }")
		for n := range uint64(4) {
			var resp infer.Response
			if err := s.Submit(t.Context(), wide(n+1, 1000), &resp); err != nil {
				t.Fatal(err)
			}
			resp.Release()
		}
		if len(model.inputs) != 4 {
			t.Fatalf("the last batch has %d rows, want 4", len(model.inputs))
		}
		for i, row := range model.inputs[:3] {
			if x, sum := row[0], row[2]; len(x) != 4000 || len(sum) != 4 || &x[0] != &model.inputs[0][0][0] || &sum[0] != &x[0] {
				t.Errorf("row %d has inputs of %d and %d bytes of its own", i, len(x), len(sum))
			}
			if !bytes.Equal(row[0], make([]byte, 4000)) {
				t.Errorf("row %d is not empty", i)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// wide returns a request that starts a sequence, whose x has elements of 1.
func wide(id uint64, elements int) *infer.Request {
	return &infer.Request{Correlation: id, Flags: infer.SequenceStart, Rows: 1, Inputs: []tensor.Tensor{
		{Name: "x", Type: tensor.Int32, Shape: []int64{1, int64(elements)}, Data: bytes.Repeat([]byte{1, 0, 0, 0}, elements)},
	}}
}

func TestARequestOfWhichABatchWouldBeTooLargeIsRefused(t *testing.T) {
	text := func(elements, length int) *infer.Request {
		data := make([]byte, 4*elements+length)
		return &infer.Request{Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Bytes, Shape: []int64{1, int64(elements)}, Data: data}}}
	}
	for name, c := range map[string]struct {
		direct  bool
		limit   int64
		req     *infer.Request
		refused bool
	}{
		"as large as allowed": {true, 16_000, wide(1, 1000), false},
		"larger":              {true, 15_999, wide(1, 1000), true},
		"without a limit":     {true, 0, wide(1, 1000), false},
		"not direct":          {false, 15_999, wide(1, 1000), false},
		"a long string":       {true, 16_000, text(1, 15_000), false}, // those of empty rows are empty
		"many strings":        {true, 16_000, text(1001, 0), true},
		"without elements":    {true, 1, wide(1, 0), false},
	} {
		seq := Sequences{Model: &modelconfig.Sequence{Direct: c.direct}, Slots: 4, MaxBytes: c.limit}
		if err := seq.check(c.req); (err != nil) != c.refused || err != nil && infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The next request of a sequence follows when this one has its place. One that the model refuses
// because it is replaced is sent to the new version, and must be there before the next.
func TestARequestThatIsRefusedHasNoPlaceInTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "direct { }")
		submit := func(flags uint32) (called int, err error) {
			req := &infer.Request{
				Correlation: 7, Flags: flags, Rows: 1, Queued: func() { called++ },
				Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Int32, Shape: []int64{1, 1}, Data: make([]byte, 4)}},
			}
			var resp infer.Response
			if err = s.Submit(t.Context(), req, &resp); err == nil {
				resp.Release()
			}
			return called, err
		}
		if called, err := submit(infer.SequenceStart); called != 1 || err != nil {
			t.Errorf("called %d times for a request that is queued: %v", called, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if called, err := submit(infer.SequenceStart); called != 0 || !errors.Is(err, ErrClosed) {
			t.Errorf("called %d times for a request that is refused: %v", called, err)
		}
	})
}

func TestASequenceIsNotHeldForOthersWhenTheModelCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSequences(t, &summer{}, "oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 5000000 }")
		began := time.Now()
		var clients sync.WaitGroup
		for i := range 3 {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * ms)
				if _, err := add(t.Context(), s, 1, 1, []uint32{infer.SequenceStart, 0, infer.SequenceEnd}[i]); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(5 * ms)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		clients.Wait()
		if took := time.Since(began); took != 8*ms { // a millisecond for each
			t.Errorf("closed after %v, want 8 ms: nothing else can share their batches", took)
		}
	})
}
