package kserve

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// AppendResponse appends the JSON part of the response to dst. If the client requested
// binary data, the slices of [Request.Binary] follow it. A large part waits for a
// core, until ctx ends.
func (r *Request) AppendResponse(ctx context.Context, dst []byte, resp *infer.Response) ([]byte, error) {
	release, err := limitDocument(ctx, r.JSONSize(resp), encodedDocument)
	if err != nil {
		return nil, err
	}
	defer release()
	dst = append(dst, '{')
	if r.ID != "" {
		dst = append(dst, `"id":`...)
		dst = appendQuoted(dst, r.ID)
		dst = append(dst, ',')
	}
	dst = append(dst, `"model_name":`...)
	dst = appendQuoted(dst, resp.Model)
	dst = append(dst, `,"model_version":`...)
	dst = appendQuoted(dst, resp.Version)
	dst = appendParameters(dst, resp.Parameters)
	dst = append(dst, `,"outputs":[`...)
	for i := range resp.Outputs {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = r.appendOutput(dst, &resp.Outputs[i]); err != nil {
			return nil, err
		}
	}
	return append(dst, ']', '}'), nil
}

// JSONSize returns about how large the data is that AppendResponse appends. Most responses are
// smaller.
func (r *Request) JSONSize(resp *infer.Response) (sum int64) {
	for i := range resp.Outputs {
		if out := &resp.Outputs[i]; !r.isBinary(out.Name) && !r.Shared.hasOutput(out.Name) {
			sum += jsonSize(out)
		}
	}
	return sum
}

// jsonSize returns about how many bytes the elements of a tensor take as JSON.
func jsonSize(t *tensor.Tensor) int64 {
	size := max(1, t.Type.Size())
	width := len("-128,") + 16*(size-1)/7 // of an element, up to one of INT64
	switch t.Type {
	case tensor.Bytes:
		return int64(len(t.Data)) // a length has four bytes, and quotes and a comma three
	case tensor.FP32, tensor.FP64:
		width = len("-0.12345678901234567,")
	}
	return int64(len(t.Data) / size * width)
}

// appendParameters appends the parameters of a response, if it has any. NaN and infinities
// become null.
func appendParameters(dst []byte, parameters []infer.Parameter) []byte {
	if len(parameters) == 0 {
		return dst
	}
	dst = append(dst, `,"parameters":{`...)
	for i, p := range parameters {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendQuoted(dst, p.Name), ':')
		dst = appendParameter(dst, p.Value)
	}
	return append(dst, '}')
}

// appendParameter appends the value of a parameter.
func appendParameter(dst []byte, value any) []byte {
	switch v := value.(type) {
	case bool:
		return strconv.AppendBool(dst, v)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case uint64:
		return strconv.AppendUint(dst, v, 10)
	case float64:
		if number, ok := appendFloat(dst, v); ok {
			return number
		}
	case string:
		return appendQuoted(dst, v)
	}
	return append(dst, `null`...)
}

// Binary yields the data of the outputs sent as binary data, in the order in which the
// JSON part lists them. The data belongs to resp.
func (r *Request) Binary(resp *infer.Response) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range resp.Outputs {
			out := &resp.Outputs[i]
			if r.isBinary(out.Name) && !yield(out.Data) {
				return
			}
		}
	}
}

// isBinary reports whether an output is sent as binary data. The default of the request
// applies only if it lists no outputs.
func (r *Request) isBinary(output string) bool {
	if len(r.Outputs) == 0 {
		return r.binary
	}
	i := slices.Index(r.Outputs, output)
	return i >= 0 && r.binaryOutputs[i]
}

func (r *Request) appendOutput(dst []byte, out *tensor.Tensor) ([]byte, error) {
	dst = append(dst, `{"name":`...)
	dst = appendQuoted(dst, out.Name)
	dst = append(dst, `,"datatype":"`...)
	dst = append(dst, out.Type.String()...)
	dst = append(dst, `","shape":[`...)
	for i, d := range out.Shape {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, d, 10)
	}
	if r.Shared.hasOutput(out.Name) {
		return append(dst, ']', '}'), nil
	}
	if r.isBinary(out.Name) {
		dst = append(dst, `],"parameters":{"binary_data_size":`...)
		dst = strconv.AppendInt(dst, int64(len(out.Data)), 10)
		return append(dst, '}', '}'), nil
	}
	dst = append(dst, `],"data":[`...)
	dst, err := appendElements(dst, out)
	return append(dst, ']', '}'), err
}

// appendElements appends the elements of a tensor as JSON, flat and separated by commas.
// It reads the data byte by byte, because outputs of a split batch may not be aligned.
func appendElements(dst []byte, t *tensor.Tensor) ([]byte, error) {
	switch t.Type {
	case tensor.Bytes:
		return appendStrings(dst, t)
	case tensor.FP16, tensor.BF16:
		return nil, infer.Errorf(infer.Invalid, "sending %v data via JSON is not supported. Please use the binary data format for output %s",
			t.Type, t.Name)
	}
	size := t.Type.Size()
	for data := t.Data; len(data) >= size; data = data[size:] {
		if len(data) < len(t.Data) {
			dst = append(dst, ',')
		}
		var ok bool
		if dst, ok = appendElement(dst, t.Type, data); !ok {
			return nil, infer.Errorf(infer.Invalid, "JSON has no infinity and no NaN. Please use the binary data format for output %s", t.Name)
		}
	}
	return dst, nil
}

func appendElement(dst []byte, t tensor.Type, data []byte) ([]byte, bool) {
	switch t {
	case tensor.Bool:
		return strconv.AppendBool(dst, data[0] != 0), true
	case tensor.Uint8:
		return strconv.AppendUint(dst, uint64(data[0]), 10), true
	case tensor.Uint16:
		return strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint16(data)), 10), true
	case tensor.Uint32:
		return strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint32(data)), 10), true
	case tensor.Uint64:
		return strconv.AppendUint(dst, binary.LittleEndian.Uint64(data), 10), true
	case tensor.Int8:
		return strconv.AppendInt(dst, int64(int8(data[0])), 10), true
	case tensor.Int16:
		return strconv.AppendInt(dst, int64(int16(binary.LittleEndian.Uint16(data))), 10), true
	case tensor.Int32:
		return strconv.AppendInt(dst, int64(int32(binary.LittleEndian.Uint32(data))), 10), true
	case tensor.Int64:
		return strconv.AppendInt(dst, int64(binary.LittleEndian.Uint64(data)), 10), true
	case tensor.FP32:
		return appendFloat(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(data))))
	default:
		return appendFloat(dst, math.Float64frombits(binary.LittleEndian.Uint64(data)))
	}
}

// appendFloat appends f as Triton does: with a decimal point or an exponent, so that
// clients recognize a float. FP32 values are printed with the digits of FP64, because
// clients parse numbers as such. It returns false for values that JSON cannot represent.
func appendFloat(dst []byte, f float64) ([]byte, bool) {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return dst, false
	}
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		return appendExponent(dst, f), true
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if bytes.IndexByte(dst[start:], '.') < 0 {
		dst = append(dst, '.', '0')
	}
	return dst, true
}

// appendExponent appends 1e-7 where strconv would append 1e-07, and 1e21 where it would
// append 1e+21.
func appendExponent(dst []byte, f float64) []byte {
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	i := start + bytes.IndexByte(dst[start:], 'e') + 1
	if dst[i] == '-' {
		i++
	}
	end := i
	for dst[end] == '+' || dst[end] == '0' {
		end++
	}
	return slices.Delete(dst, i, end)
}

func appendStrings(dst []byte, t *tensor.Tensor) ([]byte, error) {
	first := true
	for s := range t.Strings() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		var err error
		if dst, err = jsontext.AppendQuote(dst, s); err != nil {
			return nil, infer.Errorf(infer.Invalid, "an element is not UTF-8, which JSON needs. Please use the binary data format for output %s", t.Name)
		}
	}
	return dst, nil
}

// appendQuoted appends a quoted name. It replaces invalid UTF-8, which no client could
// have sent.
func appendQuoted(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}
