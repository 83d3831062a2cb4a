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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// perConnection is the number of requests in flight on a connection at which another one
// is opened. A connection has one goroutine that writes and one that reads, which limits
// its throughput. The number is chosen, not measured.
const perConnection = 16

// maxConnections is the maximum number of connections, for open loops with many requests
// in flight.
const maxConnections = 64

// grpcCaller sends requests over as many connections as they need.
type grpcCaller struct {
	about
	address   string
	connects  client.Options
	streaming bool
	method    string            // of inference calls, unless requests are streamed
	requests  []mem.BufferSlice // encoded
	options   []grpc.CallOption
	waiting   atomic.Int64

	links atomic.Pointer[[]*link] // replaced by a longer one, with mu held
	mu    sync.Mutex
}

// A link is one connection, and the stream over it if requests are streamed.
type link struct {
	*grpc.ClientConn
	stream
	users atomic.Int64 // requests in flight
}

// NewGRPC returns a caller of a model over gRPC that sends each request as a unary call. An
// empty version means that the server chooses. opts has the credentials. It connects on
// first use.
func NewGRPC(address, name, version string, opts client.Options) (Caller, error) {
	return newGRPC(&grpcCaller{address: address, connects: opts, about: about{name: name, version: version}, method: kservepb.GRPCInferenceService_ModelInfer_FullMethodName})
}

// NewGRPCStreaming is [NewGRPC] with one stream per connection for all requests. The model
// must answer each request once.
func NewGRPCStreaming(address, name, version string, opts client.Options) (Caller, error) {
	return newGRPC(&grpcCaller{address: address, connects: opts, about: about{name: name, version: version}, streaming: true})
}

func newGRPC(c *grpcCaller) (Caller, error) {
	c.options = []grpc.CallOption{grpc.ForceCodecV2(encoded{})} // made once
	c.links.Store(&[]*link{})
	asks, err := client.NewGRPC(c.address, c.connects)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address for gRPC, such as localhost:8001: %w", c.address, err)
	}
	c.client = asks
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
		conn, err := grpc.NewClient(c.address, c.dialOptions()...)
		if err != nil {
			return nil, err
		}
		links = append(links, &link{ClientConn: conn})
	}
	c.links.Store(&links)
	return links, nil
}

func (c *grpcCaller) dialOptions() []grpc.DialOption {
	encryption := insecure.NewCredentials()
	if c.connects.TLS != nil {
		encryption = credentials.NewTLS(c.connects.TLS)
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(encryption),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	}
	if c.connects.Token != "" {
		all = append(all, grpc.WithPerRPCCredentials(bearer{"authorization": "Bearer " + c.connects.Token}))
	}
	return all
}

// A bearer is metadata that is sent with each call.
type bearer map[string]string

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return b, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials]. It is the user who
// decides.
func (b bearer) RequireTransportSecurity() bool { return false }

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
	return c.send(ctx, c.requests[request])
}

// InferStep implements [SequenceCaller]. Its parameters follow the encoded request: the fields
// of a message may be in any order, and those of a map in several parts.
func (c *grpcCaller) InferStep(ctx context.Context, request int, s Step) error {
	flag := func(v bool) *kservepb.InferParameter {
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_BoolParam{BoolParam: v}}
	}
	raw, err := proto.Marshal(&kservepb.ModelInferRequest{Parameters: map[string]*kservepb.InferParameter{
		"sequence_id":    sequenceID(s.ID),
		"sequence_start": flag(s.Start),
		"sequence_end":   flag(s.End),
	}})
	if err != nil {
		return err
	}
	return c.send(ctx, append(slices.Clone(c.requests[request]), mem.SliceBuffer(raw)))
}

// sequenceID returns the parameter of a sequence. Triton refuses a uint64 here, so it is sent
// only for an ID that does not fit into an int64.
func sequenceID(id uint64) *kservepb.InferParameter {
	if id > math.MaxInt64 {
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Uint64Param{Uint64Param: id}}
	}
	return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: int64(id)}}
}

// send sends an encoded request, and waits for its answer.
func (c *grpcCaller) send(ctx context.Context, request mem.BufferSlice) error {
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
		return plain(l.infer(ctx, l.ClientConn, request))
	}
	return plain(l.Invoke(ctx, c.method, request, nil, c.options...))
}

// Close implements [Caller].
func (c *grpcCaller) Close() error {
	all := c.client.Close()
	for _, l := range *c.links.Load() {
		all = errors.Join(all, l.Close())
		l.wait()
	}
	return all
}

// encoded is a codec for requests that are already encoded. Of responses it decodes only
// the id. More work would count as time of the server.
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

// plain returns the message of a gRPC error without its prefix.
func plain(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	return fmt.Errorf("%s (%v)", s.Message(), s.Code())
}
