package python

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// A frame is one message between the server and a worker.
//
// The server and a worker exchange frames over two sockets, and share two regions of
// memory: one that the server writes and the worker reads, and one for the opposite
// direction. worker/shoal_wire.py defines the same numbers.
//
// A frame has a fixed size, and may be followed by a text. The sockets preserve message
// boundaries (SOCK_SEQPACKET), so that frames are never split or merged, and threads of
// the worker can send without a lock. Anything that can be long is in shared memory, and
// the frame says where: the table of a batch, and its tensors.
//
// Over the first socket the server sends requests and the worker responds. The goroutine
// that sent the request reads the response.
//
//	server                     worker
//	MEMORY (descriptor)  ───▶            new input or output memory, replaces the previous one
//	LOAD   (document)    ───▶            import the model, auto_complete_config
//	                     ◀───  LOADED (document)
//	INIT   (document)    ───▶            initialize
//	                     ◀───  READY
//	RUN    (table)       ───▶            execute
//	                     ◀───  NEED_MEMORY, more output memory: MEMORY follows
//	                     ◀───  RAN    (table)
//	                     ◀───  FAILED (text), instead of any other response
//	                     ◀───  OPEN_PROBE (conn), before READY: a connection for readiness probes
//	                     ◀───  OPEN_RESPONSES (conn), before RAN: a connection for the responses to one request
//	FINISH               ───▶            finalize and exit
//
// Over the second socket the model sends at any time, from any thread.
//
//	◀───  LOG    (text)
//	◀───  TRACEBACK (text), of an exception
//	◀───  CALL   (conn, payload): run an inference request, or load or unload a model
//	◀───  OPEN_CALLS (conn), once: a connection for worker calls
//
// Each call, and the responses to each request, has a connection of its own, so that many
// can be in flight, from any thread, without waiting for each other. The worker creates
// both ends and passes one. Payloads go over it, each in a memory file that is passed with
// its frame; see payload.
//
//	                     ◀───  SEND   (payload), a response to the request
//	REPLY  (payload)     ───▶            a response to the call
//
//	                     ◀───  WORKER_CALL (text), see workerCall
//	REPLY  (text)        ───▶            a number, or an error
//
//	PROBE                ───▶            is_ready
//	                     ◀───  READY     with the result
//
// A side closes its end when it sends or wants nothing more.
//
// A request that is cancelled while it runs is marked so by a word in its table.
type frame struct {
	kind   kind
	flags  uint16
	number uint32 // of the request; responses repeat it
	a, b   uint64 // LOAD, INIT, RUN, LOADED, RAN: offset and length; MEMORY, NEED_MEMORY: length; payloads: length of the document and of all; OPEN_RESPONSES: index of the request; READY to a PROBE: 1 or 0
	text   string // FAILED, LOG, WORKER_CALL and TRACEBACK only
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
	kindNeedMemory
	kindLog
	kindCall
	kindOpenResponses
	kindSend
	kindOpenCalls
	kindWorkerCall
	kindOpenProbe
	kindTraceback
)

// Flags.
const (
	inputMemory      = 0 // MEMORY
	outputMemory     = 1
	inputsKept       = 1 // RAN, FAILED: the model still uses arrays in the input memory
	rowsJoined       = 2 // LOADED: the model takes the rows of a batch joined
	loadedRetryApart = 4 // LOADED: a failed batch may be split and run again
	lastResponse     = 1 // SEND, REPLY: no response follows
	senderDropped    = 2 // SEND: the model dropped the response sender without a final response
)

const (
	frameSize = memfd.FrameSize
	maxText   = 16 << 10

	countSize     = 8
	requestSize   = 56
	cancelledAt   = 44 // offset in a request
	tensorSize    = 32
	responseSize  = 16
	maxDimensions = 64 // numpy's limit

	alignment = 64 // of tensors: a cache line
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
	case kindFailed, kindLog, kindWorkerCall, kindTraceback:
		f.text = strings.ToValidUTF8(string(b[frameSize:]), "?") // gRPC and JSON require valid UTF-8
	case kindLoaded, kindReady, kindRan, kindNeedMemory, kindCall, kindOpenResponses, kindSend, kindOpenCalls, kindOpenProbe:
		if len(b) > frameSize {
			return f, fmt.Errorf("a frame of kind %d with %d bytes, expected %d", f.kind, len(b), frameSize)
		}
	default:
		return f, fmt.Errorf("a frame of kind %d, which workers do not send", f.kind)
	}
	return f, nil
}

func align(n, to int) int { return (n + to - 1) &^ (to - 1) }

// A layout is where the parts of a batch go in the input memory: its tensors one after the
// other, followed by its table. The output memory has the same order.
type layout struct {
	table      int      // offset
	size       int      // of tensors and table
	parameters [][]byte // of each request as JSON; nil if no request has any
	traces     []string // contexts of requests that are traced, as JSON; nil if none is
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
		if req.Trace != nil {
			if l.traces == nil {
				l.traces = make([]string, len(calls))
			}
			l.traces[i] = encodeTrace(req.Trace.Compute())
		}
		if len(req.Parameters) > 0 && l.parameters == nil {
			l.parameters = make([][]byte, len(calls))
		}
		if len(req.Parameters) > 0 {
			l.parameters[i] = encodeParameters(req.Parameters)
		}
		table = align(table+len(req.ID)+len(req.CorrelationName)+len(l.parametersOf(i))+len(l.traceOf(i)), 8)
	}
	l.size = l.table + table
	return l
}

// parametersOf returns the parameters of request i.
func (l *layout) parametersOf(i int) []byte {
	if l.parameters == nil {
		return nil
	}
	return l.parameters[i]
}

// traceOf returns the trace context of request i.
func (l *layout) traceOf(i int) string {
	if l.traces == nil {
		return ""
	}
	return l.traces[i]
}

// encodeTrace returns a context as models of Triton read it: headers, as a JSON object.
func encodeTrace(c trace.Context) string {
	headers := map[string]string{"traceparent": c.Traceparent()}
	if c.State != "" {
		headers["tracestate"] = c.State
	}
	text, _ := json.Marshal(headers) // strings can always be encoded
	return string(text)
}

// A writer writes a table to memory, which must be large enough.
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

// writeBatch writes a batch to memory. It appends the offsets of the requests' cancelled
// words to cancelled and returns the result.
func writeBatch(memory []byte, l layout, calls []engine.Call, cfg *modelconfig.Config, cancelled []int) []int {
	w := writer{memory, l.table}
	w.u32(uint32(len(calls)), 0)
	offset := 0
	for i := range calls {
		req := calls[i].Request
		cancelled = append(cancelled, w.at+cancelledAt)
		w.u32(uint32(len(req.Inputs)), uint32(len(req.Outputs)), uint32(len(req.ID)), uint32(len(l.parametersOf(i))))
		w.u64(uint64(req.Timeout.Microseconds()), req.Priority, req.Correlation)
		w.u32(req.Flags, 0, uint32(len(req.CorrelationName)), uint32(len(l.traceOf(i))))
		index := 0
		for k := range req.Inputs {
			x := &req.Inputs[k]
			for cfg.Inputs[index].Optional && cfg.Inputs[index].Name != x.Name {
				index++ // the request omits it
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
		w.at += copy(w.b[w.at:], l.parametersOf(i))
		w.at = align(w.at-l.table+copy(w.b[w.at:], l.traceOf(i)), 8) + l.table
	}
	return cancelled
}

// outputIndex returns the index of an output in the configuration. The output exists: the
// request was checked.
func outputIndex(cfg *modelconfig.Config, name string) int {
	for i := range cfg.Outputs {
		if cfg.Outputs[i].Name == name {
			return i
		}
	}
	return 0
}

// A reader decodes a table that a worker wrote.
type reader struct {
	memfd.Reader
	outputs []byte // not decoded yet
}

// readAnswers decodes the table of a worker's response into calls. The caller passes
// copies of table and outputs, which the worker cannot change. The output tensors are
// views of outputs, each aligned to a cache line. opened says for which requests the model
// sends responses separately; so it does for calls that are Streaming already.
func readAnswers(table, outputs []byte, calls []engine.Call, opened []bool, cfg *modelconfig.Config) error {
	r := reader{memfd.NewReader(table), outputs}
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
		case failed == 2 && (i < len(opened) && opened[i] || calls[i].Streaming):
			calls[i].Streaming = true // its responses are sent over a connection
		case failed == 3 && cfg.Iterative():
			calls[i].Again = true
			calls[i].Streaming = calls[i].Streaming || i < len(opened) && opened[i]
		case failed != 0:
			r.Fail("a response that has %d where 0 to 3 belongs", failed)
		default:
			r.response(&calls[i], int64(count), cfg)
			r.parameters(&calls[i], parameters)
		}
	}
	return r.End()
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
			r.Fail("output %s with the unknown type number %d", cfg.Outputs[index].Name, code)
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
			x.Shape[d] = int64(min(r.U64(), math.MaxInt64)) // too large a size fails the tensor's check
		}
		for _, other := range c.Outputs.Tensors {
			if other.Name == x.Name {
				r.Fail("output %s twice", x.Name)
			}
		}
		c.Outputs.Tensors = append(c.Outputs.Tensors, x)
	}
}

// codes are infer codes by Triton's error numbers.
var codes = [...]infer.Code{
	infer.Internal, infer.Internal, infer.NotFound, infer.Invalid, infer.Unavailable, infer.Unsupported, infer.Invalid, infer.Cancelled,
}

func codeOf(code uint32) infer.Code {
	if int64(code) >= int64(len(codes)) {
		return infer.Internal
	}
	return codes[code]
}
