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

// A client and the server send each other frames over a socket that keeps them apart
// (SOCK_SEQPACKET). What can be long, which is tensors, lies in memory that the client
// makes, passes once and uses again for the next call. python/src/shoal/_wire.py has the
// same numbers.
//
//	client                     server
//	HELLO               ───▶             the version of this protocol; the first frame
//	                    ◀───  WELCOME    how many calls and memories there may be, and how large
//	MEMORY (descriptor) ───▶             memory, with a number
//	FREE                ───▶             it is not used any more
//	INFER  (table)      ───▶             inputs in a memory, and room in it for outputs
//	                    ◀───  ANSWER (table), outputs in that room, or in memory that comes with it
//	CANCEL              ───▶             nobody waits for a call
//	MODEL  (text)       ───▶             its name; none asks only whether models are still being loaded
//	                    ◀───  DESCRIPTION (document)
//	                    ◀───  FAILED (text), in place of any answer; with number 0 it is the last frame
//
// The table of a frame is in the frame, so that nobody can change it while it is read.
// A client that ends, however that happens, closes the socket, and with that all that
// it had is given back.
type frame struct {
	kind    kind
	flags   uint16
	number  uint32 // of a call, which the answer repeats; of a memory
	a, b, c uint64 // HELLO, WELCOME: see hello and welcome; MEMORY: its size; INFER: the memory, and where and how long the room is; FAILED: the code, and µs to wait
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
	nothingElse  = 1 // of INFER: the client sends no other frame before the answer
	withMemory   = 1 // of ANSWER: the outputs are in the memory that came with it
	stillLoading = 1 // of FAILED: the server has not loaded its models yet, so it is too soon to say
)

const (
	protocol  = 1
	frameSize = memfd.FrameSize
	maxFrame  = 64 << 10
	maxText   = 16 << 10
	alignment = 64 // of tensors: a line of the cache
)

func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

func (f *frame) append(b []byte) []byte {
	return append(memfd.AppendFrame(b, uint16(f.kind), f.flags, f.number, [3]uint64{f.a, f.b, f.c}), f.rest...)
}

// readFrame reads a frame of a client's. Its rest is a view of b.
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
		return f, fmt.Errorf("a frame of kind %d, which is none of a client's", f.kind)
	case f.kind != kindInfer && f.kind != kindModel && len(f.rest) > 0:
		return f, fmt.Errorf("a frame of kind %d with %d bytes, expected %d", f.kind, len(b), frameSize)
	case f.kind != kindHello && f.number == 0:
		return f, fmt.Errorf("a frame of kind %d with the number 0, expected 1 or more", f.kind)
	}
	return f, nil
}

// An inference is what an INFER frame asks for.
type inference struct {
	req     *infer.Request // its inputs have no data yet
	places  []place        // of the data
	timeout time.Duration  // 0 means none
	memory  uint32         // 0 means none: no input has any data
	room    place
}

// A place is where something is in a memory. It may lie outside until it is checked.
type place struct{ offset, length uint64 }

// in returns the bytes of a place, and false if some of it is not there.
func (p place) in(memory []byte) ([]byte, bool) {
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

// count reads how many of something follow, each of so many bytes at least.
func (r *reader) count(check func(int) error, least int) int {
	n := int(r.U32())
	if err := check(n); err != nil {
		r.Fail("%w", err)
	}
	if n > (len(r.B)-r.At)/least {
		r.Fail("%d entries in what is left of a table, %d bytes", n, len(r.B)-r.At)
	}
	if r.Err != nil {
		return 0
	}
	return n
}

// readInference reads the table of an INFER frame. It keeps nothing of the frame.
func readInference(f *frame, limits *kserve.Limits) (q inference, err error) {
	r := reader{memfd.Reader{B: f.rest}, limits}
	if f.a > math.MaxUint32 {
		r.Fail("a memory with the number %d, which there is not", f.a)
	}
	q.memory, q.room = uint32(f.a), place{f.b, f.c}
	q.timeout = kserve.Microseconds(r.U64())
	q.req = &infer.Request{Priority: r.U64(), Model: r.text(), Version: r.text()}
	const leastInput, leastOutput = 28, 4
	if n := r.count(limits.CheckInputs, leastInput); n > 0 {
		q.req.Inputs, q.places = make([]tensor.Tensor, n), make([]place, n)
	}
	for i := range q.req.Inputs {
		r.input(&q.req.Inputs[i], &q.places[i])
	}
	for range r.count(limits.CheckOutputs, leastOutput) {
		q.req.Outputs = append(q.req.Outputs, r.text())
	}
	if r.Err == nil && r.At != len(r.B) {
		r.Fail("a table of %d bytes of which %d are used", len(r.B), r.At)
	}
	return q, r.Err
}

func (r *reader) input(x *tensor.Tensor, p *place) {
	x.Name = r.text()
	if code := r.U32(); code < uint32(tensor.Bool) || code > uint32(tensor.BF16) {
		r.Fail("input %q of a type with number %d, which there is not", x.Name, code)
	} else {
		x.Type = tensor.Type(code)
	}
	p.offset, p.length = r.U64(), r.U64()
	if n := r.count(r.limits.CheckDims, 8); n > 0 {
		x.Shape = make([]int64, n)
	}
	for d := range x.Shape {
		x.Shape[d] = int64(min(r.U64(), math.MaxInt64)) // one that is not true is found when the request is checked
	}
}

// fetch gives the inputs their data, and the request one count of the memory that they
// are in then, the caller's. Memory, of which it takes no count otherwise, may be nil.
func (q *inference) fetch(memory *buf.Buf, limits *kserve.Limits) error {
	var shared []byte
	if memory != nil {
		shared = memory.B
	}
	size, lent := 0, true
	for i, p := range q.places {
		x := &q.req.Inputs[i]
		var ok bool
		if x.Data, ok = p.in(shared); !ok {
			return infer.Errorf(infer.Invalid, "found input '%s' of %d bytes from %d on in a memory of %d, expected it to lie inside", x.Name, p.length, p.offset, len(shared))
		}
		size = align(size + len(x.Data))
		if err := limits.CheckBody(int64(size)); err != nil {
			return err
		}
		lent = lent && lendable(x.Type)
	}
	if lent {
		memory.Retain()
		q.req.Memory = memory
		return nil
	}
	return q.copy(size, limits)
}

// lendable reports whether a model may read such numbers where the client can change them
// while it does. What they are used for is computing, so that a client spoils its own answer
// at the worst. Whole numbers may be indices, of which an engine looks whether they are in
// bounds, and then uses them; booleans are counted, and then collected; strings have lengths.
func lendable(t tensor.Type) bool {
	switch t {
	case tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Uint8, tensor.Int8:
		return true
	}
	return false
}

// copy takes the inputs out of the client's memory.
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

// space returns how many bytes the data of tensors takes, each on a line of the cache of
// its own.
func space(tensors []tensor.Tensor) (size int) {
	for i := range tensors {
		size = align(size + len(tensors[i].Data))
	}
	return size
}

// appendOutputs copies outputs to memory, which has room for them, and appends the table
// of an answer to b. The memory lies at an offset in what the client sees.
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

// textOf returns a text as a frame takes it.
func textOf(s string) []byte { return []byte(strings.ToValidUTF8(s[:min(len(s), maxText)], "?")) }
