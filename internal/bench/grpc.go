package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// perConnection is how many requests wait on a connection before there is another
// one. A connection has one goroutine that writes and one that reads, so at some
// number of clients it is what limits; the number is chosen, not measured.
const perConnection = 16

// maxConnections bounds them, for open loops whose requests pile up.
const maxConnections = 64

// grpcCaller sends requests over as many connections as they need.
type grpcCaller struct {
	address, name, version string
	streaming              bool
	method                 string                              // that requests go to, unless they are streamed
	client                 kservepb.GRPCInferenceServiceClient // for all but requests, on the first connection
	requests               []mem.BufferSlice                   // encoded
	options                []grpc.CallOption
	waiting                atomic.Int64

	links atomic.Pointer[[]*link] // replaced by a longer one, with mu held
	mu    sync.Mutex
}

// A link is one connection, and the stream over it if requests are streamed.
type link struct {
	*grpc.ClientConn
	stream
	users atomic.Int64 // requests that wait
}

// NewGRPC returns a caller of a model over gRPC, which sends each request in a call
// of its own. version is empty for the one that the server chooses. It connects when
// it is first used.
func NewGRPC(address, name, version string) (Caller, error) {
	return newGRPC(&grpcCaller{address: address, name: name, version: version, method: kservepb.GRPCInferenceService_ModelInfer_FullMethodName})
}

// NewGRPCStreaming is [NewGRPC] with all requests of a connection in one stream.
// The model has to answer each of them once.
func NewGRPCStreaming(address, name, version string) (Caller, error) {
	return newGRPC(&grpcCaller{address: address, name: name, version: version, streaming: true})
}

func newGRPC(c *grpcCaller) (Caller, error) {
	c.options = []grpc.CallOption{grpc.ForceCodecV2(encoded{})} // made once
	c.links.Store(&[]*link{})
	links, err := c.connect(1)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address for gRPC, such as localhost:8001: %w", c.address, err)
	}
	c.client = kservepb.NewGRPCInferenceServiceClient(links[0])
	return c, nil
}

// connect returns at least the given number of connections.
func (c *grpcCaller) connect(want int) ([]*link, error) {
	if links := *c.links.Load(); len(links) >= want {
		return links, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	links := slices.Clone(*c.links.Load())
	for len(links) < want {
		conn, err := grpc.NewClient(c.address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
		if err != nil {
			return nil, err
		}
		links = append(links, &link{ClientConn: conn})
	}
	c.links.Store(&links)
	return links, nil
}

// Model implements [Caller].
func (c *grpcCaller) Model(ctx context.Context) (Model, error) {
	meta, err := c.client.ModelMetadata(ctx, &kservepb.ModelMetadataRequest{Name: c.name, Version: c.version})
	if err != nil {
		return Model{}, plain(err)
	}
	maxBatch := -1
	config, err := c.client.ModelConfig(ctx, &kservepb.ModelConfigRequest{Name: c.name, Version: c.version})
	switch {
	case err == nil:
		maxBatch = int(config.GetConfig().GetMaxBatchSize())
	case status.Code(err) != codes.Unimplemented: // an extension that not all servers have
		return Model{}, plain(err)
	}
	return modelOf(meta, maxBatch)
}

// Prepare implements [Caller].
func (c *grpcCaller) Prepare(requests []Request) error {
	for _, r := range requests {
		req := &kservepb.ModelInferRequest{ModelName: c.name, ModelVersion: c.version}
		if r.Priority > 0 {
			req.Parameters = map[string]*kservepb.InferParameter{
				"priority": {ParameterChoice: &kservepb.InferParameter_Uint64Param{Uint64Param: r.Priority}},
			}
		}
		for _, t := range r.Inputs {
			req.Inputs = append(req.Inputs, &kservepb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
			req.RawInputContents = append(req.RawInputContents, t.Data)
		}
		raw, err := proto.Marshal(req)
		if err != nil {
			return err
		}
		c.requests = append(c.requests, mem.BufferSlice{mem.SliceBuffer(raw)})
	}
	return nil
}

// Infer implements [Caller].
func (c *grpcCaller) Infer(ctx context.Context, request int) error {
	waiting := int(c.waiting.Add(1))
	defer c.waiting.Add(-1)
	links, err := c.connect(min((waiting+perConnection-1)/perConnection, maxConnections))
	if err != nil {
		return err
	}
	l := slices.MinFunc(links, func(a, b *link) int { return cmp.Compare(a.users.Load(), b.users.Load()) })
	l.users.Add(1)
	defer l.users.Add(-1)
	if c.streaming {
		return plain(l.infer(ctx, l.ClientConn, c.requests[request]))
	}
	return plain(l.Invoke(ctx, c.method, c.requests[request], nil, c.options...))
}

// Statistics implements [Caller].
func (c *grpcCaller) Statistics(ctx context.Context) (Statistics, error) {
	resp, err := c.client.ModelStatistics(ctx, &kservepb.ModelStatisticsRequest{Name: c.name, Version: c.version})
	if err != nil {
		return Statistics{}, plain(err)
	}
	return statisticsOf(resp.GetModelStats()), nil
}

// Close implements [Caller].
func (c *grpcCaller) Close() error {
	var all error
	for _, l := range *c.links.Load() {
		all = errors.Join(all, l.Close())
		l.wait()
	}
	return all
}

// encoded is a codec that sends what has been encoded before, and decodes no more of
// what comes back than whose it is: the time for both would count as the server's.
type encoded struct{}

// Marshal implements [encoding.CodecV2].
func (encoded) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }

// Unmarshal implements [encoding.CodecV2].
func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*reply)
	if !ok {
		return nil
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	return r.read(whole.ReadOnlyData())
}

// Name implements [encoding.CodecV2].
func (encoded) Name() string { return "proto" }

// plain returns the sentence of a gRPC error, without the words around it.
func plain(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	return fmt.Errorf("%s (%v)", s.Message(), s.Code())
}

// modelOf takes what is needed from the metadata of a model.
func modelOf(meta *kservepb.ModelMetadataResponse, maxBatch int) (Model, error) {
	m := Model{Name: meta.GetName(), MaxBatch: maxBatch}
	for _, in := range meta.GetInputs() {
		t, ok := tensor.ParseType(in.GetDatatype())
		if !ok {
			return Model{}, fmt.Errorf("input %q of model %q has the type %q, which KServe v2 does not define", in.GetName(), m.Name, in.GetDatatype())
		}
		m.Inputs = append(m.Inputs, Input{Name: in.GetName(), Type: t, Shape: in.GetShape()})
	}
	if len(m.Inputs) == 0 {
		return Model{}, fmt.Errorf("model %q has no inputs, as its metadata says", m.Name)
	}
	return m, nil
}
