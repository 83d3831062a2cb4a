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
	"unsafe"
)

// Weights are weights that sessions of one model share: as they are in the model's file,
// and as the library packs them for computing.
type Weights struct {
	runtime   *Runtime
	container *C.OrtPrepackedWeightsContainer
	names     []*C.char
	values    []*C.OrtValue
}

// NewWeights returns weights for sessions to share. The caller must close them after these
// sessions, and keep the data of all weights until then.
func (r *Runtime) NewWeights(all []Weight) (*Weights, error) {
	w := &Weights{runtime: r}
	if err := r.error(C.shoal_weights(r.ort, &w.container)); err != nil {
		return nil, err
	}
	for _, from := range all {
		shape, data := (*C.int64_t)(emptyAddr), emptyAddr
		if len(from.Shape) > 0 {
			shape = (*C.int64_t)(unsafe.Pointer(&from.Shape[0]))
		}
		if len(from.Data) > 0 {
			data = unsafe.Pointer(&from.Data[0])
		}
		var value *C.OrtValue
		if err := r.error(C.shoal_weight(r.ort, data, C.size_t(len(from.Data)), shape, C.size_t(len(from.Shape)), C.int(from.Element), &value)); err != nil {
			w.Close()
			return nil, fmt.Errorf("%s: %w", from.Name, err)
		}
		w.names, w.values = append(w.names, C.CString(from.Name)), append(w.values, value)
	}
	return w, nil
}

// addTo makes a session use the weights.
func (w *Weights) addTo(options *C.OrtSessionOptions) error {
	for i, name := range w.names {
		if err := w.runtime.error(C.shoal_options_weight(w.runtime.ort, options, name, w.values[i])); err != nil {
			return fmt.Errorf("%s: %w", C.GoString(name), err)
		}
	}
	return nil
}

// Close frees what the library keeps of the weights.
func (w *Weights) Close() {
	for _, name := range w.names {
		C.free(unsafe.Pointer(name))
	}
	if len(w.values) > 0 {
		C.shoal_values_release(w.runtime.ort, &w.values[0], C.size_t(len(w.values)))
	}
	C.shoal_weights_release(w.runtime.ort, w.container)
	C.shoal_malloc_trim()
}

// Save writes a model to the file to, with the optimisations that a session with these
// options applies, and its large weights to a file with the name weights in the same
// directory. A session that loads it with [OptimiseNothing] computes the same.
func (r *Runtime) Save(ctx context.Context, file, to, weights string, opts SessionOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	opts.Config = maps.Clone(opts.Config)
	if opts.Config == nil {
		opts.Config = map[string]string{}
	}
	opts.Config["session.optimized_model_external_initializers_file_name"] = weights
	opts.Config["session.disable_prepacking"] = "1" // this session never runs
	options, err := r.options(opts)
	if err != nil {
		return err
	}
	defer C.shoal_options_release(r.ort, options)
	name := C.CString(to)
	defer C.free(unsafe.Pointer(name))
	if err := r.error(C.shoal_options_save(r.ort, options, name)); err != nil {
		return err
	}
	session, err := r.create(ctx, file, options, nil)
	if err != nil {
		return err
	}
	C.shoal_session_release(r.ort, session)
	C.shoal_malloc_trim()
	return nil
}
