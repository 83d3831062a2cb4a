// Package tensor holds typed, shaped bytes as they travel from a client to an
// engine and back: types and their sizes, checked shapes, views of rows, and
// joining and splitting along the batch dimension.
//
// A [Tensor] does not own its memory. Functions that pass one document its owner.
// Numbers are little-endian and row-major, as the KServe v2 protocol sends them.
package tensor

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"strconv"
)

// A Type is the type of a tensor's elements. The values are those of DataType
// in a model's configuration.
type Type uint8

// The element types of the KServe v2 protocol. The zero Type is invalid.
const (
	Invalid Type = iota
	Bool
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	FP32
	FP64
	Bytes // strings of any bytes: a 4-byte length before each element
	BF16
)

var types = [...]struct {
	name string
	size int
}{
	Invalid: {"INVALID", 0},
	Bool:    {"BOOL", 1},
	Uint8:   {"UINT8", 1},
	Uint16:  {"UINT16", 2},
	Uint32:  {"UINT32", 4},
	Uint64:  {"UINT64", 8},
	Int8:    {"INT8", 1},
	Int16:   {"INT16", 2},
	Int32:   {"INT32", 4},
	Int64:   {"INT64", 8},
	FP16:    {"FP16", 2},
	FP32:    {"FP32", 4},
	FP64:    {"FP64", 8},
	Bytes:   {"BYTES", 0},
	BF16:    {"BF16", 2},
}

// String returns the protocol's name of the type, such as "FP32".
func (t Type) String() string {
	if int(t) >= len(types) {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return types[t].name
}

// Size returns the bytes of one element, or 0 for [Bytes], whose elements
// differ in size, and for [Invalid].
func (t Type) Size() int {
	if int(t) >= len(types) {
		return 0
	}
	return types[t].size
}

// ParseType returns the type with the protocol's name, and whether there is one. Each request has
// such names: a switch takes a tenth of the instructions of a search.
func ParseType(name string) (Type, bool) {
	switch name {
	case "BOOL":
		return Bool, true
	case "UINT8":
		return Uint8, true
	case "UINT16":
		return Uint16, true
	case "UINT32":
		return Uint32, true
	case "UINT64":
		return Uint64, true
	case "INT8":
		return Int8, true
	case "INT16":
		return Int16, true
	case "INT32":
		return Int32, true
	case "INT64":
		return Int64, true
	case "FP16":
		return FP16, true
	case "FP32":
		return FP32, true
	case "FP64":
		return FP64, true
	case "BYTES":
		return Bytes, true
	case "BF16":
		return BF16, true
	}
	return Invalid, false
}

// A Tensor is a named array. The zero Tensor is empty and invalid.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int64
	Data  []byte
}

// ShapeText returns a shape in the form "[3,48,320]".
func ShapeText(shape []int64) string {
	text := []byte("[")
	for i, d := range shape {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, d, 10)
	}
	return string(append(text, ']'))
}

// Elements returns how many elements a shape has. It refuses negative
// dimensions and products that overflow, because shapes come from clients.
func Elements(shape []int64) (int64, error) {
	n := uint64(1)
	for _, d := range shape {
		over, product := bits.Mul64(n, uint64(d))
		if d <= 0 || over > 0 || product > math.MaxInt64 {
			return countElements(shape)
		}
		n = product
	}
	return int64(n), nil
}

// countElements is Elements for a shape that has no elements, or an error.
func countElements(shape []int64) (int64, error) {
	n, zero := int64(1), false
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		case d == 0:
			zero = true // keep looking: a later dimension may still be negative
		case n > math.MaxInt64/d:
			return 0, fmt.Errorf("shape %v has more elements than can be counted", shape)
		default:
			n *= d
		}
	}
	if zero {
		return 0, nil
	}
	return n, nil
}

// ByteSize returns the bytes that a tensor of type t and the given shape
// holds. It is an error for [Bytes], whose size is not a matter of its shape.
func ByteSize(t Type, shape []int64) (int64, error) {
	size := int64(t.Size())
	if size == 0 {
		return 0, fmt.Errorf("elements of type %v have no fixed size", t)
	}
	n, err := Elements(shape)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt64/size {
		return 0, fmt.Errorf("shape %v of %v has more bytes than can be counted", shape, t)
	}
	return n * size, nil
}

// Check returns an error unless Data holds exactly what Type and Shape say.
func (t *Tensor) Check() error {
	if t.Type == Bytes {
		want, err := Elements(t.Shape)
		if err != nil {
			return err
		}
		return checkElements(t.Data, want)
	}
	want, err := ByteSize(t.Type, t.Shape)
	if err != nil {
		return err
	}
	if int64(len(t.Data)) != want {
		return fmt.Errorf("%d bytes of data, but shape %v of %v takes %d", len(t.Data), t.Shape, t.Type, want)
	}
	return nil
}

func checkElements(data []byte, want int64) error {
	for n := range want {
		size, ok := elementSize(data)
		if !ok {
			return fmt.Errorf("data ends in element %d of %d", n, want)
		}
		data = data[size:]
	}
	if len(data) > 0 {
		return fmt.Errorf("%d bytes of data after the last of %d elements", len(data), want)
	}
	return nil
}

// elementSize returns the size of the first element of data, including its length
// prefix. ok is false if data ends before the element does.
func elementSize(data []byte) (size int, ok bool) {
	if len(data) < 4 {
		return 0, false
	}
	n := uint64(binary.LittleEndian.Uint32(data)) + 4
	return int(n), n <= uint64(len(data))
}

// Strings yields the elements of a [Bytes] tensor that passed
// [Tensor.Check], as views of its data.
func (t *Tensor) Strings() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for data := t.Data; len(data) > 0; {
			size, ok := elementSize(data)
			if !ok || !yield(data[4:size]) {
				return
			}
			data = data[size:]
		}
	}
}

// AppendString appends s as one element of a [Bytes] tensor.
func AppendString[S ~string | ~[]byte](data []byte, s S) []byte {
	data = binary.LittleEndian.AppendUint32(data, uint32(len(s)))
	return append(data, s...)
}
