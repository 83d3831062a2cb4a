package sched

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// A counter runs each request as often as its input says, a millisecond each time. It returns
// the number of runs, or sends one response for each run if it streams. An input of 13 fails in
// the second run.
type counter struct {
	streams bool

	mu      sync.Mutex
	runs    map[uint64]int // by sequence
	batches []string       // inputs of their requests, and whether they start
	sent    map[uint64]*countStream
}

// A countStream is the stream of a counter's responses.
type countStream struct {
	responses chan int // has room for all
	closed    chan struct{}
}

func (c *countStream) Next(ctx context.Context, resp *infer.Response) error {
	select {
	case n := <-c.responses:
		resp.Last = n == 0
		return nil
	case <-ctx.Done():
		resp.Last = true
		return ctx.Err()
	}
}

func (c *countStream) Close() { close(c.closed) }

func (*counter) Run(context.Context, []tensor.Tensor, *engine.Outputs) error { panic("joined") }
func (*counter) Close() error                                                { return nil }
func (*counter) Left(*infer.Request)                                         {}

func (m *counter) RunEach(_ context.Context, calls []engine.Call) error {
	time.Sleep(ms)
	m.mu.Lock()
	defer m.mu.Unlock()
	var batch []string
	for i := range calls {
		c := &calls[i]
		want, start, id := int(c.Request.Inputs[0].Data[0]), c.Request.Inputs[1].Data[0] == 1, c.Request.Correlation
		if start != (m.runs[id] == 0) || start != (c.Request.Flags&infer.SequenceStart != 0) {
			return fmt.Errorf("run %d of sequence %d has start %t", m.runs[id]+1, id, start)
		}
		m.runs[id]++
		batch = append(batch, fmt.Sprintf("%d:%d", want, m.runs[id]))
		if want == 13 && m.runs[id] == 2 {
			m.batches = append(m.batches, fmt.Sprint(batch))
			return errors.New("an unlucky number")
		}
		c.Again = m.runs[id] < want
		if m.streams {
			m.send(c, want-m.runs[id])
		} else if !c.Again {
			c.Outputs.Tensors = append(c.Outputs.Tensors, tensor.Tensor{Name: "y", Type: tensor.Uint8, Shape: []int64{1, 1}, Data: []byte{byte(m.runs[id])}})
		}
	}
	m.batches = append(m.batches, fmt.Sprint(batch))
	return nil
}

// runsOf returns how often a sequence has run, and streamOf its stream.
func (m *counter) runsOf(id uint64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[id]
}

func (m *counter) streamOf(id uint64) *countStream {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[id]
}

// send sends a response; n are still to come.
func (m *counter) send(c *engine.Call, n int) {
	id := c.Request.Correlation
	if !c.Streaming {
		m.sent[id] = &countStream{make(chan int, 100), make(chan struct{})}
		c.Opened <- m.sent[id]
		c.Streaming = true
	}
	m.sent[id].responses <- n
}

func startCounter(t *testing.T, model *counter) *Scheduler {
	t.Helper()
	model.runs, model.sent = map[uint64]int{}, map[uint64]*countStream{}
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(`
		name: "m" backend: "simulated" max_batch_size: 2
		input { name: "x" data_type: TYPE_UINT8 dims: 1 }
		output { name: "y" data_type: TYPE_UINT8 dims: 1 }
		sequence_batching {
			iterative_sequence: true
			oldest { max_candidate_sequences: 2 }
			control_input { name: "START" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } }
		}`))
	if err != nil {
		t.Fatal(err)
	}
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	return New([]engine.Instance{model}, Options{
		Batching: cfg.Batching(batching.Bound{}), Pacer: p, Sequences: &Sequences{Model: cfg.Sequence, Slots: cfg.Slots()},
	})
}

func askFor(n byte) *infer.Request {
	return &infer.Request{Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{1, 1}, Data: []byte{n}}}}
}

func TestAnIterativeRequestIsAnsweredOnceAfterAllItsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &counter{}
		s := startCounter(t, model)
		var clients sync.WaitGroup
		for i, n := range []byte{3, 5, 2} {
			time.Sleep(ms / 10) // so that they arrive in this order
			clients.Go(func() {
				began := time.Now()
				var resp infer.Response
				if err := s.Submit(t.Context(), askFor(n), &resp); err != nil || resp.Outputs[0].Data[0] != n {
					t.Errorf("%d runs: %v, %v", n, resp.Outputs, err)
					return
				}
				defer resp.Release()
				if wait := resp.Times.Taken.Sub(began); i < 1 && wait != 0 || resp.Times.RunEnded.Sub(resp.Times.RunStarted) < time.Duration(n)*ms {
					t.Errorf("%d runs: waited %v, and the times are %+v; want those of all runs", n, wait, resp.Times)
				}
			})
		}
		clients.Wait()
		// The second joins after the first run of the first, and the third when the first has ended.
		model.mu.Lock()
		defer model.mu.Unlock()
		if want := []string{"[3:1]", "[5:1 3:2]", "[5:2 3:3]", "[5:3 2:1]", "[5:4 2:2]", "[5:5]"}; !slices.Equal(model.batches, want) {
			t.Errorf("batches %v, want %v", model.batches, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestResponsesOfAnIterativeRequestArriveWhileItRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &counter{streams: true}
		s := startCounter(t, model)
		began := time.Now()
		var resp infer.Response
		if err := s.Submit(t.Context(), askFor(4), &resp); err != nil || resp.Stream == nil {
			t.Fatalf("error %v, stream %v", err, resp.Stream)
		}
		for i := range 4 {
			if err := resp.Stream.Next(t.Context(), &resp); err != nil || resp.Last != (i == 3) || time.Since(began) != time.Duration(i+1)*ms {
				t.Errorf("response %d after %v: last %t, %v", i, time.Since(began), resp.Last, err)
			}
		}
		resp.Stream.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnIterativeRequestWhoseClientClosesItsStreamDoesNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &counter{streams: true}
		s := startCounter(t, model)
		var resp infer.Response
		if err := s.Submit(t.Context(), askFor(100), &resp); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*ms + ms/2) // in the middle of a run
		resp.Stream.Close()
		resp.Stream.Close() // is allowed
		<-model.streamOf(1).closed
		time.Sleep(10 * ms)
		if got := model.runsOf(1); got < 6 || got > 7 {
			t.Errorf("%d runs, want the one that was running to be the last", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnIterativeRequestThatFailsOrIsLateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &counter{}
		s := startCounter(t, model)
		var resp infer.Response
		if err := s.Submit(t.Context(), askFor(13), &resp); infer.CodeOf(err) != infer.Internal {
			t.Errorf("%v, want the model's error", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*ms+ms/2)
		defer cancel()
		began := time.Now()
		err := s.Submit(ctx, askFor(100), &resp)
		if infer.CodeOf(err) != infer.Deadline || time.Since(began) != 4*ms+ms/2 {
			t.Errorf("%v after %v, want the deadline", err, time.Since(began))
		}
		time.Sleep(10 * ms)
		if got := model.runsOf(2); got != 5 {
			t.Errorf("%d runs, want 5", got)
		}
		if err := s.Close(); err != nil { // waits for all
			t.Error(err)
		}
	})
}

func TestAClosingSchedulerLetsIterativeRequestsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startCounter(t, &counter{})
		answered := make(chan error, 1)
		go func() {
			var resp infer.Response
			err := s.Submit(t.Context(), askFor(5), &resp)
			resp.Release()
			answered <- err
		}()
		time.Sleep(2*ms + ms/2)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
	})
}
