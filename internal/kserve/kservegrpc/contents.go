package kservegrpc

import (
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// mismatch returns the type of the contents if they are not for elements of type t, or
// Invalid if they are.
func mismatch(c *kservepb.InferTensorContents, t tensor.Type) tensor.Type {
	for _, field := range []struct {
		t tensor.Type
		n int
	}{
		{tensor.Bool, len(c.GetBoolContents())},
		{tensor.Int32, len(c.GetIntContents())},
		{tensor.Int64, len(c.GetInt64Contents())},
		{tensor.Uint32, len(c.GetUintContents())},
		{tensor.Uint64, len(c.GetUint64Contents())},
		{tensor.FP32, len(c.GetFp32Contents())},
		{tensor.FP64, len(c.GetFp64Contents())},
		{tensor.Bytes, len(c.GetBytesContents())},
	} {
		if field.n > 0 && field.t != fieldOf(t) {
			return field.t
		}
	}
	return tensor.Invalid
}

// fieldOf returns the type of the contents field for elements of type t.
func fieldOf(t tensor.Type) tensor.Type {
	switch t {
	case tensor.Int8, tensor.Int16:
		return tensor.Int32
	case tensor.Uint8, tensor.Uint16:
		return tensor.Uint32
	}
	return t
}

// tensorData converts contents to the data of a tensor, without a copy if the elements
// have the same size. It returns false if an element is out of range.
func tensorData(c *kservepb.InferTensorContents, t tensor.Type) ([]byte, bool) {
	switch t {
	case tensor.Bool:
		return tensor.Data(c.GetBoolContents()), true
	case tensor.Int8:
		return narrow[int8](c.GetIntContents())
	case tensor.Int16:
		return narrow[int16](c.GetIntContents())
	case tensor.Int32:
		return tensor.Data(c.GetIntContents()), true
	case tensor.Int64:
		return tensor.Data(c.GetInt64Contents()), true
	case tensor.Uint8:
		return narrow[uint8](c.GetUintContents())
	case tensor.Uint16:
		return narrow[uint16](c.GetUintContents())
	case tensor.Uint32:
		return tensor.Data(c.GetUintContents()), true
	case tensor.Uint64:
		return tensor.Data(c.GetUint64Contents()), true
	case tensor.FP32:
		return tensor.Data(c.GetFp32Contents()), true
	case tensor.FP64:
		return tensor.Data(c.GetFp64Contents()), true
	case tensor.Bytes:
		return joined(c.GetBytesContents()), true
	}
	return nil, true // FP16 and BF16 exist only as raw contents
}

func narrow[To int8 | int16 | uint8 | uint16, From int32 | uint32](values []From) ([]byte, bool) {
	narrowed := make([]To, len(values))
	for i, v := range values {
		if narrowed[i] = To(v); From(narrowed[i]) != v {
			return nil, false
		}
	}
	return tensor.Data(narrowed), true
}

func joined(elements [][]byte) []byte {
	size := 0
	for _, e := range elements {
		size += 4 + len(e)
	}
	data := make([]byte, 0, size)
	for _, e := range elements {
		data = tensor.AppendString(data, e)
	}
	return data
}
