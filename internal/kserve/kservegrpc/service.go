package kservegrpc

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// desc returns the generated service description with custom handlers: those of inferences
// use the messages of [codec], and all respond to an invalid message with the code of its
// error. grpc itself would report an internal error.
func (s *service) desc() *grpc.ServiceDesc {
	d := kservepb.GRPCInferenceService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		m := &d.Methods[i]
		if m.MethodName == "ModelInfer" {
			m.Handler = s.modelInfer()
		} else {
			m.Handler = s.withReasons(m.Handler)
		}
	}
	d.Streams = slices.Clone(d.Streams)
	for i := range d.Streams { // there is only one
		d.Streams[i].Handler = modelStreamInfer
	}
	return &d
}

func (s *service) withReasons(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		var m received
		defer func() { m.charge.Close() }()
		return handler(srv, ctx, func(message any) error {
			m.message = message
			if err := decode(&m); err != nil {
				return err
			}
			return s.withCode(m.err)
		}, interceptor)
	}
}

// modelInfer returns the handler of ModelInfer. It allocates what all calls share once.
func (s *service) modelInfer() grpc.MethodHandler {
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: kservepb.GRPCInferenceService_ModelInfer_FullMethodName}
	answer := func(ctx context.Context, in any) (any, error) { return s.answer(ctx, in.(*request)) }
	return func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := &request{}
		// Needed even if decode fails: it may fail after reading a second message.
		defer in.release()
		defer in.charge.Close()
		if err := decode(in); err != nil {
			return nil, err
		}
		if in.err != nil {
			return nil, s.fail(ctx, in.err)
		}
		return interceptor(ctx, in, info, answer)
	}
}

func modelStreamInfer(srv any, messages grpc.ServerStream) error {
	return srv.(*service).stream(messages)
}
