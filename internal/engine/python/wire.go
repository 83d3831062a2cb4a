package python

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// The server and a worker send each other frames over two sockets, and share two pieces
// of memory: one that the server writes and the worker reads, and one for the other
// way. worker/shoal_wire.py has the same numbers.
//
// A frame is of fixed size, and may have a text behind it. A socket keeps frames
// apart (SOCK_SEQPACKET), so that none is ever torn in two or glued to the next, and
// threads of the worker may send without a lock. Whatever can be long is in memory,
// and the frame says where: the table of a batch, and its tensors.
//
// Over the first socket the server asks, and the worker answers. Who asked reads it.
//
//	server                     worker
//	MEMORY (descriptor)  ───▶            input or output memory, in place of the one before
//	LOAD   (document)    ───▶            import the model, auto_complete_config
//	                     ◀───  LOADED (document)
//	INIT   (document)    ───▶            initialize
//	                     ◀───  READY
//	RUN    (table)       ───▶            execute
//	                     ◀───  NEED      more output memory: MEMORY follows
//	                     ◀───  RAN    (table)
//	                     ◀───  FAILED (text), in place of any answer
//	                     ◀───  PULSE  (line), before READY: the model can be asked whether it is ready
//	                     ◀───  OPEN   (line), before RAN: responses to one of the requests follow
//	FINISH               ───▶            finalize, and the process ends
//
// Over the second the model speaks, at any time, from any thread.
//
//	◀───  LOG    (text)
//	◀───  CALL   (line, parcel): run a request of the model's, or load or unload another
//	◀───  DESK   (line), once: the model has questions
//
// A line is a socket of its own for one call, or for the responses to one request, so
// that many can be under way, from any thread, and none waits for another. The
// worker makes both ends and passes one. Over it go parcels, each in memory of its own
// that is passed with its frame; see parcel.
//
//	                     ◀───  SEND   (parcel), a response to the request
//	REPLY  (parcel)      ───▶            a response to the call
//
//	                     ◀───  ASK    (text), of a metric or of another model
//	REPLY  (text)        ───▶            a number, or what is wrong
//
//	PROBE                ───▶            is_ready
//	                     ◀───  READY     whether it is
//
// The side that closes its end wants no more, or gives no more.
//
// A request that is cancelled while it runs is told so by a word of its table.
type frame struct {
	kind   kind
	flags  uint16
	number uint32 // of what is answered; answers repeat it
	a, b   uint64 // for LOAD, INIT, RUN, LOADED and RAN: where, and how long; for MEMORY and NEED: how long; for parcels: how long the document is, and all of it; for OPEN: which request; for READY that answers PROBE: 1 or 0
	text   string // for FAILED and LOG
}

type kind uint16

const (
	kindMemory kind = iota + 1
	kindLoad
	kindInit
	kindRun
	kindFinish
	kindReply
	kindProbe

	kindLoaded kind = iota + 9 // 16
	kindReady
	kindRan
	kindFailed
	kindNeed
	kindLog
	kindCall
	kindOpen
	kindSend
	kindDesk
	kindAsk
	kindPulse
)

// Flags.
const (
	inputMemory  = 0 // of MEMORY
	outputMemory = 1
	inputsKept   = 1 // of RAN and FAILED: the model still uses arrays of the inputs
	rowsJoined   = 2 // of LOADED: the model takes the rows of a batch joined
	retryApart   = 4 // of LOADED: a batch that failed may be run again in parts
	lastOne      = 1 // of SEND and REPLY: no other follows
	senderGone   = 2 // of SEND: the model has let go of what sends, and none was the last
)

const (
	frameSize = memfd.FrameSize
	maxText   = 16 << 10

	countSize     = 8
	requestSize   = 56
	cancelledAt   = 44 // in a request
	tensorSize    = 32
	responseSize  = 16
	maxDimensions = 64 // as many as numpy has

	alignment = 64 // of tensors: a line of the cache
)

func (f *frame) append(b []byte) []byte {
	return append(memfd.AppendFrame(b, uint16(f.kind), f.flags, f.number, [3]uint64{f.a, f.b}), f.text...)
}

func readFrame(b []byte) (f frame, err error) {
	if len(b) < frameSize {
		return f, fmt.Errorf("a frame of %d bytes, expected at least %d", len(b), frameSize)
	}
	f.kind, f.flags = kind(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint16(b[2:])
	f.number = binary.LittleEndian.Uint32(b[4:])
	f.a, f.b = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	switch f.kind {
	case kindFailed, kindLog, kindAsk:
		f.text = strings.ToValidUTF8(string(b[frameSize:]), "?") // protocols would not send it otherwise
	case kindLoaded, kindReady, kindRan, kindNeed, kindCall, kindOpen, kindSend, kindDesk, kindPulse:
		if len(b) > frameSize {
			return f, fmt.Errorf("a frame of kind %d with %d bytes, expected %d", f.kind, len(b), frameSize)
		}
	default:
		return f, fmt.Errorf("a frame of kind %d, which is none of a worker's", f.kind)
	}
	return f, nil
}

func align(n, to int) int { return (n + to - 1) &^ (to - 1) }

// A layout says where the parts of a batch go in the inputs' memory: its tensors,
// one behind the other, and its table behind them. The outputs' memory has the same order.
type layout struct {
	table      int      // where it begins
	size       int      // of all
	parameters [][]byte // of each request, as JSON; nil if there are none
}

func layOut(calls []engine.Call) (l layout) {
	table := countSize
	for i := range calls {
		req := calls[i].Request
		table += requestSize + 4*len(req.Outputs)
		for k := range req.Inputs {
			l.table = align(l.table+len(req.Inputs[k].Data), alignment)
			table += tensorSize + 8*len(req.Inputs[k].Shape)
		}
		if len(req.Parameters) > 0 && l.parameters == nil {
			l.parameters = make([][]byte, len(calls))
		}
		if len(req.Parameters) > 0 {
			l.parameters[i] = encodeParameters(req.Parameters)
		}
		table = align(table+len(req.ID)+len(req.CorrelationName)+len(l.of(i)), 8)
	}
	l.size = l.table + table
	return l
}

// of returns the parameters of a request.
func (l *layout) of(i int) []byte {
	if l.parameters == nil {
		return nil
	}
	return l.parameters[i]
}

// A writer writes a table to memory that is large enough.
type writer struct {
	b  []byte
	at int
}

func (w *writer) u32(values ...uint32) {
	for _, v := range values {
		binary.LittleEndian.PutUint32(w.b[w.at:], v)
		w.at += 4
	}
}

func (w *writer) u64(values ...uint64) {
	for _, v := range values {
		binary.LittleEndian.PutUint64(w.b[w.at:], v)
		w.at += 8
	}
}

// writeBatch writes a batch to memory, and returns where in it the words are that
// say that a request was cancelled.
func writeBatch(memory []byte, l layout, calls []engine.Call, cfg *modelconfig.Config, cancelled []int) []int {
	w := writer{memory, l.table}
	w.u32(uint32(len(calls)), 0)
	offset := 0
	for i := range calls {
		req := calls[i].Request
		cancelled = append(cancelled, w.at+cancelledAt)
		w.u32(uint32(len(req.Inputs)), uint32(len(req.Outputs)), uint32(len(req.ID)), uint32(len(l.of(i))))
		w.u64(uint64(req.Timeout.Microseconds()), req.Priority, req.Correlation)
		w.u32(req.Flags, 0, uint32(len(req.CorrelationName)), 0)
		index := 0
		for k := range req.Inputs {
			x := &req.Inputs[k]
			for cfg.Inputs[index].Optional && cfg.Inputs[index].Name != x.Name {
				index++ // it was left out
			}
			w.u32(uint32(index), uint32(x.Type), uint32(len(x.Shape)), 0)
			index++
			w.u64(uint64(offset), uint64(len(x.Data)))
			for _, d := range x.Shape {
				w.u64(uint64(d))
			}
			copy(memory[offset:], x.Data)
			offset = align(offset+len(x.Data), alignment)
		}
		for _, name := range req.Outputs {
			w.u32(uint32(outputIndex(cfg, name)))
		}
		w.at += copy(w.b[w.at:], req.ID)
		w.at += copy(w.b[w.at:], req.CorrelationName)
		w.at = align(w.at-l.table+copy(w.b[w.at:], l.of(i)), 8) + l.table
	}
	return cancelled
}

// outputIndex returns the place of an output in the configuration. The request has
// been checked: it is there.
func outputIndex(cfg *modelconfig.Config, name string) int {
	for i := range cfg.Outputs {
		if cfg.Outputs[i].Name == name {
			return i
		}
	}
	return 0
}

// A reader reads a table that a worker wrote.
type reader struct {
	memfd.Reader
	outputs []byte // that were not read of yet
}

// readAnswers reads the table of a worker's answer. It and the outputs are copies that
// the worker cannot change any more. It sets errors, and outputs, whose data stays where
// it is: each begins on the next line of the cache behind the one before. opened says for
// which requests the model sends responses instead.
func readAnswers(table, outputs []byte, calls []engine.Call, opened []bool, cfg *modelconfig.Config) error {
	r := reader{memfd.Reader{B: table}, outputs}
	if n := r.U32(); r.Err == nil && int64(n) != int64(len(calls)) {
		r.Fail("%d responses for %d requests", n, len(calls))
	}
	r.U32()
	for i := range calls {
		failed, code, count, parameters := r.U32(), r.U32(), r.U32(), r.U32()
		switch {
		case r.Err != nil:
		case failed == 1 && count > maxText:
			r.Fail("an error with a text of %d bytes, expected at most %d", count, maxText)
		case failed == 1:
			text := r.Next(align(int(count), 8))
			if r.Err == nil {
				calls[i].Err = infer.Errorf(codeOf(code), "%s", bytes.ToValidUTF8(text[:count], []byte("?")))
			}
		case failed == 2 && i < len(opened) && opened[i]:
			// its responses are sent
		case failed != 0:
			r.Fail("a response that has %d where 0 or 1 belongs", failed)
		default:
			r.response(&calls[i], int64(count), cfg)
			r.parameters(&calls[i], parameters)
		}
	}
	if r.Err == nil && r.At != len(table) {
		r.Fail("a table of %d bytes of which %d are used", len(table), r.At)
	}
	return r.Err
}

func (r *reader) parameters(c *engine.Call, size uint32) {
	if size == 0 || r.Err != nil {
		return
	}
	if size > maxParameterBytes {
		r.Fail("parameters of %d bytes, expected at most %d", size, maxParameterBytes)
		return
	}
	text := r.Next(align(int(size), 8))
	if r.Err != nil {
		return
	}
	if c.Parameters, c.Err = decodeParameters(text[:size]); c.Err != nil {
		c.Outputs.Tensors = c.Outputs.Tensors[:0]
	}
}

func (r *reader) response(c *engine.Call, count int64, cfg *modelconfig.Config) {
	if count > int64(len(cfg.Outputs)) {
		r.Fail("a response with %d outputs of %d", count, len(cfg.Outputs))
	}
	for k := int64(0); k < count && r.Err == nil; k++ {
		index, code, dims := r.U32(), r.U32(), r.U32()
		r.U32()
		length := r.U64()
		switch {
		case r.Err != nil:
			return
		case int64(index) >= int64(len(cfg.Outputs)):
			r.Fail("output %d, of which the model has %d", index, len(cfg.Outputs))
			return
		case code == uint32(tensor.Invalid) || code > uint32(tensor.BF16):
			r.Fail("output %s of a type with number %d, which there is not", cfg.Outputs[index].Name, code)
			return
		case dims > maxDimensions:
			r.Fail("output %s of %d dimensions, expected at most %d", cfg.Outputs[index].Name, dims, maxDimensions)
			return
		case length > uint64(len(r.outputs)):
			r.Fail("output %s of %d bytes with %d bytes left", cfg.Outputs[index].Name, length, len(r.outputs))
			return
		}
		x := tensor.Tensor{Name: cfg.Outputs[index].Name, Type: tensor.Type(code), Shape: make([]int64, dims), Data: r.outputs[:length:length]}
		r.outputs = r.outputs[min(align(int(length), alignment), len(r.outputs)):]
		for d := range x.Shape {
			x.Shape[d] = int64(min(r.U64(), math.MaxInt64)) // a size that is not true is found when the tensor is checked
		}
		for _, other := range c.Outputs.Tensors {
			if other.Name == x.Name {
				r.Fail("output %s twice", x.Name)
			}
		}
		c.Outputs.Tensors = append(c.Outputs.Tensors, x)
	}
}

// Triton's codes of errors, in its order.
var codes = [...]infer.Code{
	infer.Internal, infer.Internal, infer.NotFound, infer.Invalid, infer.Unavailable, infer.Unsupported, infer.Invalid, infer.Cancelled,
}

func codeOf(code uint32) infer.Code {
	if int64(code) >= int64(len(codes)) {
		return infer.Internal
	}
	return codes[code]
}
