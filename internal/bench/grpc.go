package bench

import (
	"context"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// grpcCaller sends unary requests over one connection.
type grpcCaller struct {
	name, version string
	conn          *grpc.ClientConn
	client        kservepb.GRPCInferenceServiceClient
	request       mem.BufferSlice // encoded
}

// NewGRPC returns a caller of a model over gRPC. version is empty for the one
// that the server chooses. It connects when it is first used.
func NewGRPC(address, name, version string) (Caller, error) {
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return nil, fmt.Errorf("%q is not an address for gRPC, such as localhost:8001: %w", address, err)
	}
	return &grpcCaller{name: name, version: version, conn: conn, client: kservepb.NewGRPCInferenceServiceClient(conn)}, nil
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
func (c *grpcCaller) Prepare(inputs []tensor.Tensor) error {
	req := &kservepb.ModelInferRequest{ModelName: c.name, ModelVersion: c.version}
	for _, t := range inputs {
		req.Inputs = append(req.Inputs, &kservepb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
		req.RawInputContents = append(req.RawInputContents, t.Data)
	}
	encoded, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	c.request = mem.BufferSlice{mem.SliceBuffer(encoded)}
	return nil
}

// Infer implements [Caller].
func (c *grpcCaller) Infer(ctx context.Context) error {
	return plain(c.conn.Invoke(ctx, kservepb.GRPCInferenceService_ModelInfer_FullMethodName, c.request, nil, grpc.ForceCodecV2(encoded{})))
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
func (c *grpcCaller) Close() error { return c.conn.Close() }

// encoded is a codec that sends what has been encoded before, and does not decode
// what comes back: the time for both would count as the server's.
type encoded struct{}

// Marshal implements [encoding.CodecV2].
func (encoded) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }

// Unmarshal implements [encoding.CodecV2].
func (encoded) Unmarshal(mem.BufferSlice, any) error { return nil }

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
			return Model{}, fmt.Errorf("input %q of model %q has the type %q, which is none of KServe v2", in.GetName(), m.Name, in.GetDatatype())
		}
		m.Inputs = append(m.Inputs, Input{Name: in.GetName(), Type: t, Shape: in.GetShape()})
	}
	if len(m.Inputs) == 0 {
		return Model{}, fmt.Errorf("model %q has no inputs, as its metadata says", m.Name)
	}
	return m, nil
}
