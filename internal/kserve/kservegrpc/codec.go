package kservegrpc

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// A codec reads and writes inferences itself, so that tensors are not copied, and
// leaves all other messages to the plain codec. A message beyond the limits is not
// read, because its bytes can become a hundred times as many in memory.
type codec struct {
	encoding.CodecV2

	limits *kserve.Limits
}

// received is a message of any other kind, and what is wrong with it.
type received struct {
	message any
	err     error
}

// Unmarshal tells what is wrong with a message in the message, where it can be.
// What it returns, grpc answers as a fault of the server.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *request:
		// grpc reads on, into the same request, to see that there is one message alone.
		m.release()
		*m = request{}
		m.read(data, c.limits)
		return nil
	case *received:
		m.err = c.unmarshal(data, m.message)
		return nil
	}
	return c.unmarshal(data, v)
}

func (c *codec) unmarshal(data mem.BufferSlice, message any) error {
	flat := data.MaterializeToBuffer(&memory)
	defer flat.Free()
	t := tally{limits: c.limits}
	if err := t.other(flat.ReadOnlyData()); err != nil {
		return err
	}
	return merge(flat.ReadOnlyData(), message.(proto.Message))
}

// Marshal takes the outputs of an answer over: grpc writes them after the call has
// returned, and gives them back then.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *answer:
		return m.marshal(), nil
	case *streamAnswer:
		return m.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}
