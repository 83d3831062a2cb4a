package onnx

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// Signature returns the inputs and outputs that an ONNX file declares, without loading it.
// Dims are those of the file, with the batch dimension, and -1 for one of any size. A tensor
// of another kind than the server's types, or without a declared shape, has no Dims.
func Signature(file string) (inputs, outputs []modelconfig.Tensor, err error) {
	s, err := scanFile(file)
	if err != nil {
		return nil, nil, err
	}
	// Older files list weights among the inputs, too.
	return slices.DeleteFunc(s.inputs, func(t modelconfig.Tensor) bool { return s.weights[t.Name] }), s.outputs, nil
}

// port reads the description of an input or output.
func (s *scanner) port(length int64, to *[]modelconfig.Tensor) error {
	text, err := s.text(length)
	if err != nil || text == nil {
		return err
	}
	t := modelconfig.Tensor{Name: string(bytesField(text, 1))}
	typed := bytesField(bytesField(text, 2), 1)
	t.Type = onnxruntime.TypeOf(int(varintField(typed, 1, 0)))
	eachField(bytesField(typed, 2), func(n protowire.Number, dim []byte) {
		if n == 1 {
			t.Dims = append(t.Dims, int64(varintField(dim, 1, ^uint64(0)))) // a dimension with a name, or without a size, is -1
		}
	})
	*to = append(*to, t)
	return nil
}

// eachField calls do for each length-delimited field of a message. It ends at bytes that are
// no message: the library rejects those.
func eachField(message []byte, do func(protowire.Number, []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind == protowire.BytesType {
			if value, n := protowire.ConsumeBytes(message); n >= 0 {
				do(number, value)
			}
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return
		}
		message = message[n:]
	}
}

// bytesField returns a length-delimited field of a message, or nil.
func bytesField(message []byte, number protowire.Number) (value []byte) {
	eachField(message, func(n protowire.Number, v []byte) {
		if n == number {
			value = v
		}
	})
	return value
}

// varintField returns a varint field of a message, or otherwise.
func varintField(message []byte, number protowire.Number, otherwise uint64) uint64 {
	for len(message) > 0 {
		found, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return otherwise
		}
		message = message[n:]
		if found == number && kind == protowire.VarintType {
			if value, n := protowire.ConsumeVarint(message); n >= 0 {
				return value
			}
		}
		if n = protowire.ConsumeFieldValue(found, kind, message); n < 0 {
			return otherwise
		}
		message = message[n:]
	}
	return otherwise
}
