// Package kservegrpc serves the KServe v2 inference protocol over gRPC.
//
// It handles methods and messages. [kserve.Backend] runs models, and [kserve.Control]
// loads them. A codec of its own encodes and decodes inferences, and leaves inputs in the
// buffers in which grpc received them; all other messages use grpc's standard codec.
// Messages may be compressed with gzip or deflate.
package kservegrpc

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/trace"
)

// Options configure a server. The zero value is usable.
type Options struct {
	// Name is the server's name in its metadata. "" means [kserve.ServerName].
	Name string
	// Version is the version in the server's metadata.
	Version string

	// Limits bound what a client can send. Responses are not limited.
	Limits kserve.Limits

	// TritonStatus rejects requests for a full queue with Triton's code, UNAVAILABLE, instead
	// of RESOURCE_EXHAUSTED.
	TritonStatus bool

	// Budget bounds the memory of all inferences. Nil means no limit.
	Budget *budget.Budget

	// Tap is called with the headers of a call before its message is read, and may refuse it.
	// Nil means that none is refused.
	Tap tap.ServerInHandle

	// Credentials secure connections. Nil means that they are not encrypted.
	Credentials credentials.TransportCredentials

	// Meter bounds what clients can have held by sending or reading slowly. Nil means one with
	// the Budget.
	Meter *http2meter.Meter

	// Logging lets clients read and change the log settings. If it is nil, they cannot.
	Logging kserve.Logging

	// ForwardHeaders selects the headers that models get as parameters. Nil means none.
	ForwardHeaders *kserve.HeaderPattern

	// Regions are the shared memory regions of clients. Nil means that clients cannot use
	// shared memory.
	Regions *kserve.Regions

	// Tracer decides which requests are traced. Nil means that none are.
	Tracer *trace.Tracer

	// Log receives internal errors. Nil means [slog.Default].
	Log *slog.Logger
}

const (
	// streamWorkers is the number of permanent goroutines for requests. Their stacks have
	// already grown: a new goroutine for each request costs a fifth of all CPU time.
	// Additional concurrent requests get new goroutines.
	streamWorkers = 64

	// readBuffer is larger than grpc's default, which is small for tensors.
	readBuffer = 128 << 10

	// minPing is the shortest allowed interval of keepalive pings. Most clients cannot send
	// them more often.
	minPing = 10 * time.Second

	// streamWindow is what a client may send on a stream before it is read, and connWindow on
	// all streams of a connection. grpc extends the window of a stream to the message that it
	// reads, so that large ones are not slowed down. grpc would measure how much to
	// allow, up to 16 MiB, of which a client can make use to have memory held.
	streamWindow = 256 << 10
	connWindow   = 16 << 20
)

// memory is the pool for messages that grpc receives and for responses. grpc's own pool
// zeroes all memory before use, which took an eighth of the time of a call with large
// tensors. Here that is not needed: grpc fills a buffer to its length, and responses are
// appended.
var memory buf.Slices

// New returns a server with additional options such as credentials. Its Stop waits for the
// requests in flight.
func New(backend kserve.Backend, catalog kserve.Catalog, control kserve.Control, opts Options, extra ...grpc.ServerOption) *grpc.Server {
	opts.Limits = opts.Limits.WithDefaults()
	opts.Log = cmp.Or(opts.Log, slog.Default())
	opts.Name = cmp.Or(opts.Name, kserve.ServerName)
	registerCompressors()
	if opts.Meter == nil {
		opts.Meter = &http2meter.Meter{Budget: opts.Budget, Log: opts.Log}
	}
	decompressions.Store(opts.Budget)
	s := &service{backend: backend, catalog: catalog, control: control, opts: opts}
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ReadBufferSize(readBuffer),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.Creds(newMetered(opts.Credentials, opts.Meter)),
		experimental.BufferPool(&memory),
		grpc.MaxRecvMsgSize(int(min(opts.Limits.Body, opts.Limits.Decoded))), // before and after decompression
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxHeaderListSize(uint32(min(opts.Limits.Header, math.MaxUint32))),
		grpc.ForceServerCodecV2(&codec{CodecV2: encoding.GetCodecV2("proto"), limits: &s.opts.Limits, budget: opts.Budget, log: opts.Log}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.InTapHandle(s.tap),
		grpc.ChainUnaryInterceptor(s.intercept),
	}, extra...)...)
	server.RegisterService(s.desc(), s)
	grpc_health_v1.RegisterHealthServer(server, &health{catalog: catalog})
	return server
}

// A service implements the generated interface, except for the methods that [desc] handles
// differently.
type service struct {
	kservepb.UnimplementedGRPCInferenceServiceServer

	backend kserve.Backend
	catalog kserve.Catalog
	control kserve.Control
	opts    Options
}

// intercept wraps every call. It sets the codes of errors, and limits a panic to the call.
func (s *service) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicError(info.FullMethod, cause)
		}
	}()
	panics.Point("grpc handler")
	if err := checkNames(req); err != nil {
		return nil, s.fail(ctx, err)
	}
	resp, err = handler(ctx, req)
	return resp, s.fail(ctx, err)
}

// panicError logs the cause and the stack of a panic, and returns the error for the
// client.
func (s *service) panicError(method string, cause any) error {
	panics.Report(s.opts.Log, "gRPC call", cause, "method", method)
	return status.Error(codes.Internal, "internal error")
}

// checkNames validates the model, version and repository names of a message. Empty names
// are left to the method.
func checkNames(req any) error {
	var name string
	switch req := req.(type) {
	case *request: // without the assertions below
		if req.ModelName == "" {
			return nil
		}
		return kserve.CheckName(req.ModelName)
	case *kservepb.SystemSharedMemoryStatusRequest, *kservepb.SystemSharedMemoryRegisterRequest, *kservepb.SystemSharedMemoryUnregisterRequest,
		*kservepb.CudaSharedMemoryStatusRequest, *kservepb.CudaSharedMemoryRegisterRequest, *kservepb.CudaSharedMemoryUnregisterRequest:
		return nil // these are names of regions
	case interface{ GetModelName() string }:
		name = req.GetModelName()
	case interface{ GetName() string }:
		name = req.GetName()
	}
	if name != "" {
		if err := kserve.CheckName(name); err != nil {
			return err
		}
	}
	if m, ok := req.(interface{ GetRepositoryName() string }); ok && m.GetRepositoryName() != "" {
		return kserve.ErrRepositoryName
	}
	if m, ok := req.(interface{ GetVersion() string }); ok {
		return checkVersion(m.GetVersion())
	}
	return nil
}

// fail converts err to a gRPC error. The retry delay is sent twice: as a Retry-After value
// in the trailer, and, if it was predicted, exactly in gRPC's RetryInfo.
func (s *service) fail(ctx context.Context, err error) error {
	if after := kserve.RetryAfter(err); after != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("retry-after", after)) // fails only outside a call
	}
	if in := kserve.RetryDelay(err); in > 0 {
		return withRetry(s.withCode(err), in)
	}
	return s.withCode(err)
}

// withRetry adds RetryInfo to a gRPC error.
func withRetry(err error, in time.Duration) error {
	detailed, failed := status.Convert(err).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(in)})
	if failed != nil {
		return err // it is still in the trailer
	}
	return detailed.Err()
}

// withCode converts err to a gRPC error unless it is one already, with Triton's codes if
// TritonStatus is set.
func (s *service) withCode(err error) error {
	found, ok := status.FromError(err)
	if !ok {
		code := infer.CodeOf(err)
		if s.opts.TritonStatus {
			code = kserve.TritonCode(code)
		}
		found = status.New(kserve.GRPCCode(code), kserve.TritonError(err, nil).Error())
	}
	switch text := found.Message(); {
	case len(text) > maxText:
		return status.Error(found.Code(), strings.ToValidUTF8(text[:maxText], "")+"…")
	case ok:
		return err
	}
	return found.Err()
}

// maxText is the length of an error's text. It is sent as a header, which clients limit, and grpc
// keeps memory for the longest one of a connection. Clients can have some errors quote what they sent.
const maxText = 4 << 10
