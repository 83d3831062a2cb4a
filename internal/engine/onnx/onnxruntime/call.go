package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A Call runs a session, one run at a time. Only Terminate may be called concurrently with
// the other methods.
type Call struct {
	session *Session
	call    *C.struct_call
	inputs  []C.struct_input  // views of arrays in C memory
	outputs []C.struct_output // likewise
	values  []*C.OrtValue     // likewise: the results of a run
	names   []string          // of the outputs

	inputNames []string
	optional   []bool     // by the index of the input
	shapes     []int64    // backing array of the shapes of the last run's outputs
	offsets    []C.size_t // for reading strings
	pinner     runtime.Pinner
	aligned    []*buf.Buf // aligned copies of inputs
	shrink     bool       // the next run frees memory

	mu     sync.Mutex // guards the following, for Terminate
	closed bool
}

// NewCall returns a call for runs with the named inputs and outputs, in that order. The
// caller must close it.
func (s *Session) NewCall(inputs, outputs []string, opts CallOptions) (*Call, error) {
	var optional []bool
	for _, name := range inputs {
		at := indexOf(s.Inputs, name)
		if at < 0 {
			return nil, fmt.Errorf("the model has no input %q", name)
		}
		optional = append(optional, s.Inputs[at].Optional)
	}
	for _, name := range outputs {
		if indexOf(s.Outputs, name) < 0 {
			return nil, fmt.Errorf("the model has no output %q", name)
		}
	}
	r := s.runtime
	var status *C.OrtStatus
	call := C.shoal_call(r.ort, C.size_t(len(inputs)), C.size_t(len(outputs)), &status)
	if err := r.error(status); err != nil {
		return nil, err
	}
	c := &Call{
		session: s, call: call, names: slices.Clone(outputs), inputNames: slices.Clone(inputs), optional: optional,
		inputs:  unsafe.Slice(call.in, len(inputs)),
		outputs: unsafe.Slice(call.out, len(outputs)),
		values:  unsafe.Slice(call.results, len(outputs)),
	}
	names := unsafe.Slice(call.names, len(inputs)+len(outputs))
	for i, name := range slices.Concat(inputs, outputs) {
		names[i] = C.CString(name) // freed by Close
	}
	if opts.CanShrink {
		if err := r.error(C.shoal_call_shrinking(r.ort, call)); err != nil {
			c.Close()
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(opts.Config)) {
		err := withStrings(key, opts.Config[key], func(k, v *C.char) error { return r.error(C.shoal_call_set(r.ort, call, k, v)) })
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return c, nil
}

func indexOf(ports []Port, name string) int {
	return slices.IndexFunc(ports, func(p Port) bool { return p.Name == name })
}

// Run runs the session once. The inputs are in the order of NewCall, which may omit those
// that are optional. It does not use the inputs after it has returned. It appends
// the outputs to out; their names and shapes are valid until the next Run, and their data
// until the returned memory is released, to which the caller has one reference.
func (c *Call) Run(in, out []tensor.Tensor) ([]tensor.Tensor, *buf.Buf, error) {
	defer c.releaseInputs()
	if err := c.setInputs(in); err != nil {
		return out, nil, err
	}
	r := c.session.runtime
	err := r.error(C.shoal_run(r.ort, c.session.session, c.call, C.bool(c.shrink)))
	c.shrink = false
	runtime.KeepAlive(in)
	if err != nil {
		return out, nil, err
	}
	res := takeResults(r, c.values)
	before := len(out)
	if out, err = c.read(out, res); err != nil {
		res.free()
		return out[:before], nil, err
	}
	return out, buf.Wrap(nil, res.free), nil
}

// setInputs passes the inputs to the library.
func (c *Call) setInputs(in []tensor.Tensor) error {
	at := 0
	for i := range c.inputs {
		switch {
		case len(in) == len(c.inputs) || at < len(in) && in[at].Name == c.inputNames[i]:
			c.setInput(&in[at], &c.inputs[i])
			at++
		case !c.optional[i]:
			return fmt.Errorf("input %q is missing", c.inputNames[i])
		}
	}
	if at < len(in) {
		return fmt.Errorf("input %q is unknown, or not in the order of %q", in[at].Name, c.inputNames)
	}
	return nil
}

// emptyAddr is the address of data or of a shape without elements, for which the library
// requires a pointer that is not NULL.
var emptyAddr = C.calloc(1, 16)

// setInput passes an input to the library: in place if its data is aligned, else as a copy.
func (c *Call) setInput(t *tensor.Tensor, in *C.struct_input) {
	data := t.Data
	if size := t.Type.Size(); size > 1 && len(data) > 0 && uintptr(unsafe.Pointer(&data[0]))%uintptr(size) != 0 {
		// A view of a network buffer may have any alignment. The library requires numbers
		// to be aligned to their size.
		b := buf.Get(len(data))
		copy(b.B, data)
		c.aligned = append(c.aligned, b)
		data = b.B
	}
	in.element = elementOf[t.Type]
	in.data, in.size = emptyAddr, C.size_t(len(data))
	if len(data) > 0 {
		in.data = c.pin(unsafe.Pointer(&data[0]))
	}
	in.shape, in.rank = (*C.int64_t)(emptyAddr), C.size_t(len(t.Shape))
	if len(t.Shape) > 0 {
		in.shape = (*C.int64_t)(c.pin(unsafe.Pointer(&t.Shape[0])))
	}
}

// pin pins Go memory, so that its address may be stored in C memory. Memory that is not
// Go's, such as outputs of another model or a mapped file, does not move and needs no pin;
// Pin panics for it, and there is no other way to detect it.
func (c *Call) pin(p unsafe.Pointer) (same unsafe.Pointer) {
	same = p
	defer func() { _ = recover() }()
	c.pinner.Pin(p)
	return same
}

// releaseInputs unpins the inputs of a run and releases copies.
func (c *Call) releaseInputs() {
	c.pinner.Unpin()
	for i := range c.inputs { // C memory must not point to memory that is no longer pinned
		c.inputs[i].data, c.inputs[i].shape = nil, nil
	}
	for _, b := range c.aligned {
		b.Release()
	}
	c.aligned = c.aligned[:0]
}

// read appends the outputs to out, as views of the library's memory.
func (c *Call) read(out []tensor.Tensor, res *results) ([]tensor.Tensor, error) {
	c.shapes = c.shapes[:0]
	for i := range c.outputs {
		o := &c.outputs[i]
		from := len(c.shapes)
		for _, d := range unsafe.Slice(o.shape, o.rank) {
			c.shapes = append(c.shapes, int64(d))
		}
		t := tensor.Tensor{Name: c.names[i], Type: typeOf(o.element), Shape: c.shapes[from:len(c.shapes):len(c.shapes)]}
		var err error
		if t.Type == tensor.Bytes {
			t.Data, err = c.readStrings(&t, int(o.text), res, i)
		} else {
			t.Data, err = readNumbers(&t, o.data)
		}
		if err != nil {
			return out, fmt.Errorf("output %s: %w", t.Name, err)
		}
		if c.isInput(t.Data) {
			// The graph passes an input through, and the library does not copy it.
			kept := res.alloc(len(t.Data))
			copy(kept, t.Data)
			t.Data = kept
		}
		out = append(out, t)
	}
	return out, nil
}

func readNumbers(t *tensor.Tensor, data unsafe.Pointer) ([]byte, error) {
	size, err := tensor.ByteSize(t.Type, t.Shape)
	if err != nil || size == 0 {
		return nil, err
	}
	return unsafe.Slice((*byte)(data), size), nil
}

// isInput reports whether data is in the memory of an input, or of its aligned copy.
func (c *Call) isInput(data []byte) bool {
	if len(data) == 0 {
		return false
	}
	at := uintptr(unsafe.Pointer(&data[0]))
	for i := range c.inputs {
		if from := uintptr(c.inputs[i].data); at >= from && at < from+uintptr(c.inputs[i].size) {
			return true
		}
	}
	return false
}

// readStrings returns the strings of an output, each preceded by its length. The library
// writes them without lengths. It writes them to the end of the memory, and readStrings
// moves each forward to its place.
func (c *Call) readStrings(t *tensor.Tensor, text int, res *results, i int) ([]byte, error) {
	n, err := tensor.Elements(t.Shape)
	if err != nil || n == 0 {
		return nil, err
	}
	c.offsets = slices.Grow(c.offsets[:0], int(n))[:n]
	r := c.session.runtime
	head := 4 * int(n)
	data := res.alloc(head + text)
	content := emptyAddr
	if text > 0 {
		content = unsafe.Pointer(&data[head])
	}
	if err := r.error(C.shoal_strings(r.ort, res.values[i], content, C.size_t(text), &c.offsets[0], C.size_t(n))); err != nil {
		return nil, err
	}
	at := 0
	for k, from := range c.offsets {
		end := text
		if k+1 < len(c.offsets) {
			end = int(c.offsets[k+1])
		}
		size := end - int(from)
		copy(data[at+4:at+4+size], data[head+int(from):head+end])
		binary.LittleEndian.PutUint32(data[at:], uint32(size))
		at += 4 + size
	}
	return data, nil
}

// Shrink makes the next run free the memory that the session keeps and does not use, when it
// ends. It has no effect unless the call was created with CanShrink.
func (c *Call) Shrink() { c.shrink = true }

// Terminate stops the current run and all later ones if stop is true, and lets later runs
// proceed again if it is false. A run stops between two of the model's operators.
func (c *Call) Terminate(stop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		C.shoal_call_terminate(c.session.runtime.ort, c.call, C.bool(stop))
	}
}

// Close frees the call. Outputs of its runs remain valid.
func (c *Call) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		C.shoal_call_release(c.session.runtime.ort, c.call)
	}
}

// results are the outputs of one run, in the library's memory. They are pooled together with
// the function that frees them, so that a run does not allocate.
type results struct {
	runtime *Runtime
	values  []*C.OrtValue
	copies  []*buf.Buf // data that could not be used in place
	free    func()
}

var spare sync.Pool

// takeResults makes the results the owner of the values of a run.
func takeResults(r *Runtime, values []*C.OrtValue) *results {
	res, ok := spare.Get().(*results)
	if !ok {
		res = &results{}
		res.free = res.release
	}
	res.runtime = r
	res.values = append(res.values[:0], values...)
	clear(values)
	return res
}

// alloc returns memory that is freed with the results.
func (res *results) alloc(size int) []byte {
	b := buf.Get(size)
	res.copies = append(res.copies, b)
	return b.B
}

func (res *results) release() {
	if len(res.values) > 0 {
		C.shoal_values_release(res.runtime.ort, &res.values[0], C.size_t(len(res.values)))
	}
	for _, b := range res.copies {
		b.Release()
	}
	clear(res.copies)
	res.values, res.copies, res.runtime = res.values[:0], res.copies[:0], nil
	spare.Put(res)
}
