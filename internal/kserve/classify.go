package kserve

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// maxRanked is the largest number of elements in a row that is classified, as in Triton, and of classes
// of all rows together: the text of a class can be forty times as large as its element.
const maxRanked = 1_000_000

// Classes is the number of classes that a request asks for instead of an output, by the
// name of the output. The zero value asks for none.
type Classes map[string]uint64

// AddOutput adds the output name to req. If classes is not 0, the response has that many
// classes in its place. If an output is added twice, the first call counts.
func (c *Classes) AddOutput(req *infer.Request, name string, classes uint64) {
	if classes > 0 && !slices.Contains(req.Outputs, name) {
		if *c == nil {
			*c = Classes{}
		}
		(*c)[name], req.Convert = classes, c.convert
	}
	req.Outputs = append(req.Outputs, name)
}

// convert implements [infer.Request.Convert]. It replaces each row of an output with its
// largest elements, as "value:index", or "value:index:label" if the index has a label.
//
// The classes are left to the garbage collector; resp.Memory does not change.
func (c Classes) convert(resp *infer.Response, batched bool, labels map[string][]string) error {
	for i := range resp.Outputs {
		out := &resp.Outputs[i]
		if c[out.Name] == 0 {
			continue
		}
		if err := classify(out, c[out.Name], batched, labels[out.Name]); err != nil {
			resp.Release()
			return err
		}
	}
	return nil
}

func classify(out *tensor.Tensor, most uint64, batched bool, labels []string) error {
	appendRow := rankers[out.Type]
	if appendRow == nil {
		return infer.Errorf(infer.Invalid, "class result not available for output '%s' due to unsupported type '%v'", out.Name, out.Type)
	}
	if err := out.Check(); err != nil {
		return err
	}
	shape, rows := out.Shape, int64(1)
	batched = batched && len(shape) > 0
	if batched {
		rows, shape = shape[0], shape[1:]
	}
	elements, err := tensor.Elements(shape)
	if err != nil {
		return err
	}
	if elements > maxRanked {
		return infer.Errorf(infer.Invalid, "output '%s' has %d elements in a row, of which at most %d can be classified", out.Name, elements, maxRanked)
	}
	count := int64(min(most, uint64(elements)))
	if rows > maxRanked/max(count, 1) {
		return infer.Errorf(infer.Invalid, "output '%s' has %d rows with %d classes each, and may have %d classes: ask for fewer", out.Name, rows, count, maxRanked)
	}
	size := elements * int64(out.Type.Size())
	var data []byte
	for row := range rows {
		data = appendRow(data, out.Data[row*size:(row+1)*size], int(count), labels)
	}
	out.Type, out.Data = tensor.Bytes, data
	out.Shape = []int64{count}
	if batched {
		out.Shape = []int64{rows, count}
	}
	return nil
}

// rankers are the implementations for all types that can be ordered and printed.
var rankers = map[tensor.Type]func(dst, row []byte, count int, labels []string) []byte{
	tensor.Uint8:  appendClasses[uint8],
	tensor.Uint16: appendClasses[uint16],
	tensor.Uint32: appendClasses[uint32],
	tensor.Uint64: appendClasses[uint64],
	tensor.Int8:   appendClasses[int8],
	tensor.Int16:  appendClasses[int16],
	tensor.Int32:  appendClasses[int32],
	tensor.Int64:  appendClasses[int64],
	tensor.FP32:   appendClasses[float32],
	tensor.FP64:   appendClasses[float64],
}

// rankable are the Go types of those elements.
type rankable interface {
	uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | float32 | float64
}

// appendClasses appends the largest elements of a row as elements of a BYTES tensor. Equal
// elements keep their order, and NaNs come last.
func appendClasses[T rankable](dst, row []byte, count int, labels []string) []byte {
	values := make([]T, len(row)/binary.Size(T(0)))
	_, _ = binary.Decode(row, binary.LittleEndian, values) // the sizes match
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	var class []byte
	for _, i := range order[:count] {
		class = append(appendValue(class[:0], values[i]), ':')
		class = strconv.AppendInt(class, int64(i), 10)
		if i < len(labels) && labels[i] != "" {
			class = append(append(class, ':'), labels[i]...)
		}
		dst = tensor.AppendString(dst, class)
	}
	return dst
}

// appendValue appends a number as C's printf does: integers without a decimal point,
// floats with six digits after it.
func appendValue[T rankable](dst []byte, v T) []byte {
	var f float64
	switch v := any(v).(type) {
	case float32:
		f = float64(v)
	case float64:
		f = v
	default:
		return fmt.Append(dst, v)
	}
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	return strconv.AppendFloat(dst, f, 'f', 6, 64)
}
