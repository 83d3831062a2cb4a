// Package tensorjson reads the elements of tensors that are written as JSON, as KServe v2
// and perf_analyzer's data files have them.
package tensorjson

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/shoal-serving/shoal/tensor"
)

// Elements returns the data of a tensor of type t. The text is valid JSON: an array that is
// flat, or nested by the shape, which Elements does not check. Booleans may also be written as 0 and 1. FP16 and
// BF16 have no form in JSON.
func Elements(t tensor.Type, text []byte) (data []byte, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for d.InputOffset() < int64(len(text)) {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		if delim, ok := token.(json.Delim); ok {
			if delim != '[' && delim != ']' {
				return nil, errors.New("the data is not an array")
			}
			continue
		}
		if data, err = appendElement(data, t, token); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func appendElement(data []byte, t tensor.Type, element json.Token) ([]byte, error) {
	switch v := element.(type) {
	case bool:
		if t == tensor.Bool && v {
			return append(data, 1), nil
		}
		if t == tensor.Bool {
			return append(data, 0), nil
		}
	case string:
		if t == tensor.Bytes {
			return tensor.AppendString(data, v), nil
		}
	case json.Number:
		if value, ok := bitsOf(t, v.String()); ok {
			return append(data, binary.LittleEndian.AppendUint64(nil, value)[:t.Size()]...), nil
		}
	}
	switch v := element.(type) {
	case nil:
		element = "null"
	case string:
		element = strconv.Quote(v)
	}
	return nil, fmt.Errorf("found %v, expected a value of %v", element, t)
}

// bitsOf returns a number as its type has it, in the lowest bits. It is false if the
// type does not hold it.
func bitsOf(t tensor.Type, text string) (value uint64, ok bool) {
	bits := 8 * t.Size()
	var err error
	switch t {
	case tensor.FP32:
		var f float64
		f, err = strconv.ParseFloat(text, bits)
		value = uint64(math.Float32bits(float32(f)))
	case tensor.FP64:
		var f float64
		f, err = strconv.ParseFloat(text, bits)
		value = math.Float64bits(f)
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		var n int64
		n, err = strconv.ParseInt(text, 10, bits)
		value = uint64(n)
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		value, err = strconv.ParseUint(text, 10, bits)
	case tensor.Bool:
		value, err = strconv.ParseUint(text, 10, 1)
	default:
		return 0, false
	}
	return value, err == nil
}
