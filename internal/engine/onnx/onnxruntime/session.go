package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/shoal-serving/shoal/tensor"
)

// A Session is a loaded model. Any number of calls may run it concurrently.
type Session struct {
	Inputs, Outputs []Port

	runtime *Runtime
	session *C.OrtSession
}

// Load loads a model from a file. If ctx ends, it stops between two of the model's operators
// and returns an error. The caller must close the session, after all its calls.
func (r *Runtime) Load(ctx context.Context, file string, opts SessionOptions) (*Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	options, err := r.options(opts)
	if err != nil {
		return nil, err
	}
	defer C.shoal_options_release(r.ort, options)
	session, err := r.create(ctx, file, options, opts.Weights)
	if err != nil {
		return nil, err
	}
	s := &Session{runtime: r, session: session}
	if err := s.describe(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// describe reads the ports of the session.
func (s *Session) describe() error {
	inputs, err := s.ports(C.LIST_INPUTS)
	if err != nil {
		return err
	}
	defaults, err := s.ports(C.LIST_DEFAULTS)
	if err != nil {
		return err
	}
	for i := range defaults {
		defaults[i].Optional = true
	}
	s.Inputs = append(inputs, defaults...)
	s.Outputs, err = s.ports(C.LIST_OUTPUTS)
	return err
}

func (r *Runtime) create(ctx context.Context, file string, options *C.OrtSessionOptions, weights *Weights) (*C.OrtSession, error) {
	var container *C.OrtPrepackedWeightsContainer
	if weights != nil {
		container = weights.container
	}
	var cancelling sync.WaitGroup // the options must not be freed before the cancel function has returned
	cancelling.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer cancelling.Done()
		C.shoal_options_cancel(r.ort, options)
	})
	name := C.CString(file)
	var session *C.OrtSession
	err := r.error(C.shoal_session(r.ort, name, options, container, &session))
	C.free(unsafe.Pointer(name))
	if stop() {
		cancelling.Done()
	}
	cancelling.Wait()
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return session, err
}

func (r *Runtime) options(opts SessionOptions) (*C.OrtSessionOptions, error) {
	var options *C.OrtSessionOptions
	settings := C.struct_settings{
		level: C.int(optimiseLevels[opts.Optimise]), threads: C.int(max(1, opts.Threads)),
		branches: C.int(opts.Parallel), parallel: C.bool(opts.Parallel > 0),
		arena: C.bool(!opts.NoArena), pattern: C.bool(!opts.NoPattern),
	}
	if err := r.error(C.shoal_options(r.ort, settings, &options)); err != nil {
		return nil, err
	}
	if err := r.set(options, opts); err != nil {
		C.shoal_options_release(r.ort, options)
		return nil, err
	}
	return options, nil
}

// set sets the options that have their own function in the API.
func (r *Runtime) set(options *C.OrtSessionOptions, opts SessionOptions) error {
	// A thread that spins while it waits for work takes a core from the server.
	config := map[string]string{"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
	maps.Copy(config, opts.Config)
	for _, key := range slices.Sorted(maps.Keys(config)) {
		err := withStrings(key, config[key], func(k, v *C.char) error { return r.error(C.shoal_options_set(r.ort, options, k, v)) })
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	for _, library := range opts.Operators {
		name := C.CString(library)
		err := r.error(C.shoal_options_operators(r.ort, options, name))
		C.free(unsafe.Pointer(name))
		if err != nil {
			return fmt.Errorf("%w %s: %w", ErrOperators, library, err)
		}
	}
	if opts.Weights != nil {
		if err := opts.Weights.addTo(options); err != nil {
			return err
		}
	}
	if opts.CUDA == nil {
		return nil
	}
	return r.setGPU(options, *opts.CUDA, opts)
}

// setGPU adds the providers of a GPU. The library asks them in the order in which they are
// added.
func (r *Runtime) setGPU(options *C.OrtSessionOptions, device int, opts SessionOptions) error {
	if opts.TensorRT != nil {
		keys, values, free := providerOptions(device, opts.TensorRT)
		err := r.error(C.shoal_options_tensorrt(r.ort, options, &keys[0], &values[0], C.size_t(len(keys))))
		free()
		if err != nil {
			return fmt.Errorf("%w %d: %w", ErrTensorRT, device, err)
		}
	}
	keys, values, free := providerOptions(device, opts.CUDAOptions)
	err := r.error(C.shoal_options_cuda(r.ort, options, &keys[0], &values[0], C.size_t(len(keys))))
	free()
	if err != nil {
		return fmt.Errorf("%w %d: %w", ErrCUDA, device, err)
	}
	return nil
}

// providerOptions returns options with the device as C strings, which free frees.
func providerOptions(device int, opts map[string]string) (keys, values []*C.char, free func()) {
	add := func(key, value string) { keys, values = append(keys, C.CString(key)), append(values, C.CString(value)) }
	add("device_id", strconv.Itoa(device))
	for _, key := range slices.Sorted(maps.Keys(opts)) {
		add(key, opts[key])
	}
	return keys, values, func() {
		for _, s := range slices.Concat(keys, values) {
			C.free(unsafe.Pointer(s))
		}
	}
}

func withStrings(a, b string, do func(a, b *C.char) error) error {
	ca, cb := C.CString(a), C.CString(b)
	defer C.free(unsafe.Pointer(ca))
	defer C.free(unsafe.Pointer(cb))
	return do(ca, cb)
}

func (s *Session) ports(list C.enum_list) ([]Port, error) {
	r := s.runtime
	var n C.size_t
	if err := r.error(C.shoal_count(r.ort, s.session, list, &n)); err != nil {
		return nil, err
	}
	ports := make([]Port, 0, n)
	for i := range n {
		var p C.struct_port
		if err := r.error(C.shoal_port_open(r.ort, s.session, list, i, &p)); err != nil {
			return nil, err
		}
		ports = append(ports, readPort(&p))
		C.shoal_port_close(r.ort, &p)
	}
	return ports, nil
}

func readPort(p *C.struct_port) Port {
	port := Port{Name: C.GoString(p.name), Kind: kindName(int(p.kind), int(p.element))}
	if p.kind == kindTensor {
		port.Type, port.AnyShape = typeOf(p.element), !bool(p.shaped)
	}
	for _, d := range unsafe.Slice(p.dims, p.rank) {
		port.Dims = append(port.Dims, int64(d))
	}
	for _, symbol := range unsafe.Slice(p.symbols, p.rank) {
		port.Symbols = append(port.Symbols, C.GoString(symbol))
	}
	return port
}

const kindTensor = 1

var kindNames = [...]string{"unknown", "tensor", "sequence", "map", "opaque", "sparse tensor", "optional"}

// elementOf maps a type to the library's enum; 0 for types that the library does not have.
var elementOf = func() (of [tensor.BF16 + 1]C.int) {
	for i, e := range elements {
		of[e.typ] = C.int(i)
	}
	of[tensor.Invalid] = 0
	return of
}()

func typeOf(element C.int) tensor.Type { return TypeOf(int(element)) }

func kindName(kind, element int) string {
	if kind < 0 || kind >= len(kindNames) {
		return fmt.Sprintf("kind %d", kind)
	}
	if kind != kindTensor {
		return kindNames[kind]
	}
	if element < 0 || element >= len(elements) {
		return fmt.Sprintf("tensor(element %d)", element)
	}
	return "tensor(" + elements[element].name + ")"
}

// Close unloads the model and returns its memory to the system. Outputs of its calls remain
// valid until they are released.
func (s *Session) Close() {
	C.shoal_session_release(s.runtime.ort, s.session)
	C.shoal_malloc_trim()
}
