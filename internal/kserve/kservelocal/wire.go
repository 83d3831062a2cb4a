package kservelocal

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/tensor"
)

// A frame is one message between a client and the server.
//
// Frames are sent over a socket that preserves message boundaries (SOCK_SEQPACKET).
// Tensors are in memory that the client creates, passes once, and reuses for later calls.
// python/src/shoal/_wire.py defines the same numbers.
//
//	client                     server
//	HELLO               ───▶             version of this protocol; the first frame
//	                    ◀───  WELCOME    limits: calls, memories and their size
//	MEMORY (descriptor) ───▶             shared memory, with a number
//	FREE                ───▶             unmap it
//	INFER  (table)      ───▶             inputs in a memory, and room in it for outputs
//	                    ◀───  ANSWER (table), outputs in that room, or in memory that comes with it
//	CANCEL              ───▶             cancel a call
//	MODEL  (text)       ───▶             name of a model, and its version; "" asks only whether models are still being loaded
//	                    ◀───  DESCRIPTION (document)
//	                    ◀───  FAILED (text), instead of any other response; with number 0 it is the last frame
//
// Tables are part of their frame, so that the client cannot change one while it is read.
// When a client exits for any reason, the kernel closes the socket, and the server frees
// all its resources.
type frame struct {
	kind    kind
	flags   uint16
	number  uint32 // of a call, repeated in the response; or of a memory
	a, b, c uint64 // HELLO, WELCOME: see hello and welcome; MEMORY: size; INFER: number of the memory, offset and length of the room; MODEL: length of the name, 0 if it has no version; FAILED: code, and microseconds until a retry
	rest    []byte // a table, a text or a document
}

type kind uint16

const (
	kindHello kind = iota + 1
	kindMemory
	kindFree
	kindInfer
	kindCancel
	kindModel

	kindWelcome kind = iota + 10
	kindAnswer
	kindFailed
	kindDescription
)

// Flags.
const (
	noOtherFrame = 1 // INFER: the client sends no other frame before the response
	withMemory   = 1 // ANSWER: the outputs are in the memory that came with it
	stillLoading = 1 // FAILED: the server is still loading its models, so the model may exist later
)

const (
	protocol  = 1
	frameSize = memfd.FrameSize
	maxFrame  = 64 << 10
	maxText   = 16 << 10
	alignment = 64 // of tensors: a cache line
)

func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

func (f *frame) append(b []byte) []byte {
	return append(memfd.AppendFrame(b, uint16(f.kind), f.flags, f.number, [3]uint64{f.a, f.b, f.c}), f.rest...)
}

// readFrame decodes a frame from a client. Its rest is a view of b.
func readFrame(b []byte) (f frame, err error) {
	if len(b) < frameSize {
		return f, fmt.Errorf("a frame of %d bytes, expected at least %d", len(b), frameSize)
	}
	f = frame{
		kind: kind(binary.LittleEndian.Uint16(b)), flags: binary.LittleEndian.Uint16(b[2:]), number: binary.LittleEndian.Uint32(b[4:]),
		a: binary.LittleEndian.Uint64(b[8:]), b: binary.LittleEndian.Uint64(b[16:]), c: binary.LittleEndian.Uint64(b[24:]),
		rest: b[frameSize:],
	}
	switch {
	case f.kind < kindHello || f.kind > kindModel:
		return f, fmt.Errorf("a frame of kind %d, which clients do not send", f.kind)
	case f.kind != kindInfer && f.kind != kindModel && len(f.rest) > 0:
		return f, fmt.Errorf("a frame of kind %d with %d bytes, expected %d", f.kind, len(b), frameSize)
	case f.kind != kindHello && f.number == 0:
		return f, fmt.Errorf("a frame of kind %d with the number 0, expected 1 or more", f.kind)
	}
	return f, nil
}

// An inference is a decoded INFER frame.
type inference struct {
	req     *infer.Request // the inputs have no data yet
	spans   []span         // of the inputs' data
	timeout time.Duration  // 0 means no timeout
	memory  uint32         // 0 if no input has data
	room    span
}

// A span is a range of bytes in a memory. It may be out of bounds until it is checked.
type span struct{ offset, length uint64 }

// slice returns the bytes of a span, and false if it is out of bounds.
func (p span) slice(memory []byte) ([]byte, bool) {
	size := uint64(len(memory))
	if p.offset > size || p.length > size-p.offset {
		return nil, false
	}
	return memory[p.offset : p.offset+p.length : p.offset+p.length], true
}

type reader struct {
	memfd.Reader
	limits *kserve.Limits
}

func (r *reader) text() string {
	n := r.U32()
	if err := r.limits.CheckText(int(n)); err != nil {
		r.Fail("%w", err)
	}
	return string(r.Next(int(n)))
}

// count reads the number of entries that follow, each of which takes least bytes or more.
func (r *reader) count(check func(int) error, least int) int {
	n := int(r.U32())
	if err := check(n); err != nil {
		r.Fail("%w", err)
	}
	if n > len(r.Rest)/least {
		r.Fail("%d entries in what is left of a table, %d bytes", n, len(r.Rest))
	}
	if r.Err != nil {
		return 0
	}
	return n
}

// readInference decodes the table of an INFER frame. It does not retain the frame.
func readInference(f *frame, limits *kserve.Limits) (q inference, err error) {
	r := reader{memfd.NewReader(f.rest), limits}
	if f.a > math.MaxUint32 {
		r.Fail("an unknown memory number %d", f.a)
	}
	q.memory, q.room = uint32(f.a), span{f.b, f.c}
	q.req = &infer.Request{}
	if b := r.Next(16); b != nil {
		q.timeout, q.req.Priority = kserve.Microseconds(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:])
	}
	q.req.Model, q.req.Version = r.text(), r.text()
	const leastInput, leastOutput = 28, 4
	if n := r.count(limits.CheckInputs, leastInput); n > 0 {
		q.req.Inputs, q.spans = make([]tensor.Tensor, n), make([]span, n)
	}
	for i := range q.req.Inputs {
		r.input(&q.req.Inputs[i], &q.spans[i])
	}
	for range r.count(limits.CheckOutputs, leastOutput) {
		q.req.Outputs = append(q.req.Outputs, r.text())
	}
	return q, r.End()
}

func (r *reader) input(x *tensor.Tensor, p *span) {
	x.Name = r.text()
	if b := r.Next(20); b != nil {
		code := binary.LittleEndian.Uint32(b)
		if code < uint32(tensor.Bool) || code > uint32(tensor.BF16) {
			r.Fail("input %q with the unknown type number %d", x.Name, code)
		}
		x.Type = tensor.Type(code)
		p.offset, p.length = binary.LittleEndian.Uint64(b[4:]), binary.LittleEndian.Uint64(b[12:])
	}
	n := r.count(r.limits.CheckDims, 8)
	if n == 0 {
		return
	}
	x.Shape = make([]int64, n)
	for d, dims := 0, r.Next(8*n); d < n; d++ {
		x.Shape[d] = int64(min(binary.LittleEndian.Uint64(dims[8*d:]), math.MaxInt64)) // a wrong size is rejected when the request is checked
	}
}

// attachData sets the data of the inputs, and gives the request a reference to the memory
// that contains it, which the caller releases. memory may be nil.
func (q *inference) attachData(memory *buf.Buf, limits *kserve.Limits) error {
	var shared []byte
	if memory != nil {
		shared = memory.B
	}
	size, lent := 0, true
	for i, p := range q.spans {
		x := &q.req.Inputs[i]
		var ok bool
		if x.Data, ok = p.slice(shared); !ok {
			return infer.Errorf(infer.Invalid, "input '%s' of %d bytes at offset %d is not within the shared memory of %d bytes", x.Name, p.length, p.offset, len(shared))
		}
		size = align(size + len(x.Data))
		if err := limits.CheckBody(int64(size)); err != nil {
			return err
		}
		lent = lent && readableInPlace(x.Type)
	}
	if lent {
		memory.Retain()
		q.req.Memory = memory
		return nil
	}
	return q.copy(size, limits)
}

// readableInPlace reports whether a model may read elements of type t from memory that the
// client can change meanwhile. Floats are only computed with, so that a client can spoil
// only its own results. Integers may be indices, which an engine checks and then uses;
// booleans are counted and then collected; strings have lengths. These are copied.
func readableInPlace(t tensor.Type) bool {
	switch t {
	case tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Uint8, tensor.Int8:
		return true
	}
	return false
}

// copy copies the inputs out of the client's memory.
func (q *inference) copy(size int, limits *kserve.Limits) error {
	q.req.Memory = buf.Get(size)
	at := 0
	for i := range q.req.Inputs {
		x := &q.req.Inputs[i]
		n := copy(q.req.Memory.B[at:], x.Data)
		x.Data = q.req.Memory.B[at : at+n : at+n]
		at = align(at + n)
		if err := limits.CheckStrings(x); err != nil {
			q.req.Memory.Release()
			return err
		}
	}
	return nil
}

// alignedSize returns the size of the tensors' data, each aligned to a cache line.
func alignedSize(tensors []tensor.Tensor) (size int) {
	for i := range tensors {
		size = align(size + len(tensors[i].Data))
	}
	return size
}

// appendOutputs copies outputs to memory, which must be large enough, and appends the
// table of an ANSWER to b. offset is that of memory in the memory the client sees.
func appendOutputs(b []byte, outputs []tensor.Tensor, memory []byte, offset uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(outputs)))
	at := 0
	for i := range outputs {
		x := &outputs[i]
		b = binary.LittleEndian.AppendUint32(b, uint32(len(x.Name)))
		b = append(b, x.Name...)
		b = binary.LittleEndian.AppendUint32(b, uint32(x.Type))
		b = binary.LittleEndian.AppendUint64(b, offset+uint64(at))
		b = binary.LittleEndian.AppendUint64(b, uint64(len(x.Data)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(x.Shape)))
		for _, d := range x.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		at = align(at + copy(memory[at:], x.Data))
	}
	return b
}

// frameText returns s as valid UTF-8, truncated to fit into a frame.
func frameText(s string) []byte { return []byte(strings.ToValidUTF8(s[:min(len(s), maxText)], "?")) }
