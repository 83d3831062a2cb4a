package client

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/shoal-serving/shoal/tensor"
)

// A Tensor is a named array: Name, Type, Shape, and Data, which is little-endian and
// row-major. Make one of a Go slice with [NewTensor] or [NewStrings], and read one with
// [Values] or [Strings].
type Tensor = tensor.Tensor

// errMissing is for callers that pass what [Response.Output] returned.
var errMissing = errors.New("client: the response has no such output")

var elementTypes = map[reflect.Kind]tensor.Type{
	reflect.Bool:  tensor.Bool,
	reflect.Uint8: tensor.Uint8, reflect.Uint16: tensor.Uint16, reflect.Uint32: tensor.Uint32, reflect.Uint64: tensor.Uint64,
	reflect.Int8: tensor.Int8, reflect.Int16: tensor.Int16, reflect.Int32: tensor.Int32, reflect.Int64: tensor.Int64,
	reflect.Float32: tensor.FP32, reflect.Float64: tensor.FP64,
}

// NewTensor returns a tensor of the type that T corresponds to, such as FP32 for float32.
// It has one dimension if no shape is given. NewTensor does not check that values has as
// many elements as the shape: [Client.Infer] and [Stream.Send] do.
//
// The tensor shares the memory of values. For FP16 and BF16, which Go does not have, pass
// their bits as uint16 and set Type.
func NewTensor[T tensor.Number](name string, values []T, shape ...int64) Tensor {
	if shape == nil {
		shape = []int64{int64(len(values))}
	}
	return Tensor{Name: name, Type: elementTypes[reflect.TypeFor[T]().Kind()], Shape: shape, Data: tensor.Data(values)}
}

// NewStrings returns a tensor of type BYTES. Like [NewTensor], it has one dimension if no
// shape is given. The tensor has a copy of values.
func NewStrings[S ~string | ~[]byte](name string, values []S, shape ...int64) Tensor {
	if shape == nil {
		shape = []int64{int64(len(values))}
	}
	size := 0
	for _, v := range values {
		size += 4 + len(v)
	}
	data := make([]byte, 0, size)
	for _, v := range values {
		data = tensor.AppendString(data, v)
	}
	return Tensor{Name: name, Type: tensor.Bytes, Shape: shape, Data: data}
}

// Values returns a copy of the elements of t, row by row. It is an error if T does not
// correspond to the type of t, or if t is nil. FP16 and BF16 are read as uint16.
func Values[T tensor.Number](t *Tensor) ([]T, error) {
	if t == nil {
		return nil, errMissing
	}
	want := elementTypes[reflect.TypeFor[T]().Kind()]
	half := want == tensor.Uint16 && (t.Type == tensor.FP16 || t.Type == tensor.BF16)
	if t.Type != want && !half {
		return nil, fmt.Errorf("client: tensor %q is of type %v and cannot be read as %v", t.Name, t.Type, reflect.TypeFor[T]())
	}
	if err := t.Check(); err != nil {
		return nil, fmt.Errorf("client: tensor %q: %w", t.Name, err)
	}
	values := make([]T, len(t.Data)/want.Size())
	data := tensor.Data(values)
	copy(data, t.Data) // not a view: data that came over HTTP may not be aligned
	if want == tensor.Bool {
		for i := range data {
			data[i] = min(data[i], 1) // a bool of Go has no other values
		}
	}
	return values, nil
}

// Strings returns a copy of the elements of t, row by row. It is an error if the type of t
// is not BYTES, or if t is nil.
func Strings(t *Tensor) ([]string, error) {
	if t == nil {
		return nil, errMissing
	}
	if t.Type != tensor.Bytes {
		return nil, fmt.Errorf("client: tensor %q is of type %v and cannot be read as strings", t.Name, t.Type)
	}
	if err := t.Check(); err != nil {
		return nil, fmt.Errorf("client: tensor %q: %w", t.Name, err)
	}
	var values []string
	for s := range t.Strings() {
		values = append(values, string(s))
	}
	return values, nil
}
