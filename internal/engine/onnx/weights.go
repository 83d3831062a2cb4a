package onnx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/tempdir"
)

// The files of a model that was saved so that sessions can share its weights.
const (
	savedModel   = "model.onnx"
	savedWeights = "weights"
)

// sharedWeights are the weights of a model in a file that is mapped into memory once for all
// sessions.
type sharedWeights struct {
	*onnxruntime.Weights
	mapped []byte
}

// Close frees the weights. No session may use them any more.
func (w *sharedWeights) Close() error {
	w.Weights.Close()
	return unmap(w.mapped)
}

// unmap unmaps what mapFile has mapped.
func unmap(mapped []byte) error {
	if mapped == nil {
		return nil
	}
	return unix.Munmap(mapped)
}

// dropPages lets the system drop the pages of the file from memory. Those that are used
// again come back; those that the library has packed are not.
func (w *sharedWeights) dropPages() error {
	if w.mapped == nil {
		return nil
	}
	return unix.Madvise(w.mapped, unix.MADV_DONTNEED)
}

// loadTwo creates two sessions of a model that share its weights.
//
// The library shares weights that have the same name, but its optimisations replace most of
// them by others. So the model is first saved as the library runs it. Both sessions load
// that, without optimising it again. The files have no name any more when loadTwo returns.
func loadTwo(ctx context.Context, r loader, file string, opts, exclusive onnxruntime.SessionOptions) (d *device, err error) {
	dir, err := tempdir.New("weights")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Remove() }() // what stays is swept later
	saved := filepath.Join(dir.Path(), savedModel)
	if err := r.Save(ctx, file, saved, savedWeights, opts); err != nil {
		return nil, err
	}
	weights, err := openWeights(r, dir.Path())
	if err != nil {
		return nil, err
	}
	d = &device{weights: weights}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, to := range []struct {
		session **session
		opts    onnxruntime.SessionOptions
	}{{&d.shared, opts}, {&d.exclusive, exclusive}} {
		to.opts.Optimise, to.opts.Weights = onnxruntime.OptimiseNothing, weights.Weights
		s, err := r.Load(ctx, saved, to.opts)
		if err != nil {
			return d, err
		}
		*to.session = &session{Session: s}
	}
	return d, weights.dropPages()
}

// openWeights maps the weights of a saved model.
func openWeights(r loader, dir string) (_ *sharedWeights, err error) {
	model, err := os.ReadFile(filepath.Join(dir, savedModel))
	if err != nil {
		return nil, err
	}
	mapped, err := mapFile(filepath.Join(dir, savedWeights))
	if err != nil {
		return nil, err
	}
	list, err := readWeights(model, mapped)
	if err == nil {
		var w *onnxruntime.Weights
		if w, err = r.NewWeights(list); err == nil {
			return &sharedWeights{w, mapped}, nil
		}
	}
	return nil, errors.Join(err, unmap(mapped))
}

// mapFile maps a file. It returns nil for a file that does not exist: the library writes
// none if all weights are small.
func mapFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
}

// readWeights returns the weights of a saved model that are in the mapped file. It leaves out
// those that a request may replace, because the library does not treat them as constant.
func readWeights(model, mapped []byte) ([]onnxruntime.Weight, error) {
	var graph []byte
	if err := fields(model, func(field protowire.Number, value []byte, _ uint64) error {
		if field == 7 {
			graph = value
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var all []onnxruntime.Weight
	inputs := map[string]bool{}
	err := fields(graph, func(field protowire.Number, value []byte, _ uint64) error {
		switch field {
		case 5:
			w, external, err := readWeight(value, mapped)
			if external {
				all = append(all, w)
			}
			return err
		case 11:
			return fields(value, func(field protowire.Number, value []byte, _ uint64) error {
				if field == 1 {
					inputs[string(value)] = true
				}
				return nil
			})
		}
		return nil
	})
	constant := all[:0]
	for _, w := range all {
		if !inputs[w.Name] {
			constant = append(constant, w)
		}
	}
	return constant, err
}

// readWeight reads a weight, and reports whether it is in the mapped file.
func readWeight(message, mapped []byte) (w onnxruntime.Weight, external bool, err error) {
	place := map[string]string{}
	err = fields(message, func(field protowire.Number, value []byte, number uint64) error {
		switch field {
		case 1:
			w.Shape = append(w.Shape, int64(number)) //nolint:gosec // the bits of an int64
		case 2:
			w.Element = int(number) //nolint:gosec // a small enum
		case 8:
			w.Name = string(value)
		case 13:
			var key string
			return fields(value, func(field protowire.Number, value []byte, _ uint64) error {
				if field == 1 {
					key = string(value)
				} else if field == 2 {
					place[key] = string(value)
				}
				return nil
			})
		}
		return nil
	})
	if err != nil || len(place) == 0 {
		return w, false, err
	}
	offset, errOffset := strconv.ParseUint(place["offset"], 10, 63)
	length, errLength := strconv.ParseUint(place["length"], 10, 63)
	if place["location"] != savedWeights || errOffset != nil || errLength != nil || offset+length > uint64(len(mapped)) {
		return w, false, fmt.Errorf("the saved weight %s is at %v, which is not in the file of %d bytes", w.Name, place, len(mapped))
	}
	w.Data = mapped[offset : offset+length : offset+length]
	return w, true, nil
}

// fields calls do for each field of a message of a protocol buffer, with its bytes or its
// number.
func fields(message []byte, do func(field protowire.Number, value []byte, number uint64) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value []byte
		var number uint64
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := do(field, value, number); err != nil {
			return err
		}
	}
	return nil
}
