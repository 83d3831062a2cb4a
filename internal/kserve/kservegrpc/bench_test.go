package kservegrpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/tensor"
)

const benchIn, benchOut = 12_800, 4_000 // bytes

// A fixed backend returns the same memory for each request.
type fixed struct{ *kservetest.Server }

func (fixed) Infer(_ context.Context, req *infer.Request, resp *infer.Response) error {
	resp.Model, resp.Version, resp.Memory = req.Model, "1", buf.Get(benchOut)
	resp.Outputs = append(resp.Outputs, tensor.Tensor{Name: "OUT", Type: tensor.Uint8, Shape: benchShape, Data: resp.Memory.B})
	return nil
}

var benchShape = []int64{benchOut}

// A bare service returns the same message for each call.
type bare struct {
	kservepb.UnimplementedGRPCInferenceServiceServer

	out *kservepb.ModelInferResponse
}

func (s *bare) ModelInfer(context.Context, *kservepb.ModelInferRequest) (*kservepb.ModelInferResponse, error) {
	return s.out, nil
}

// An encoded client sends bytes and decodes nothing, so that only the servers are
// compared.
type encoded struct{}

func (encoded) Name() string { return "proto" }
func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{v.(mem.SliceBuffer)}, nil
}
func (encoded) Unmarshal(mem.BufferSlice, any) error { return nil }

// 16 concurrent calls with 12.8 KB in and 4 KB out: with this package, and with grpc's own
// codec and default options and no backend.
func BenchmarkModelInfer(b *testing.B) {
	b.Run("shoal", func(b *testing.B) {
		backend := fixed{kservetest.New(b)}
		benchmark(b, kservegrpc.New(backend, backend, backend, kservegrpc.Options{}))
	})
	b.Run("bare", func(b *testing.B) {
		server := grpc.NewServer()
		kservepb.RegisterGRPCInferenceServiceServer(server, &bare{out: &kservepb.ModelInferResponse{
			ModelName: "alltypes", ModelVersion: "1",
			Outputs:           []*kservepb.ModelInferResponse_InferOutputTensor{{Name: "OUT", Datatype: "UINT8", Shape: benchShape}},
			RawOutputContents: [][]byte{make([]byte, benchOut)},
		}})
		benchmark(b, server)
	})
}

func benchmark(b *testing.B, server *grpc.Server) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1) // so that Serve never waits for the benchmark
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	message, err := proto.Marshal(bytesInput(benchIn))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			err := conn.Invoke(b.Context(), kservepb.GRPCInferenceService_ModelInfer_FullMethodName, mem.SliceBuffer(message), nil, grpc.ForceCodecV2(encoded{}))
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	if err := conn.Close(); err != nil {
		b.Error(err)
	}
	server.Stop()
	if err := <-served; err != nil {
		b.Error(err)
	}
}
