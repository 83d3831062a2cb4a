package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// A grpcServer answers as a test says.
type grpcServer struct {
	kservepb.UnimplementedGRPCInferenceServiceServer
	infer  func(ctx context.Context, in *kservepb.ModelInferRequest) error
	stream func(grpc.BidiStreamingServer[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]) error
}

func (s *grpcServer) ModelInfer(ctx context.Context, in *kservepb.ModelInferRequest) (*kservepb.ModelInferResponse, error) {
	return &kservepb.ModelInferResponse{}, s.infer(ctx, in)
}

func (s *grpcServer) ModelStreamInfer(stream grpc.BidiStreamingServer[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]) error {
	return s.stream(stream)
}

// listen starts a server, and returns its address.
func (s *grpcServer) listen(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	kservepb.RegisterGRPCInferenceServiceServer(g, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	return l.Addr().String()
}

// serve starts a server, and returns its caller with requests of 0, 1, … as values
// and priorities.
func (s *grpcServer) serve(t *testing.T, connect func(address, name, version string, opts client.Options) (Caller, error), requests int) Caller {
	t.Helper()
	c, err := connect(s.listen(t), "m", "", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var all []Request
	for n := range requests {
		all = append(all, Request{[]tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{1}, Data: []byte{byte(n)}}}, uint64(n)})
	}
	if err := c.Prepare(all); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOverGRPCConnectionsGrowWithTheRequests(t *testing.T) {
	const clients = perConnection*2 + 1
	var mu sync.Mutex
	from := map[string]int{} // guarded by mu
	all := make(chan struct{})
	waiting := 0
	s := &grpcServer{infer: func(ctx context.Context, in *kservepb.ModelInferRequest) error {
		p, _ := peer.FromContext(ctx)
		mu.Lock()
		from[p.Addr.String()]++
		if waiting++; waiting == clients {
			close(all)
		}
		mu.Unlock()
		<-all
		if got := in.GetParameters()["priority"].GetUint64Param(); got != 1 || in.GetRawInputContents()[0][0] != 1 {
			return fmt.Errorf("got the priority %d", got)
		}
		return nil
	}}
	c := s.serve(t, NewGRPC, 2)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			if err := c.Infer(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if len(from) != 3 {
		t.Errorf("%d requests came over %v", clients, from)
	}
}

func TestIDsOfSequencesAreOfATypeThatTritonTakes(t *testing.T) {
	var got *kservepb.InferParameter
	s := &grpcServer{infer: func(_ context.Context, in *kservepb.ModelInferRequest) error {
		got = in.GetParameters()["sequence_id"]
		return nil
	}}
	c := s.serve(t, NewGRPC, 1).(SequenceCaller)
	for _, id := range []uint64{1, math.MaxInt64, math.MaxInt64 + 1} {
		if err := c.InferStep(t.Context(), 0, Step{ID: id, Start: true}); err != nil {
			t.Fatal(err)
		}
		want := any(int64(id))
		if id > math.MaxInt64 {
			want = id // no int64 can hold it
		}
		if got.Value() != want {
			t.Errorf("ID %d is sent as %T %[2]v, want %T %[3]v", id, got.Value(), want)
		}
	}
}

func TestAnswersOfAStreamAreFoundByTheirIDs(t *testing.T) {
	const requests = 8
	end := make(chan struct{})
	s := &grpcServer{stream: func(stream grpc.BidiStreamingServer[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]) error {
		var all []*kservepb.ModelInferRequest
		for range requests {
			in, err := stream.Recv()
			if err != nil {
				return err
			}
			all = append(all, in)
		}
		slices.Reverse(all)
		for _, in := range all {
			answer := &kservepb.ModelStreamInferResponse{InferResponse: &kservepb.ModelInferResponse{Id: in.GetId(), RawOutputContents: [][]byte{make([]byte, 1000)}}}
			if n := in.GetRawInputContents()[0][0]; n%2 == 1 {
				answer.ErrorMessage = fmt.Sprintf("%d is odd", n)
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		<-end
		return nil
	}}
	c := s.serve(t, NewGRPCStreaming, requests)
	for range 2 {
		errs := make([]error, requests)
		var running sync.WaitGroup
		for n := range requests {
			running.Go(func() { errs[n] = c.Infer(t.Context(), n) })
		}
		running.Wait()
		for n, err := range errs {
			if want := fmt.Sprintf("%d is odd", n); n%2 == 0 && err != nil || n%2 == 1 && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("request %d: got %v", n, err)
			}
		}
		end <- struct{}{}
		for _, l := range *c.(*grpcCaller).links.Load() {
			l.wait() // until the client has read that the server ended the stream
		}
	}
}

// A deadStream is one that the server has ended, which only those who send have noticed.
type deadStream struct {
	grpc.ClientStream
	read chan struct{} // closed when the reader may see the end
}

func (d deadStream) SendMsg(any) error { return io.EOF }
func (d deadStream) RecvMsg(any) error { <-d.read; return io.EOF }

// An echoStream answers each request without an error.
type echoStream struct {
	grpc.ClientStream
	sent chan string // ids
}

func (e echoStream) SendMsg(m any) error {
	const field = 3 // ModelInferRequest.id
	return fields(m.(mem.BufferSlice).Materialize(), func(number protowire.Number, value []byte) error {
		if number == field {
			e.sent <- string(value)
		}
		return nil
	})
}

func (e echoStream) RecvMsg(m any) error {
	id, ok := <-e.sent
	if !ok {
		return io.EOF
	}
	m.(*reply).id = id
	return nil
}

// streams hands out one stream after the other.
type streams struct {
	grpc.ClientConnInterface
	next []grpc.ClientStream
}

func (s *streams) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	next := s.next[0]
	s.next = s.next[1:]
	return next, nil
}

func TestARequestThatFindsItsStreamEndedIsSentOverAnother(t *testing.T) {
	dead, echo := deadStream{read: make(chan struct{})}, echoStream{sent: make(chan string, 1)}
	conn := &streams{next: []grpc.ClientStream{dead, echo}}
	var s stream
	for range 3 {
		if err := s.infer(t.Context(), conn, nil); err != nil {
			t.Error(err)
		}
	}
	close(dead.read) // the reader of the first stream comes late, and ends only that one
	if err := s.infer(t.Context(), conn, nil); err != nil {
		t.Error(err)
	}
	close(echo.sent)
	s.wait()
}

// A strictStream takes its second request when its first answer was read.
type strictStream struct {
	echoStream
	second chan struct{} // closed when the second request is being sent
	read   chan struct{} // closed when the first answer was read

	sent, received int // calls
}

func (s *strictStream) SendMsg(m any) error {
	if s.sent++; s.sent == 2 {
		close(s.second)
		late := time.NewTimer(5 * time.Second)
		defer late.Stop()
		select {
		case <-s.read:
		case <-late.C:
			return errors.New("the first answer was not read while the second request was sent")
		}
	}
	return s.echoStream.SendMsg(m)
}

func (s *strictStream) RecvMsg(m any) error {
	switch s.received++; s.received {
	case 1:
		<-s.second
	case 2:
		close(s.read)
	}
	return s.echoStream.RecvMsg(m)
}

func TestAnswersOfAStreamAreReadWhileRequestsAreSent(t *testing.T) {
	strict := &strictStream{echoStream: echoStream{sent: make(chan string, 2)}, second: make(chan struct{}), read: make(chan struct{})}
	conn := &streams{next: []grpc.ClientStream{strict}}
	var s stream
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			if err := s.infer(t.Context(), conn, nil); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	close(strict.echoStream.sent)
	s.wait()
}

func TestAServerThatEndsEveryStreamIsNotAskedForEver(t *testing.T) {
	first, second := deadStream{read: make(chan struct{})}, deadStream{read: make(chan struct{})}
	close(first.read)
	close(second.read)
	conn := &streams{next: []grpc.ClientStream{first, second}}
	var s stream
	if err := s.infer(t.Context(), conn, nil); err == nil || err.Error() != "the server ended the stream" {
		t.Errorf("got %v", err)
	}
	s.wait()
}

func TestTheEndOfAStreamIsToldToAllThatWait(t *testing.T) {
	s := &grpcServer{stream: func(stream grpc.BidiStreamingServer[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]) error {
		_, _ = stream.Recv()
		_, _ = stream.Recv()
		return nil
	}}
	c := s.serve(t, NewGRPCStreaming, 1)
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			if err := c.Infer(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "the server ended the stream") {
				t.Errorf("got %v", err)
			}
		})
	}
	running.Wait()
}

func TestARequestOfAStreamIsGivenUp(t *testing.T) {
	got := make(chan struct{})
	s := &grpcServer{stream: func(stream grpc.BidiStreamingServer[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]) error {
		_, _ = stream.Recv()
		close(got)
		<-stream.Context().Done()
		return nil
	}}
	c := s.serve(t, NewGRPCStreaming, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-got; cancel() }()
	if err := c.Infer(ctx, 0); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("got %v", err)
	}
}

func TestARequestIsGivenUpThatTheServerDoesNotRead(t *testing.T) {
	s := &grpcServer{stream: func(stream grpc.BidiStreamingServer[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]) error {
		<-stream.Context().Done()
		return nil
	}}
	c, err := NewGRPCStreaming(s.listen(t), "m", "", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	large := make([]byte, 1<<20) // more than the server lets a client send
	if err := c.Prepare([]Request{{Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{1 << 20}, Data: large}}}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 3 { // one is being sent, and others wait for that
		running.Go(func() {
			if err := c.Infer(ctx, 0); err == nil || !strings.Contains(err.Error(), "cancel") {
				t.Errorf("got %v", err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	cancel()
	running.Wait()
}
