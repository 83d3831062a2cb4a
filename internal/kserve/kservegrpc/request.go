package kservegrpc

import (
	"bytes"
	"math"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// A request is a decoded inference request; see [codec]. Its raw contents are views of
// memory; it owns everything else.
type request struct {
	kservepb.ModelInferRequest

	filled bool         // a message was decoded into it
	memory *buf.Buf     // one reference, owned by the receiver of the message; nil if it has none
	err    error        // of decoding the message
	waiter infer.Waiter // of a request of a stream; else nil
	queued func()       // see [infer.Request.Queued]
	span   *trace.Root  // of a request of a stream that is traced; else nil
	failed string       // class of the error, for span

	// charge is for memory, and for the message until it is decoded. It belongs to the receiver
	// of the message.
	charge budget.Charge

	// The parts of memory: buffers that grpc received, and copies of tensors that were split
	// between several.
	pieces []mem.Buffer
	copies []*buf.Buf

	asked    infer.Request        // the result of decode
	shared   kserve.SharedTensors // of asked
	attached kserve.Attachment    // of shared; released by the method that runs the request

	// Space for one input, which most messages have, allocated with the request.
	room struct {
		input   kservepb.ModelInferRequest_InferInputTensor
		inputs  [1]*kservepb.ModelInferRequest_InferInputTensor
		raw     [1][]byte
		piece   [1]mem.Buffer
		tensors [1]tensor.Tensor
	}
}

// read decodes data into an empty request, and charges all for the memory that it takes.
// data stays the caller's.
func (r *request) read(data mem.BufferSlice, limits *kserve.Limits, all *budget.Budget) {
	size := data.Len()
	rd := reader{wire: newWire(data, size), tally: tally{limits: limits}, message: r, budget: all, size: size}
	r.err = rd.request()
	if r.err == nil {
		r.err = rd.charge()
	}
	if len(r.pieces)+len(r.copies) > 0 {
		r.memory = buf.Wrap(nil, r.free)
	}
	if r.err != nil {
		r.fail()
		return
	}
	if len(r.copies) > 0 { // grpc frees the buffers of which there are no views
		for _, p := range r.pieces {
			size -= p.Len()
		}
		r.charge.Shrink(int64(size))
	}
}

// maxUnread is the size of the name and the id that are kept of a message that was not read.
const maxUnread = 4 << 10

// fail drops what was read of a message, and its charge. The request may wait long for its turn on a
// stream.
func (r *request) fail() {
	r.release()
	r.charge.Close()
	model, id := r.ModelName, r.Id
	if len(model)+len(id) > maxUnread {
		model, id = "", ""
	}
	*r = request{ModelInferRequest: kservepb.ModelInferRequest{ModelName: model, Id: id}, err: r.err, filled: true}
}

// addInput adds an empty input.
func (r *request) addInput() *kservepb.ModelInferRequest_InferInputTensor {
	in := &r.room.input
	if r.Inputs == nil {
		r.Inputs = r.room.inputs[:0]
	} else {
		in = &kservepb.ModelInferRequest_InferInputTensor{}
	}
	r.Inputs = append(r.Inputs, in)
	return in
}

func (r *request) addRaw(data []byte) {
	if r.RawInputContents == nil {
		r.RawInputContents = r.room.raw[:0]
	}
	r.RawInputContents = append(r.RawInputContents, data)
}

// retain retains a buffer.
func (r *request) retain(piece mem.Buffer) {
	if r.pieces == nil {
		r.pieces = r.room.piece[:0]
	}
	piece.Ref()
	r.pieces = append(r.pieces, piece)
}

// release releases the memory, and may be called more than once. Others may still hold
// references to it.
func (r *request) release() {
	r.memory.Release()
	r.memory = nil
}

func (r *request) free() {
	for _, p := range r.pieces {
		p.Free()
	}
	for _, c := range r.copies {
		c.Release()
	}
}

// A reader decodes a message and counts its elements. It checks each limit before it
// allocates memory.
type reader struct {
	wire    wire
	tally   tally
	message *request

	budget  *budget.Budget
	size    int  // of the message
	charged bool // the message is charged
}

// charge charges the message, for the model that it names.
func (r *reader) charge() error {
	if r.charged {
		return nil
	}
	r.charged = true
	r.message.charge = r.budget.OpenModel(r.message.ModelName)
	return r.growCharged(r.size)
}

// grow charges bytes in addition to the message.
func (r *reader) grow(bytes int) error {
	if err := r.charge(); err != nil {
		return err
	}
	return r.growCharged(bytes)
}

func (r *reader) growCharged(bytes int) error {
	if !r.message.charge.Grow(int64(bytes)) {
		return kserve.ErrOverBudget
	}
	return nil
}

func (r *reader) request() error {
	for r.wire.left > 0 {
		number, kind, size, err := r.wire.next()
		if err == nil {
			err = r.field(number, kind, size)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxUncharged is the size of a field that may be copied without a charge. Messages that are
// that short are one buffer.
const maxUncharged = 16 << 10

func (r *reader) field(number protowire.Number, kind protowire.Type, size int) error {
	switch {
	case kind != protowire.BytesType:
		return r.wire.skipValue(number, kind)
	case number == 7:
		return r.raw(size)
	case number > 7:
		r.wire.pass(size)
		return nil
	}
	if size > maxUncharged { // in several buffers, of which lend makes one
		if err := r.grow(size); err != nil {
			return err
		}
		defer r.message.charge.Shrink(int64(size))
	}
	return r.wire.lend(size, func(value []byte) (err error) {
		switch m := r.message; number {
		case 1:
			m.ModelName, err = r.text(value)
		case 2:
			m.ModelVersion, err = r.text(value)
		case 3:
			m.Id, err = r.text(value)
		case 4:
			err = r.parameter(&m.Parameters, value)
		case 5:
			err = r.input(value)
		case 6:
			err = r.output(value)
		}
		return err
	})
}

// raw keeps the data of a tensor in place. It copies only data that is split between
// several buffers.
func (r *reader) raw(size int) error {
	if err := r.tally.raw(); err != nil {
		return err
	}
	data, ok := r.wire.view(size)
	switch {
	case !ok:
		// The name of the model comes first, unless a client wants to be counted otherwise.
		if err := r.grow(buf.Capacity(size)); err != nil {
			return err
		}
		copied := buf.Get(size)
		r.message.copies = append(r.message.copies, copied)
		r.wire.read(copied.B)
		data = copied.B
	case !r.wire.held && size > 0:
		r.wire.held = true
		r.message.retain(r.wire.piece)
	}
	r.message.addRaw(data)
	return nil
}

func (r *reader) text(value []byte) (string, error) {
	if err := r.tally.limits.CheckText(len(value)); err != nil {
		return "", err
	}
	return utf8Text(value)
}

func utf8Text(value []byte) (string, error) {
	if !utf8.Valid(value) {
		return "", infer.Errorf(infer.Invalid, "the message cannot be read: a text is not UTF-8")
	}
	return string(value), nil
}

// parameter adds a map entry.
func (r *reader) parameter(to *map[string]*kservepb.InferParameter, entry []byte) error {
	if err := r.tally.parameter(entry); err != nil {
		return err
	}
	key, value := "", &kservepb.InferParameter{}
	err := fields(entry, func(f field) (err error) {
		switch {
		case f.kind != protowire.BytesType:
		case f.number == 1:
			key, err = utf8Text(f.value)
		case f.number == 2:
			err = merge(f.value, value)
		}
		return err
	})
	if err != nil {
		return err
	}
	if *to == nil {
		*to = map[string]*kservepb.InferParameter{}
	}
	(*to)[key] = value
	return nil
}

func (r *reader) input(message []byte) error {
	if err := r.tally.input(); err != nil {
		return err
	}
	var room elements
	in := r.message.addInput()
	return fields(message, func(f field) (err error) {
		switch {
		case f.number == 3:
			in.Shape, err = r.shape(in.Shape, f)
		case f.kind != protowire.BytesType:
		case f.number == 1:
			in.Name, err = r.text(f.value)
		case f.number == 2:
			in.Datatype, err = r.datatype(f.value)
		case f.number == 4:
			err = r.parameter(&in.Parameters, f.value)
		case f.number == 5:
			if in.Contents == nil {
				if room, err = r.reserve(message); err != nil {
					return err
				}
				in.Contents = &kservepb.InferTensorContents{}
			}
			err = r.contents(in.Contents, f.value, &room)
		}
		return err
	})
}

// reserve counts and charges the typed contents of an input, before the first of them is decoded.
func (r *reader) reserve(input []byte) (elements, error) {
	before := r.tally.decoded
	room, err := r.tally.contents(input)
	if err == nil && r.tally.decoded > before {
		err = r.grow(int(r.tally.decoded - before))
	}
	return room, err
}

func (r *reader) shape(shape []int64, f field) ([]int64, error) {
	n := f.count()
	if err := r.tally.limits.CheckDims(len(shape) + n); err != nil {
		return nil, err
	}
	return varints(shape, f, n, func(v uint64) int64 { return int64(v) })
}

func (r *reader) datatype(value []byte) (string, error) {
	if t, ok := tensor.ParseType(string(value)); ok {
		return t.String(), nil // a constant, which needs no allocation
	}
	return r.text(value)
}

// contents adds typed contents, or a part of them: a message may split them into many
// parts, for which the standard codec takes quadratic time.
func (r *reader) contents(to *kservepb.InferTensorContents, message []byte, room *elements) error {
	return fields(message, func(f field) (err error) {
		switch f.number {
		case 1:
			to.BoolContents, err = varints(to.BoolContents, f, room[1], protowire.DecodeBool)
		case 2:
			to.IntContents, err = varints(to.IntContents, f, room[2], func(v uint64) int32 { return int32(v) })
		case 3:
			to.Int64Contents, err = varints(to.Int64Contents, f, room[3], func(v uint64) int64 { return int64(v) })
		case 4:
			to.UintContents, err = varints(to.UintContents, f, room[4], func(v uint64) uint32 { return uint32(v) })
		case 5:
			to.Uint64Contents, err = varints(to.Uint64Contents, f, room[5], func(v uint64) uint64 { return v })
		case 6:
			to.Fp32Contents, err = fixed(to.Fp32Contents, f, room[6], protowire.Fixed32Type, protowire.ConsumeFixed32, math.Float32frombits)
		case 7:
			to.Fp64Contents, err = fixed(to.Fp64Contents, f, room[7], protowire.Fixed64Type, protowire.ConsumeFixed64, math.Float64frombits)
		case 8:
			if f.kind == protowire.BytesType {
				to.BytesContents = append(withRoom(to.BytesContents, room[8]), bytes.Clone(f.value))
			}
		}
		return err
	})
}

func (r *reader) output(message []byte) error {
	if err := r.tally.output(); err != nil {
		return err
	}
	out := &kservepb.ModelInferRequest_InferRequestedOutputTensor{}
	r.message.Outputs = append(r.message.Outputs, out)
	return fields(message, func(f field) (err error) {
		switch {
		case f.kind != protowire.BytesType:
		case f.number == 1:
			out.Name, err = r.text(f.value)
		case f.number == 2:
			err = r.parameter(&out.Parameters, f.value)
		}
		return err
	})
}

// merge merges part of a message into it.
func merge(part []byte, to proto.Message) error {
	if err := unmarshal.Unmarshal(part, to); err != nil {
		return infer.Errorf(infer.Invalid, "the message cannot be read: %w", err)
	}
	return nil
}

// Unknown fields are not used, and keeping them takes five times their size.
var unmarshal = proto.UnmarshalOptions{DiscardUnknown: true, Merge: true}
