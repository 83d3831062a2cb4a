package kservegrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// A codec is the plain one, but for reading: a message beyond the limits is not
// read, because its bytes can become a hundred times as many in memory.
type codec struct {
	encoding.CodecV2

	limits *kserve.Limits
}

// received is a message that is being read, and what is wrong with it.
type received struct {
	message any
	err     error
}

func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*received)
	if !ok {
		return c.unmarshal(data, v)
	}
	m.err = c.unmarshal(data, m.message)
	return nil
}

func (c *codec) unmarshal(data mem.BufferSlice, message any) error {
	flat := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer flat.Free()
	if err := c.check(flat.ReadOnlyData(), message); err != nil {
		return err
	}
	if err := unmarshal.Unmarshal(flat.ReadOnlyData(), message.(proto.Message)); err != nil {
		return infer.Errorf(infer.Invalid, "the message cannot be read: %w", err)
	}
	return nil
}

// Nobody asks for fields that are not known, and keeping them takes five times
// their bytes.
var unmarshal = proto.UnmarshalOptions{DiscardUnknown: true}

func (c *codec) check(data []byte, message any) error {
	t := tally{limits: c.limits}
	if _, ok := message.(*kservepb.ModelInferRequest); ok {
		return t.request(data)
	}
	return t.other(data)
}

// withReasons returns the service with methods that answer with the code of what
// is wrong with a message. By itself grpc says that the server is to blame.
func withReasons(service *grpc.ServiceDesc) *grpc.ServiceDesc {
	changed := *service
	changed.Methods = make([]grpc.MethodDesc, 0, len(service.Methods))
	for _, m := range service.Methods {
		handler := m.Handler
		m.Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return handler(srv, ctx, func(message any) error {
				m := received{message: message}
				if err := decode(&m); err != nil {
					return err
				}
				return withCode(infer.CodeOf(m.err), m.err)
			}, interceptor)
		}
		changed.Methods = append(changed.Methods, m)
	}
	return &changed
}
