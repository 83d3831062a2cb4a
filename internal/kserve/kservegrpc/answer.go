package kservegrpc

import (
	"context"
	"math"
	"runtime"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/tensor"
)

// An answer is a ModelInferResponse to be encoded.
type answer struct {
	model, version, id string

	// response has the outputs, and belongs to the answer. Nil means no outputs.
	response *infer.Response

	// loans has the charge for the outputs that grpc sends without a copy. Nil means none.
	loans *loans

	// finality adds the final-response flag. Only streams use it.
	finality finality
}

// A finality says whether more responses to the request follow.
type finality uint8

const (
	unsaid finality = iota
	follows
	final
)

// A streamAnswer is a ModelStreamInferResponse to be encoded.
type streamAnswer struct {
	answer

	failure string
}

// release releases an answer that will not be sent.
func (a *answer) release() {
	if a.loans != nil {
		a.loans.charge.Close()
		a.loans = nil
	}
	if a.response == nil {
		return
	}
	a.response.Release()
	kserve.PutResponse(a.response)
	a.response = nil
}

const (
	// minLent is the size of the smallest output that grpc sends without a copy. Copying
	// smaller ones costs less than tracking their release.
	minLent = 32 << 10

	// Maximum size of a tensor and of a message in addition to their texts, shapes and data.
	tensorOverhead  = 64
	messageOverhead = 64
)

// finalities are the encoded triton_final_response parameters.
var finalities = [...][]byte{
	follows: appendParameter(nil, infer.Parameter{Name: "triton_final_response", Value: false}),
	final:   appendParameter(nil, infer.Parameter{Name: "triton_final_response", Value: true}),
}

// appendParameter appends an entry of the field parameters.
func appendParameter(b []byte, p infer.Parameter) []byte {
	var value []byte
	switch v := p.Value.(type) {
	case bool:
		value = protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), protowire.EncodeBool(v))
	case int64:
		value = protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), uint64(v))
	case string:
		value = protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), strings.ToValidUTF8(v, "�"))
	case float64:
		value = protowire.AppendFixed64(protowire.AppendTag(nil, 4, protowire.Fixed64Type), math.Float64bits(v))
	case uint64:
		value = protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.VarintType), v)
	}
	entry := appendText(nil, 1, strings.ToValidUTF8(p.Name, "�"))
	entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), entry)
}

// marshal returns the encoded message and releases the answer. Memory lent to grpc has
// references of its own.
func (a *answer) marshal() mem.BufferSlice {
	defer a.release()
	head, pool := a.head()
	b := *head
	b = appendText(b, 1, a.model)
	b = appendText(b, 2, a.version)
	b = appendText(b, 3, a.id)
	b = append(b, finalities[a.finality]...)
	var lent mem.BufferSlice
	var cuts []int // offsets in b at which lent buffers are inserted
	if a.response != nil {
		for _, p := range a.response.Parameters {
			b = appendParameter(b, p)
		}
		outputs := a.response.Outputs
		for i := range outputs {
			b = appendOutput(b, &outputs[i])
		}
		for i := range outputs {
			data := outputs[i].Data
			b = append(b, bytesTag(6))
			b = protowire.AppendVarint(b, uint64(len(data)))
			if len(data) < minLent {
				b = append(b, data...)
				continue
			}
			lent, cuts = append(lent, lend(data, a.response.Memory, a.loans)), append(cuts, len(b))
		}
		a.loans = nil // closed when grpc has sent them
	}
	*head = b
	return interleave(mem.NewBuffer(head, pool), cuts, lent)
}

// head returns a buffer for everything that is not lent, and the pool that it returns to.
func (a *answer) head() (*[]byte, mem.BufferPool) {
	size := messageOverhead + len(a.model) + len(a.version) + len(a.id)
	if a.response != nil {
		for i := range a.response.Outputs {
			t := &a.response.Outputs[i]
			size += tensorOverhead + len(t.Name) + protowire.SizeVarint(1<<63)*len(t.Shape)
			if len(t.Data) < minLent {
				size += len(t.Data)
			}
		}
	}
	if mem.IsBelowBufferPoolingThreshold(size) {
		b := make([]byte, 0, size)
		return &b, nil
	}
	b := memory.Get(size)
	*b = (*b)[:0]
	return b, &memory
}

// bytesTag returns the tag of a field with a length, whose number must be below 16: then it is one byte.
func bytesTag(number protowire.Number) byte {
	return byte(protowire.EncodeTag(number, protowire.BytesType))
}

func appendText(b []byte, number protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(append(b, bytesTag(number)), text)
}

// appendOutput appends the description of an output.
func appendOutput(b []byte, t *tensor.Tensor) []byte {
	datatype, shape, size := t.Type.String(), 0, 0
	for _, d := range t.Shape {
		shape += protowire.SizeVarint(uint64(d))
	}
	for _, n := range []int{len(t.Name), len(datatype), shape} {
		if n > 0 {
			size += 1 + protowire.SizeBytes(n)
		}
	}
	b = append(b, bytesTag(5))
	b = protowire.AppendVarint(b, uint64(size))
	b = appendText(b, 1, t.Name)
	b = appendText(b, 2, datatype)
	if shape > 0 {
		b = append(b, bytesTag(3))
		b = protowire.AppendVarint(b, uint64(shape))
		for _, d := range t.Shape {
			b = protowire.AppendVarint(b, uint64(d))
		}
	}
	return b
}

// interleave inserts the lent buffers between the parts of head. It takes ownership of
// head.
func interleave(head mem.Buffer, cuts []int, lent mem.BufferSlice) mem.BufferSlice {
	if len(cuts) == 0 {
		return mem.BufferSlice{head}
	}
	defer head.Free() // its parts have references of their own
	message := make(mem.BufferSlice, 0, 2*len(cuts)+1)
	from := 0
	for i, cut := range cuts {
		message = append(message, head.Slice(from, cut), lent[i])
		from = cut
	}
	if from < head.Len() {
		message = append(message, head.Slice(from, head.Len()))
	}
	return message
}

// charge takes the part of a request's charge that is for outputs that grpc sends without a
// copy, until it has sent them; see [uncompressed]. Smaller outputs are not charged: the number of calls
// bounds them.
func (a *answer) charge(of *budget.Charge) {
	n, size := 0, 0
	for i := range a.response.Outputs {
		if length := len(a.response.Outputs[i].Data); length >= minLent {
			n, size = n+1, size+length
		}
	}
	if n == 0 {
		return
	}
	a.loans = &loans{charge: of.Split(int64(size))}
	a.loans.left.Store(int32(n))
}

// uncompressed has grpc send the answers of a call as they are, and must be called before the first.
// Otherwise grpc compresses answers to compressed requests. It then returns what was lent at once, which
// closes the charge, and holds the compressed answer, which may be as large, until the client reads it.
func uncompressed(ctx context.Context) {
	_ = grpc.SetSendCompressor(ctx, encoding.Identity) // fails only if the call has ended
}

// loans is the charge for outputs that were lent. A nil loans charges nothing.
type loans struct {
	charge budget.Charge
	left   atomic.Int32 // outputs that were not returned
}

// returned reports that an output was returned. The last one closes the charge.
func (l *loans) returned() {
	if l != nil && l.left.Add(-1) == 0 {
		l.charge.Close()
	}
}

// A loan is the memory of outputs while grpc sends from it without a copy. It implements
// the pool of a [mem.Buffer]: grpc returns the buffer to it after sending, and the loan
// then releases the memory.
type loan struct {
	lent
	forgotten runtime.Cleanup
}

// lent is what a loan gives back.
type lent struct {
	memory *buf.Buf
	loans  *loans
}

func (l lent) giveBack() {
	l.memory.Release()
	l.loans.returned()
}

// lend retains memory for grpc. When a connection breaks, grpc drops what it has not sent
// without freeing it; a finalizer then releases the memory, which would leak if Go did not
// allocate it.
func lend(data []byte, memory *buf.Buf, loans *loans) mem.Buffer {
	memory.Retain()
	l := &loan{lent: lent{memory, loans}}
	l.forgotten = runtime.AddCleanup(l, lent.giveBack, l.lent)
	return mem.NewBuffer(&data, l)
}

// Put implements [mem.BufferPool].
func (l *loan) Put(*[]byte) {
	l.forgotten.Stop()
	l.giveBack()
}

// Get implements [mem.BufferPool], and is never called.
func (l *loan) Get(int) *[]byte { panic("kservegrpc: a loan has nothing to give") }

func (a *streamAnswer) marshal() mem.BufferSlice {
	message := a.answer.marshal()
	before := appendText(nil, 1, a.failure)
	before = protowire.AppendTag(before, 2, protowire.BytesType)
	before = protowire.AppendVarint(before, uint64(message.Len()))
	return append(mem.BufferSlice{mem.SliceBuffer(before)}, message...)
}
