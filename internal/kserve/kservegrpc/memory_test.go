package kservegrpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// A received counts the memory in which grpc receives messages.
type received struct {
	mem.BufferPool

	out atomic.Int64
}

func (r *received) Get(n int) *[]byte {
	r.out.Add(1)
	return r.BufferPool.Get(n)
}

func (r *received) Put(b *[]byte) {
	r.out.Add(-1)
	r.BufferPool.Put(b)
}

// await waits for a condition that holds only some time after the response.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s", what)
		}
		runtime.GC() // grpc leaves some of it to the garbage collector
	}
}

func awaitBuffers(t *testing.T) {
	t.Helper()
	await(t, "buffers stay in use", func() bool { return buf.Live() == 0 })
}

func TestEveryEndOfARequestGivesItsMemoryBack(t *testing.T) {
	const size = 20_000 // more than a frame, so that there are several buffers
	fails := func(code infer.Code) func(context.Context, *infer.Request) error {
		return func(context.Context, *infer.Request) error { return infer.Errorf(code, "no") }
	}
	changed := func(change func(in *message)) *message {
		in := bytesInput(size)
		change(in)
		return in
	}
	small := bytesInput(2000) // in one buffer
	for _, c := range []struct {
		name   string
		in     *message
		before func(ctx context.Context, req *infer.Request) error
		opts   []grpc.CallOption
		want   codes.Code
	}{
		{name: "an answer", in: bytesInput(size)},
		{name: "a small one", in: small},
		{name: "a large one", in: bytesInput(1 << 20)},
		{name: "compressed", in: bytesInput(size), opts: []grpc.CallOption{grpc.UseCompressor(gzip.Name)}},
		{name: "deflated", in: bytesInput(size), opts: []grpc.CallOption{grpc.UseCompressor("deflate")}},
		{name: "an error", in: small, before: fails(infer.Internal), want: codes.Internal},
		{name: "an error of a large one", in: bytesInput(size), before: fails(infer.Internal), want: codes.Internal},
		{name: "a panic", in: small, before: func(context.Context, *infer.Request) error { panic("a bug") }, want: codes.Internal},
		{name: "a client that leaves", in: small, want: codes.Canceled},
		{name: "too many tensors", in: changed(func(in *message) { in.RawInputContents = append(in.RawInputContents, nil, nil, nil) }), want: codes.InvalidArgument},
		{name: "an unknown model", in: changed(func(in *message) { in.ModelName = "nosuch" }), want: codes.NotFound},
		{name: "no model's name", in: changed(func(in *message) { in.ModelName = "../etc" }), want: codes.NotFound},
		{name: "no version", in: changed(func(in *message) { in.ModelVersion = "x" }), want: codes.InvalidArgument},
		{name: "contents twice", in: changed(func(in *message) { in.Inputs[0].Contents = &content{} }), want: codes.InvalidArgument},
		{name: "a message that is too long", in: bytesInput(3 << 20), want: codes.ResourceExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := &received{BufferPool: mem.DefaultBufferPool()}
			opts := kservegrpc.Options{Limits: kserve.Limits{Inputs: 3, Body: 2 << 20}, Log: slog.New(slog.DiscardHandler)}
			backend, conn := newServer(t, opts, experimental.BufferPool(pool))
			begin := func() (context.Context, context.CancelFunc) {
				ctx, leave := context.WithCancel(t.Context())
				backend.Before = c.before
				if c.want == codes.Canceled {
					backend.Before = func(ctx context.Context, _ *infer.Request) error {
						leave()
						<-ctx.Done()
						return ctx.Err()
					}
				}
				return ctx, leave
			}
			ctx, leave := begin()
			defer leave()
			if _, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, c.in, c.opts...); status.Code(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
			awaitBuffers(t)
			if c.want != codes.ResourceExhausted { // grpc drops those itself
				await(t, "grpc's memory is kept", func() bool { return pool.out.Load() == 0 })
			}

			ctx, leave = begin()
			defer leave()
			stream := openStream(ctx, t, conn)
			if err := stream.Send(c.in); err != nil {
				t.Error(err)
			}
			_ = stream.CloseSend() // the client may have disconnected
			for {
				if _, err := stream.Recv(); err != nil {
					break
				}
			}
			awaitBuffers(t)
			if c.want != codes.ResourceExhausted {
				await(t, "grpc's memory is kept", func() bool { return pool.out.Load() == 0 })
			}
		})
	}
}

// The caller is answered at its deadline, while a batch that still runs may read its rows.
func TestABatchThatStillRunsKeepsTheInputs(t *testing.T) {
	pool := &received{BufferPool: mem.DefaultBufferPool()}
	backend, conn := newServer(t, kservegrpc.Options{}, experimental.BufferPool(pool))
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	running := make(chan *infer.Request, 1) // so that the handler does not wait for the test
	backend.Before = func(ctx context.Context, req *infer.Request) error {
		req.Memory.Retain()
		running <- req
		<-ctx.Done()
		return ctx.Err()
	}
	for _, size := range []int{4000, 100_000} {
		in := bytesInput(size)
		copy(in.RawInputContents[0], bytes.Repeat([]byte("x"), size))
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1) // so that the client does not wait for the test
		go func() {
			_, err := client.ModelInfer(ctx, in)
			left <- err
		}()
		req := <-running
		cancel()
		if err := <-left; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		disturb(t, backend, client, size)
		if !bytes.Equal(req.Inputs[0].Data, in.GetRawInputContents()[0]) {
			t.Errorf("%d bytes: another request's data is in the batch", size)
		}
		req.Memory.Release()
		awaitBuffers(t)
		await(t, "grpc's memory is kept", func() bool { return pool.out.Load() == 0 })
	}
}

// disturb makes other requests use memory that has been freed.
func disturb(t *testing.T, backend *kservetest.Server, client kservepb.GRPCInferenceServiceClient, size int) {
	before := backend.Before
	backend.Before = nil
	for range 20 {
		if _, err := client.ModelInfer(t.Context(), bytesInput(size)); err != nil {
			t.Error(err)
		}
	}
	backend.Before = before
}

// A call has one message. grpc notices only after reading the second.
func TestACallWithTwoMessagesIsRefused(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	backend.Before = func(context.Context, *infer.Request) error {
		t.Error("the model was asked")
		return nil
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		kservepb.GRPCInferenceService_ModelInfer_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.SendMsg(bytesInput(20_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&kservepb.ModelInferResponse{}); errors.Is(err, io.EOF) || status.Code(err) != codes.Internal { // which is grpc's
		t.Errorf("answered with %v", err)
	}
	awaitBuffers(t)
}
