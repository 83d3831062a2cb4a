package onnxruntime

/*
#cgo linux LDFLAGS: -ldl
#cgo CFLAGS: -Wall -O2
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/cgo"
	"slices"
	"sync"
	"unsafe"
)

// Built says whether the program has the binding; without cgo it has not.
const Built = true

// A Runtime is the opened library. Its methods may be called concurrently.
//
// The library itself has one pool of threads and one log for a process. What a
// second Runtime asks for while another is open has no effect.
type Runtime struct {
	ort     *C.struct_ort // never freed: outputs are given back through it, and may outlive the Runtime
	library string
	pooled  bool // there is a pool of threads that sessions share
}

// tune sets up the C library's memory, once, before the engine asks for any.
// Without it, glibc keeps most of what an unloaded model has given back: in as
// many arenas as there are threads, and below blocks that are still in use.
var tune = sync.OnceFunc(func() { C.shoal_malloc_tune() })

// Open opens the library. The caller closes the Runtime after all its sessions.
func Open(opts Options) (*Runtime, error) {
	tune()
	if err := silence(); err != nil {
		return nil, err
	}
	// Absolute, because dlopen looks for a name without a slash in the system's
	// folders.
	library, err := filepath.Abs(opts.Library)
	if err != nil {
		return nil, err
	}
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	r := &Runtime{ort: (*C.struct_ort)(C.calloc(1, C.sizeof_struct_ort)), library: library, pooled: opts.Threads > 0}
	if text := C.shoal_open(r.ort, name); text != nil {
		C.free(unsafe.Pointer(r.ort))
		return nil, fmt.Errorf("ONNX Runtime cannot be opened from %s: %s", library, C.GoString(text))
	}
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// Never deleted: the library goes on using it if another Runtime is open when
	// this one is closed.
	handle := cgo.NewHandle(log)
	if err := r.error(C.shoal_start(r.ort, C.uintptr_t(handle), C.int(opts.Threads))); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Version returns the version of the library, such as "1.30.0".
func (r *Runtime) Version() string { return C.GoString(r.ort.version) }

// Library returns the path of the library.
func (r *Runtime) Library() string { return r.library }

// CUDA reports whether the library was built to compute on NVIDIA's GPUs. Whether
// there is one, and the driver for it, shows when a model is loaded on it.
func (r *Runtime) CUDA() bool { return slices.Contains(r.providers(), "CUDAExecutionProvider") }

// providers returns the library's names for what it can compute on.
func (r *Runtime) providers() []string {
	var list **C.char
	var n C.int
	if r.error(C.shoal_providers(r.ort, &list, &n)) != nil {
		return nil
	}
	defer C.shoal_providers_release(r.ort, list, n)
	var names []string
	for _, name := range unsafe.Slice(list, n) {
		names = append(names, C.GoString(name))
	}
	return names
}

// Close ends the library's threads. The library stays in memory: it cannot be
// taken out of a running process safely.
func (r *Runtime) Close() {
	C.shoal_stop(r.ort)
}

// error returns what a status says and releases it, or nil for none.
func (r *Runtime) error(status *C.OrtStatus) error {
	if status == nil {
		return nil
	}
	defer C.shoal_status_release(r.ort, status)
	return &Error{Code(C.shoal_status_code(r.ort, status)), C.GoString(C.shoal_status_text(r.ort, status))}
}
