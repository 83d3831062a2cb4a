package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/plainjson"
	"github.com/shoal-serving/shoal/tensor"
)

// grpcTransport speaks KServe v2 over gRPC.
type grpcTransport struct {
	conn   *grpc.ClientConn
	calls  kservepb.GRPCInferenceServiceClient
	header []string // names and values by turns
}

// maxMessage is the maximum size of a request, in bytes. Servers take less.
const maxMessage = math.MaxInt32

// reconnect has a client notice soon that a server is back: by default grpc waits for up
// to two minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
	MinConnectTimeout: 20 * time.Second,
}

func newGRPC(target string, opts Options) (*grpcTransport, error) {
	encryption := insecure.NewCredentials()
	if opts.TLS != nil {
		encryption = credentials.NewTLS(opts.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(encryption),
		grpc.WithConnectParams(reconnect),
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(), // which would be looked up in DNS
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(min(opts.MaxResponse, math.MaxInt))), grpc.MaxCallSendMsgSize(maxMessage)),
	}
	if dial := opts.DialContext; dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, &Error{Code: Invalid, Message: fmt.Sprintf("%q is not an address for gRPC, such as localhost:8001: %v", target, err), Err: err}
	}
	t := &grpcTransport{conn: conn, calls: kservepb.NewGRPCInferenceServiceClient(conn)}
	for name, value := range opts.Header {
		t.header = append(t.header, name, value)
	}
	return t, nil
}

func (g *grpcTransport) close() error { return g.conn.Close() }

// with returns a context that carries the header.
func (g *grpcTransport) with(ctx context.Context) context.Context {
	if len(g.header) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, g.header...)
}

// invoke calls a method, and makes its error one of this package.
func invoke[I, O any](ctx context.Context, g *grpcTransport, method func(context.Context, I, ...grpc.CallOption) (O, error), in I) (O, error) {
	var trailer metadata.MD
	out, err := method(g.with(ctx), in, grpc.Trailer(&trailer))
	if err != nil {
		return out, grpcError(ctx, err, trailer)
	}
	return out, nil
}

var grpcCodes = map[codes.Code]Code{
	codes.Canceled: Canceled, codes.InvalidArgument: Invalid, codes.DeadlineExceeded: Deadline, codes.NotFound: NotFound,
	codes.AlreadyExists: Invalid, codes.PermissionDenied: Denied, codes.ResourceExhausted: Overloaded, codes.FailedPrecondition: Invalid,
	codes.OutOfRange: Invalid, codes.Unimplemented: Unsupported, codes.Internal: Internal, codes.Unavailable: Unavailable,
	codes.DataLoss: Internal, codes.Unauthenticated: Denied,
}

// grpcError returns the error of a call. The server says when to try again in the details
// of the status, and in whole seconds in the trailer.
func grpcError(ctx context.Context, err error, trailer metadata.MD) *Error {
	s := status.Convert(err)
	e := &Error{Code: grpcCodes[s.Code()], Message: s.Message(), Status: s.Code().String(), Err: err}
	switch {
	case e.Code == Overloaded && (strings.Contains(e.Message, "larger than max") || strings.HasPrefix(e.Message, "grpc: message too large")):
		e.Code = TooLarge // grpc has one code for both
	case e.Code == Canceled && errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Code = Deadline // the reset of the stream came before the status
	}
	if after := trailer.Get("retry-after"); len(after) > 0 {
		e.RetryAfter = retryAfter(after[0], time.Now())
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			e.RetryAfter = max(0, info.GetRetryDelay().AsDuration())
		}
	}
	return e
}

func (g *grpcTransport) live(ctx context.Context) (bool, error) {
	r, err := invoke(ctx, g, g.calls.ServerLive, &kservepb.ServerLiveRequest{})
	return r.GetLive(), err
}

func (g *grpcTransport) ready(ctx context.Context) (bool, error) {
	r, err := invoke(ctx, g, g.calls.ServerReady, &kservepb.ServerReadyRequest{})
	return r.GetReady(), err
}

func (g *grpcTransport) modelReady(ctx context.Context, model, version string) (bool, error) {
	r, err := invoke(ctx, g, g.calls.ModelReady, &kservepb.ModelReadyRequest{Name: model, Version: version})
	return r.GetReady(), err
}

func (g *grpcTransport) serverMetadata(ctx context.Context) (*kservepb.ServerMetadataResponse, error) {
	return invoke(ctx, g, g.calls.ServerMetadata, &kservepb.ServerMetadataRequest{})
}

func (g *grpcTransport) metadata(ctx context.Context, model, version string) (*kservepb.ModelMetadataResponse, error) {
	return invoke(ctx, g, g.calls.ModelMetadata, &kservepb.ModelMetadataRequest{Name: model, Version: version})
}

// config prints the message as servers do over HTTP.
func (g *grpcTransport) config(ctx context.Context, model, version string) (json.RawMessage, error) {
	r, err := invoke(ctx, g, g.calls.ModelConfig, &kservepb.ModelConfigRequest{Name: model, Version: version})
	if err != nil {
		return nil, err
	}
	return plainjson.Append(nil, r.GetConfig()), nil
}

func (g *grpcTransport) statistics(ctx context.Context, model, version string) (*kservepb.ModelStatisticsResponse, error) {
	return invoke(ctx, g, g.calls.ModelStatistics, &kservepb.ModelStatisticsRequest{Name: model, Version: version})
}

func (g *grpcTransport) explain(context.Context, string, string) (json.RawMessage, error) {
	return nil, &Error{Code: Unsupported, Message: "explanations are not supported over gRPC; use NewHTTP"}
}

func (g *grpcTransport) index(ctx context.Context) (*kservepb.RepositoryIndexResponse, error) {
	return invoke(ctx, g, g.calls.RepositoryIndex, &kservepb.RepositoryIndexRequest{})
}

func (g *grpcTransport) load(ctx context.Context, model string, opts LoadOptions) error {
	in := &kservepb.RepositoryModelLoadRequest{ModelName: model, Parameters: map[string]*kservepb.ModelRepositoryParameter{}}
	if opts.Config != "" {
		in.Parameters["config"] = &kservepb.ModelRepositoryParameter{ParameterChoice: &kservepb.ModelRepositoryParameter_StringParam{StringParam: opts.Config}}
	}
	for path, content := range opts.Files {
		in.Parameters["file:"+path] = &kservepb.ModelRepositoryParameter{ParameterChoice: &kservepb.ModelRepositoryParameter_BytesParam{BytesParam: content}}
	}
	_, err := invoke(ctx, g, g.calls.RepositoryModelLoad, in)
	return err
}

func (g *grpcTransport) unload(ctx context.Context, model string) error {
	_, err := invoke(ctx, g, g.calls.RepositoryModelUnload, &kservepb.RepositoryModelUnloadRequest{ModelName: model})
	return err
}

func (g *grpcTransport) infer(ctx context.Context, req *Request) (*Response, error) {
	in, err := messageOf(req)
	if err != nil {
		return nil, err
	}
	out, err := invoke(ctx, g, g.calls.ModelInfer, in)
	if err != nil {
		return nil, err
	}
	resp, err := responseOf(out)
	if err != nil {
		return nil, malformed(err)
	}
	resp.Final = true
	return resp, nil
}

// messageOf returns a request as a message, which shares the memory of the inputs.
func messageOf(req *Request) (*kservepb.ModelInferRequest, error) {
	parameters, err := req.parameters()
	if err != nil {
		return nil, err
	}
	in := &kservepb.ModelInferRequest{
		ModelName: req.Model, ModelVersion: req.Version, Id: req.ID, Parameters: make(map[string]*kservepb.InferParameter, len(parameters)),
	}
	for name, value := range parameters {
		in.Parameters[name] = parameterMessage(value)
	}
	for _, t := range req.Inputs {
		in.Inputs = append(in.Inputs, &kservepb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
		in.RawInputContents = append(in.RawInputContents, t.Data)
	}
	for _, name := range req.Outputs {
		output := &kservepb.ModelInferRequest_InferRequestedOutputTensor{Name: name}
		if req.Classes > 0 {
			output.Parameters = map[string]*kservepb.InferParameter{"classification": parameterMessage(int64(min(req.Classes, math.MaxInt64)))}
		}
		in.Outputs = append(in.Outputs, output)
	}
	return in, nil
}

// parameterMessage returns a value of one of the types of [Request.parameters] as a message.
func parameterMessage(value any) *kservepb.InferParameter {
	switch v := value.(type) {
	case bool:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_BoolParam{BoolParam: v}}
	case int64:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: v}}
	case uint64:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Uint64Param{Uint64Param: v}}
	case float64:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_DoubleParam{DoubleParam: v}}
	case string:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_StringParam{StringParam: v}}
	}
	return &kservepb.InferParameter{}
}

// responseOf returns a message as a response, whose outputs share its memory.
func responseOf(out *kservepb.ModelInferResponse) (*Response, error) {
	resp := &Response{
		Model: out.GetModelName(), Version: out.GetModelVersion(), ID: out.GetId(),
		Parameters: make(map[string]any, len(out.GetParameters())), Outputs: make([]Tensor, len(out.GetOutputs())),
	}
	for name, p := range out.GetParameters() {
		if value := p.Value(); value != nil {
			resp.Parameters[name] = value
		}
	}
	raw := out.GetRawOutputContents()
	for i, o := range out.GetOutputs() {
		t := &resp.Outputs[i]
		*t = Tensor{Name: o.GetName(), Shape: o.GetShape()}
		t.Type, _ = tensor.ParseType(o.GetDatatype())
		switch {
		case t.Type == tensor.Invalid:
			return nil, fmt.Errorf("output %q: its type is %q", t.Name, o.GetDatatype())
		case i < len(raw):
			t.Data = raw[i]
		default:
			t.Data = contentsOf(t.Type, o.GetContents())
		}
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("output %q: %w", t.Name, err)
		}
	}
	return resp, nil
}

// contentsOf returns the data of a tensor that was sent as typed contents, of which only
// the field of its type counts.
func contentsOf(t tensor.Type, c *kservepb.InferTensorContents) (data []byte) {
	switch t {
	case tensor.Bool:
		data = tensor.Data(c.GetBoolContents())
	case tensor.Int8, tensor.Int16, tensor.Int32:
		for _, v := range c.GetIntContents() {
			data = appendBits(data, t, uint64(v))
		}
	case tensor.Int64:
		data = tensor.Data(c.GetInt64Contents())
	case tensor.Uint8, tensor.Uint16, tensor.Uint32:
		for _, v := range c.GetUintContents() {
			data = appendBits(data, t, uint64(v))
		}
	case tensor.Uint64:
		data = tensor.Data(c.GetUint64Contents())
	case tensor.FP32:
		data = tensor.Data(c.GetFp32Contents())
	case tensor.FP64:
		data = tensor.Data(c.GetFp64Contents())
	case tensor.Bytes:
		for _, v := range c.GetBytesContents() {
			data = tensor.AppendString(data, v)
		}
	}
	return data
}
