package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/tensor"
)

// A sending engine sends as many responses to a request as its id has letters, each
// with one row and the last with the word that it is; an "!" is an error.
type sending struct{}

func (sending) Load(context.Context, engine.Source) (engine.Model, error) { return sending{}, nil }

func (sending) Instance(context.Context) (engine.Instance, error)           { return sending{}, nil }
func (sending) Close() error                                                { return nil }
func (sending) Run(context.Context, []tensor.Tensor, *engine.Outputs) error { panic("joined") }
func (sending) Left(*infer.Request)                                         {}

func (sending) RunEach(_ context.Context, calls []engine.Call) error {
	for i := range calls {
		calls[i].Opened <- &letters{calls[i].Request.ID}
	}
	return nil
}

type letters struct{ left string }

func (l *letters) Next(ctx context.Context, resp *infer.Response) error {
	if ctx.Err() != nil {
		resp.Last = true
		return ctx.Err()
	}
	if l.left == "" {
		resp.Last, resp.Empty = true, true
		return nil
	}
	letter := l.left[0]
	l.left = l.left[1:]
	resp.Last = l.left == ""
	if letter == '!' {
		return infer.Errorf(infer.Invalid, "no")
	}
	resp.Outputs = append(resp.Outputs, tensor.Tensor{Name: "y", Type: tensor.Int8, Shape: []int64{1, 1}, Data: []byte{letter}},
		tensor.Tensor{Name: "z", Type: tensor.Int8, Shape: []int64{1, 1}, Data: []byte{0}})
	return nil
}

func (l *letters) Close() {}

func startSending(t *testing.T) *Server {
	t.Helper()
	p := pacer.New()
	t.Cleanup(p.Close)
	s := New(env(sending{}, p), Options{Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { closeServer(t, s) })
	for name, policy := range map[string]string{"many": "true", "one": "false"} {
		load(t, s, servable.Source{Model: name, Number: 1}, `backend: "echo" max_batch_size: 4 input { name: "x" data_type: TYPE_INT8 dims: 1 }
			output [ { name: "y" data_type: TYPE_INT8 dims: 1 }, { name: "z" data_type: TYPE_INT8 dims: 1 } ] model_transaction_policy { decoupled: `+policy+` }`)
	}
	s.MarkStarted()
	return s
}

func letter(model, id string, many bool) *infer.Request {
	return &infer.Request{
		Model: model, ID: id, AcceptStream: many, Outputs: []string{"y"},
		Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Int8, Shape: []int64{1, 1}, Data: []byte{1}}},
	}
}

func TestARequestIsInsideUntilItsLastResponse(t *testing.T) {
	s := startSending(t)
	var resp infer.Response
	if err := s.Infer(t.Context(), letter("many", "abc", true), &resp); err != nil {
		t.Fatal(err)
	}
	more := resp.Stream
	s.Drain() // which it need not mind
	for _, want := range "abc" {
		var resp infer.Response
		if err := more.Next(t.Context(), &resp); err != nil || len(resp.Outputs) != 1 || resp.Outputs[0].Data[0] != byte(want) || resp.Version != "1" {
			t.Fatalf("error %v, response %+v", err, resp)
		}
		if resp.Last != (want == 'c') || s.InFlight() != 1 {
			t.Errorf("%c is the last: %v; %d inside", want, resp.Last, s.InFlight())
		}
	}
	more.Close()
	more.Close()
	if n := s.Figures()[0].Stats.Success.Count; n != 1 || s.InFlight() != 0 {
		t.Errorf("%d requests succeeded, and %d are inside", n, s.InFlight())
	}
}

func TestAClientThatLeavesBeforeTheLastResponseHasFailed(t *testing.T) {
	s := startSending(t)
	var resp infer.Response
	if err := s.Infer(t.Context(), letter("many", "abc", true), &resp); err != nil {
		t.Fatal(err)
	}
	resp.Stream.Close()
	if f := s.Figures()[0].Stats.Failed; f[infer.Cancelled] != 1 || s.InFlight() != 0 {
		t.Errorf("failed %v, inside %d", f, s.InFlight())
	}
}

func TestALastResponseThatCannotBeGivenIsAFailure(t *testing.T) {
	s := startSending(t)
	var resp infer.Response
	req := letter("many", "a", true)
	req.Outputs = []string{"y"}
	req.Convert = func(_ *infer.Response, _ bool, _ map[string][]string) error {
		return infer.Errorf(infer.Internal, "cannot be converted")
	}
	if err := s.Infer(t.Context(), req, &resp); err != nil {
		t.Fatal(err)
	}
	if err := resp.Stream.Next(t.Context(), &infer.Response{}); err == nil {
		t.Error("the conversion did not fail")
	}
	resp.Stream.Close()
	if f := s.Figures()[0].Stats; f.Failed[infer.Internal] != 1 || f.Success.Count != 0 {
		t.Errorf("failed %v, and %d succeeded", f.Failed, f.Success.Count)
	}
}

func TestWhoTakesOneResponseIsRefusedWhereThereMayBeMore(t *testing.T) {
	s := startSending(t)
	var resp infer.Response
	err := s.Infer(t.Context(), letter("many", "a", false), &resp)
	if !errors.Is(err, infer.ErrDecoupled) || infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("error %v", err)
	}
}

func TestAPlainModelMaySendItsResponse(t *testing.T) {
	s := startSending(t)
	for _, many := range []bool{false, true} { // it makes no difference
		var resp infer.Response
		if err := s.Infer(t.Context(), letter("one", "ab", many), &resp); err != nil || resp.Stream != nil || resp.Outputs[0].Data[0] != 'a' {
			t.Errorf("error %v, response %+v", err, resp)
		}
		if err := s.Infer(t.Context(), letter("one", "!", many), &resp); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("error %v", err)
		}
		if err := s.Infer(t.Context(), letter("one", "", many), &resp); infer.CodeOf(err) != infer.Internal {
			t.Errorf("error %v of a model that sends nothing", err)
		}
	}
}

func TestModelsMayAskWhileTheServerStops(t *testing.T) {
	s := start(t)
	s.Drain()
	var resp infer.Response
	if err := s.Infer(t.Context(), request(), &resp); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("a client: %v", err)
	}
	if err := s.Call(t.Context(), request(), &resp); err != nil || s.InFlight() != 0 {
		t.Errorf("a model: %v", err)
	}
	resp.Release()
}
