package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/infer"
)

// count returns a request that the decoupled model answers n times.
func count(id string, n int32) *client.Request {
	return &client.Request{Model: "repeat", ID: id, Inputs: []client.Tensor{client.NewTensor("COUNT", []int32{n})}}
}

// receive describes what comes over a stream until it ends.
func receive(s *client.Stream) (heard []string, err error) {
	for {
		resp, err := s.Recv()
		if resp == nil {
			return heard, err
		}
		n, _ := client.Values[int32](resp.Output("INDEX"))
		heard = append(heard, fmt.Sprint(resp.ID, n, resp.Final, err))
	}
}

func TestADecoupledModelAnswersOverAStream(t *testing.T) {
	s := newBackend(t)
	s.Stream = newCounter
	c := connect(t, s, client.Options{})["gRPC"]
	stream, err := c.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := stream.Send(count("a", 2)); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	heard, err := receive(stream)
	want := []string{"a[0] false <nil>", "a[1] false <nil>", "a[] true <nil>"}
	if !errors.Is(err, io.EOF) || !slices.Equal(heard, want) {
		t.Errorf("got %v, %v, want %v", heard, err, want)
	}
	if _, err := c.Infer(t.Context(), count("b", 1)); !errors.Is(err, client.Unsupported) {
		t.Errorf("got %v", err)
	}
}

func TestARequestOfAStreamFailsAlone(t *testing.T) {
	s := newBackend(t)
	s.Before = func(_ context.Context, req *infer.Request) error {
		if req.ID == "bad" {
			return infer.Errorf(infer.Invalid, "a bad request")
		}
		return nil
	}
	stream, err := connect(t, s, client.Options{})["gRPC"].Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for _, id := range []string{"a", "bad", "b"} {
		if err := stream.Send(count(id, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Send(&client.Request{}); !errors.Is(err, client.Invalid) {
		t.Errorf("got %v", err)
	}
	unknown := count("c", 1)
	unknown.Model = "nosuch"
	if err := stream.Send(unknown); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	heard, err := receive(stream)
	want := []string{"a[] true <nil>", "bad[] true a bad request", "b[] true <nil>", "c[] true Request for unknown model: 'nosuch' is not found"}
	if !errors.Is(err, io.EOF) || !slices.Equal(heard, want) {
		t.Errorf("got %v, %v, want %v", heard, err, want)
	}
}

func TestARequestThatCannotBeSentLeavesTheStreamAsItIs(t *testing.T) {
	s := newBackend(t)
	goOn := make(chan struct{})
	s.Before = func(ctx context.Context, _ *infer.Request) error {
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	stream, err := connect(t, s, client.Options{})["gRPC"].Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := stream.Send(count("a", 1)); err != nil {
		t.Fatal(err)
	}
	const bad = "\xff"
	for name, change := range map[string]func(*client.Request){
		"the model":               func(r *client.Request) { r.Model = bad },
		"the version":             func(r *client.Request) { r.Version = bad },
		"the ID":                  func(r *client.Request) { r.ID = bad },
		"an input":                func(r *client.Request) { r.Inputs[0].Name = bad },
		"an output":               func(r *client.Request) { r.Outputs = []string{bad} },
		"the name of a parameter": func(r *client.Request) { r.Parameters = map[string]any{bad: 1} },
		"a parameter":             func(r *client.Request) { r.Parameters = map[string]any{"p": bad} },
	} {
		req := count("b", 1)
		change(req)
		if err := stream.Send(req); !errors.Is(err, client.Invalid) || err.Error() != `"\xff" is not UTF-8` {
			t.Errorf("%s: got %v", name, err)
		}
	}
	large := count("c", 1)
	data := make([]uint8, 1<<26)
	for len(large.Inputs) < 33 { // 2 GiB, and the first
		large.Inputs = append(large.Inputs, client.NewTensor("LARGE", data))
	}
	if err := stream.Send(large); !errors.Is(err, client.TooLarge) {
		t.Errorf("got %v", err)
	}
	if err := stream.Send(count("d", 1)); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(count("e", 1)); !errors.Is(err, client.Invalid) {
		t.Errorf("got %v", err)
	}
	close(goOn)
	heard, err := receive(stream)
	want := []string{"a[] true <nil>", "d[] true <nil>"}
	if !errors.Is(err, io.EOF) || !slices.Equal(heard, want) {
		t.Errorf("got %v, %v, want %v", heard, err, want)
	}
}

func TestAStreamEndsWhenItIsClosed(t *testing.T) {
	s := newBackend(t)
	began := make(chan struct{})
	s.Before = func(ctx context.Context, _ *infer.Request) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	}
	stream, err := connect(t, s, client.Options{})["gRPC"].Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(count("a", 1)); err != nil {
		t.Fatal(err)
	}
	<-began
	stream.Close()
	if resp, err := stream.Recv(); resp != nil || !errors.Is(err, client.Canceled) {
		t.Errorf("got %v, %v", resp, err)
	}
}
