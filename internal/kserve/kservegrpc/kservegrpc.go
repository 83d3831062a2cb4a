// Package kservegrpc is the KServe v2 inference protocol over gRPC.
//
// It knows methods and messages. What runs a model is behind [kserve.Backend], and
// what loads one behind [kserve.Control].
// Inferences are read and written by a codec of our own, which leaves inputs in the
// buffers that grpc received them in; all other messages by grpc's plain one. Messages may
// be compressed with gzip.
package kservegrpc

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"runtime/debug"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress with it
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// Options of a server. The zero Options work.
type Options struct {
	// Version is what the server's metadata calls its version.
	Version string

	// Limits bound what a client can send. Answers have no limit.
	Limits kserve.Limits

	// TritonStatus answers a full queue with Triton's code, UNAVAILABLE, and not
	// with RESOURCE_EXHAUSTED.
	TritonStatus bool

	// Logging is what clients see and change of the log. Nil means nothing.
	Logging kserve.Logging

	// Log takes what is wrong with the server itself. Nil means [slog.Default].
	Log *slog.Logger
}

const (
	// Requests are served by goroutines that stay, whose stacks have grown
	// already: a new one for each costs a fifth of all the work. More requests
	// at once than this get new ones.
	streamWorkers = 64

	// Tensors are larger than what grpc reads at once by default.
	readBuffer = 128 << 10

	// Clients may ask as often as this whether the connection still stands,
	// which is as often as most of them can.
	minPing = 10 * time.Second
)

// memory is what grpc receives messages into, and what answers are written to. Its own
// pool wipes all memory before it hands it out, which took an eighth of a call with
// large tensors. Here nobody reads what was not written: grpc fills memory to its length,
// and answers are appended to it.
var memory buf.Slices

// New returns a server that is ready to serve, with extra options such as
// credentials. Its Stop waits for the requests that still run.
func New(backend kserve.Backend, catalog kserve.Catalog, control kserve.Control, opts Options, extra ...grpc.ServerOption) *grpc.Server {
	opts.Limits = opts.Limits.WithDefaults()
	opts.Log = cmp.Or(opts.Log, slog.Default())
	registerDeflate()
	s := &service{backend: backend, catalog: catalog, control: control, opts: opts}
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ReadBufferSize(readBuffer),
		experimental.BufferPool(&memory),
		grpc.MaxRecvMsgSize(int(min(opts.Limits.Body, opts.Limits.Decoded))), // before decompression and after
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxHeaderListSize(uint32(min(opts.Limits.Header, math.MaxUint32))),
		grpc.ForceServerCodecV2(&codec{CodecV2: encoding.GetCodecV2("proto"), limits: &s.opts.Limits}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(s.intercept),
	}, extra...)...)
	server.RegisterService(s.desc(), s)
	grpc_health_v1.RegisterHealthServer(server, &health{catalog: catalog})
	return server
}

// A service has the methods of the generated interface, but for those that [desc]
// gives other handlers.
type service struct {
	kservepb.UnimplementedGRPCInferenceServiceServer

	backend kserve.Backend
	catalog kserve.Catalog
	control kserve.Control
	opts    Options
}

// intercept stands around every call. It gives errors their codes, and makes a
// panic cost no more than the call.
func (s *service) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicked(info.FullMethod, cause)
		}
	}()
	if err := checkNames(req); err != nil {
		return nil, s.fail(ctx, err)
	}
	resp, err = handler(ctx, req)
	return resp, s.fail(ctx, err)
}

// panicked logs the cause of a panic, where it happened, and returns what the
// client is told.
func (s *service) panicked(method string, cause any) error {
	s.opts.Log.Error("a request panicked", "method", method, "cause", cause, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "internal error")
}

// checkNames looks at the model, the version and the repository that a message names
// before anything else does. None is for the method to judge.
func checkNames(req any) error {
	var name string
	switch req := req.(type) {
	case *kservepb.SystemSharedMemoryStatusRequest, *kservepb.SystemSharedMemoryRegisterRequest, *kservepb.SystemSharedMemoryUnregisterRequest,
		*kservepb.CudaSharedMemoryStatusRequest, *kservepb.CudaSharedMemoryRegisterRequest, *kservepb.CudaSharedMemoryUnregisterRequest:
		return nil // theirs are names of regions
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

// fail makes err one of grpc's, unless it is one. When to come back is told twice: in
// the trailer, in the words of HTTP, and exactly, where it was predicted, in grpc's
// own words.
func (s *service) fail(ctx context.Context, err error) error {
	if after := kserve.RetryAfter(err); after != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("retry-after", after)) // fails only outside a call
	}
	if in := kserve.RetryIn(err); in > 0 {
		return withRetry(s.withCode(err), in)
	}
	return s.withCode(err)
}

// withRetry adds to an error of grpc when to come back.
func withRetry(err error, in time.Duration) error {
	detailed, failed := status.Convert(err).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(in)})
	if failed != nil {
		return err // it is still told in the trailer
	}
	return detailed.Err()
}

// withCode makes err one of grpc's, unless it is one, in Triton's way if that is asked
// for.
func (s *service) withCode(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := infer.CodeOf(err)
	if s.opts.TritonStatus {
		code = kserve.TritonCode(code)
	}
	return status.Error(kserve.GRPCCode(code), kserve.Worded(err, nil).Error())
}
