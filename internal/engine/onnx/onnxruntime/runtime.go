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

// Built reports whether the program was built with the binding, which requires cgo.
const Built = true

// A Runtime is an open library. Its methods may be called concurrently.
//
// The library has one log per process: that of a second Runtime has no effect while another is
// open.
type Runtime struct {
	ort     *C.struct_ort // never freed: outputs are freed through it, and may outlive the Runtime
	library string
}

// tuneMalloc configures the C library's allocator once, before ONNX Runtime allocates.
// Without it, glibc keeps most of the memory that an unloaded model has freed: in one arena
// per thread, and below blocks that are still in use.
var tuneMalloc = sync.OnceFunc(func() { C.shoal_malloc_tune() })

// Open opens the library. The caller must close the Runtime, after all its sessions.
func Open(opts Options) (*Runtime, error) {
	tuneMalloc()
	if err := disableTelemetry(); err != nil {
		return nil, err
	}
	// Absolute, because dlopen searches the system's directories for a name without a
	// slash.
	library, err := filepath.Abs(opts.Library)
	if err != nil {
		return nil, err
	}
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	r := &Runtime{ort: (*C.struct_ort)(C.calloc(1, C.sizeof_struct_ort)), library: library}
	if text := C.shoal_open(r.ort, name); text != nil {
		C.free(unsafe.Pointer(r.ort))
		return nil, fmt.Errorf("ONNX Runtime cannot be opened from %s: %s", library, C.GoString(text))
	}
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// Never deleted: the library keeps using it if another Runtime is open when this one is
	// closed.
	handle := cgo.NewHandle(log)
	if err := r.error(C.shoal_start(r.ort, C.uintptr_t(handle))); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Version returns the version of the library, such as "1.30.0".
func (r *Runtime) Version() string { return C.GoString(r.ort.version) }

// Library returns the path of the library.
func (r *Runtime) Library() string { return r.library }

// CUDA reports whether the library was built with CUDA support. Whether the machine has a
// GPU and its driver is known only when a model is loaded on it.
func (r *Runtime) CUDA() bool { return slices.Contains(r.Providers(), "CUDAExecutionProvider") }

// Providers returns the names of the library's execution providers, such as
// "CPUExecutionProvider".
func (r *Runtime) Providers() []string {
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

// Close ends the library's threads. The library stays in memory, because it cannot be
// unloaded safely.
func (r *Runtime) Close() {
	C.shoal_stop(r.ort)
}

// error converts a status to an error and releases it. It returns nil for no status.
func (r *Runtime) error(status *C.OrtStatus) error {
	if status == nil {
		return nil
	}
	defer C.shoal_status_release(r.ort, status)
	return &Error{Code(C.shoal_status_code(r.ort, status)), C.GoString(C.shoal_status_text(r.ort, status))}
}
