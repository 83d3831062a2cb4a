package kservegrpc

import (
	"log/slog"
	"math"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/panics"
)

// A codec encodes and decodes inferences itself, so that tensors are not copied, and
// leaves all other messages to the standard codec. It does not decode a message that
// exceeds the limits, because it can take a hundred times its size in memory.
type codec struct {
	encoding.CodecV2

	limits *kserve.Limits
	budget *budget.Budget
	log    *slog.Logger
}

// received is a message of any other type, and the error of decoding it.
type received struct {
	message any
	err     error
	charge  budget.Charge // for the message; belongs to its receiver
}

// Unmarshal stores an error in the message if it can. grpc would report an error that
// Unmarshal returns as an internal error of the server, as is a panic.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = c.recovered("decoder of gRPC messages", cause)
		}
	}()
	panics.Point("grpc unmarshal")
	switch m := v.(type) {
	case *request:
		if m.filled { // grpc decodes a second message into the same request, to check that there is none
			m.release()
			m.charge.Close()
			*m = request{}
		}
		m.filled = true
		if isOverBudget(data) {
			m.err = kserve.ErrOverBudget
			return nil
		}
		m.read(data, c.limits, c.budget)
		return nil
	case *received:
		m.charge.Close()
		m.charge = c.budget.Open("")                  // of all that is not an inference
		if m.err = c.receive(data, m); m.err != nil { // the call may last until its client ends it
			proto.Reset(m.message.(proto.Message))
			m.charge.Close()
		}
		return nil
	}
	if err := checkSize(data, maxProbe); err != nil { // a health check
		return err
	}
	return c.unmarshal(data, v)
}

func (c *codec) receive(data mem.BufferSlice, m *received) error {
	if isOverBudget(data) {
		return kserve.ErrOverBudget
	}
	if err := checkSize(data, mostBytes(m.message)); err != nil {
		return err
	}
	if !m.charge.Grow(2 * int64(data.Len())) { // in one piece, and decoded
		return kserve.ErrOverBudget
	}
	return c.unmarshal(data, m.message)
}

const (
	// maxProbe is the size of a health check, and of a message without fields. Clients may send them
	// without credentials, and health checks are not charged: they must be small beside what each call
	// is charged.
	maxProbe = 4 << 10

	// maxOther is the size of any other message that has neither tensors nor files. What is made of it,
	// such as lists and the text of an error, can be many times as large.
	maxOther = 1 << 20
)

// mostBytes returns the size that a message may have.
func mostBytes(message any) int {
	switch message.(type) {
	case *kservepb.RepositoryModelLoadRequest:
		return math.MaxInt
	case *kservepb.ServerLiveRequest, *kservepb.ServerReadyRequest, *kservepb.ServerMetadataRequest:
		return maxProbe
	}
	return maxOther
}

func (c *codec) unmarshal(data mem.BufferSlice, message any) error {
	flat := data.MaterializeToBuffer(&memory)
	defer flat.Free()
	t := tally{limits: c.limits}
	if err := t.countFields(flat.ReadOnlyData()); err != nil {
		return err
	}
	if _, ok := message.(*kservepb.TraceSettingRequest); ok {
		if err := t.countSettings(flat.ReadOnlyData()); err != nil {
			return err
		}
	}
	return merge(flat.ReadOnlyData(), message.(proto.Message))
}

func checkSize(data mem.BufferSlice, most int) error {
	if data.Len() <= most {
		return nil
	}
	return infer.Errorf(infer.Invalid, "the message has %d bytes, and for this method it may have %d", data.Len(), most)
}

// Marshal takes ownership of the outputs of an answer: grpc sends them after the call has
// returned, and then releases them.
func (c *codec) Marshal(v any) (data mem.BufferSlice, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			data, err = nil, c.recovered("encoder of gRPC messages", cause)
		}
	}()
	panics.Point("grpc marshal")
	switch m := v.(type) {
	case *answer:
		return m.marshal(), nil
	case *streamAnswer:
		return m.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}

// recovered reports a panic, which grpc would not recover, and returns the error for the
// client.
func (c *codec) recovered(where string, cause any) error {
	panics.Report(c.log, where, cause)
	return infer.Errorf(infer.Internal, "internal error")
}
