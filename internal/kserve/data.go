package kserve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

var (
	errCount = errors.New("another number of elements than the shape has")
	errRange = errors.New("a number does not fit the datatype")
)

// appendData appends the elements of a JSON array to dst in the encoding of a tensor. It
// fails unless the array has the given number of elements. offset is that of the array in
// the document, for error messages.
func appendData(dst []byte, t tensor.Type, elements int64, text []byte, offset int64, limits *Limits) ([]byte, error) {
	s := scanner{text: text, limits: limits}
	for range elements {
		more, err := s.next()
		if err == nil && !more {
			err = errCount
		}
		at := s.pos
		if err == nil {
			dst, err = s.appendElement(dst, t)
		}
		if err != nil {
			return dst, elementError(err, t, offset+int64(at))
		}
	}
	more, err := s.next()
	if more {
		err = errCount
	}
	if err != nil {
		return dst, elementError(err, t, offset+int64(s.pos))
	}
	return dst, nil
}

// appendSingle appends an element that is not in an array.
func appendSingle(dst []byte, t tensor.Type, text []byte, offset int64, limits *Limits) ([]byte, error) {
	s := scanner{text: text, limits: limits}
	dst, err := s.appendElement(dst, t)
	if err != nil {
		return dst, elementError(err, t, offset)
	}
	return dst, nil
}

// elementError returns the error for an element that begins at offset.
func elementError(err error, t tensor.Type, offset int64) error {
	if errors.Is(err, errCount) {
		return unparsable("data", tritonReason(err, t)) // the error is not about one element
	}
	e := unparsable("data", fmt.Sprintf("%s at offset %d", tritonReason(err, t), offset))
	if errors.Is(err, errMismatch) || errors.Is(err, errRange) {
		return e.WithHint("the elements of datatype %v are %s", t, elementsOf(t))
	}
	return e
}

// elementsOf describes the elements of a datatype in JSON.
func elementsOf(t tensor.Type) string {
	switch t {
	case tensor.Bool:
		return "true or false"
	case tensor.Bytes:
		return "strings"
	case tensor.FP32, tensor.FP64:
		return "numbers"
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return fmt.Sprintf("whole numbers of at least 0 that fit %d bits", 8*t.Size())
	}
	return fmt.Sprintf("whole numbers that fit %d bits", 8*t.Size())
}

// withCountHint adds how many elements the data of an input has and needs to an error about
// the data, if the two differ.
func withCountHint(err error, in *tensor.Tensor, p *pending) error {
	if e, ok := errors.AsType[*infer.Error](err); ok && e.Hint == "" {
		e.Hint = countHint(in, p.elements, p.text)
	}
	return err
}

// countHint says how many elements a JSON array has, and how many the shape of its input
// needs; "" if the two are equal, or the array is not valid.
func countHint(in *tensor.Tensor, want int64, text []byte) string {
	json := jsontext.NewDecoder(bytes.NewReader(text))
	got := int64(0)
	for {
		token, err := json.ReadToken()
		switch {
		case errors.Is(err, io.EOF) && got != want:
			return fmt.Sprintf("'data' of input '%s' has %d elements, and its shape %s needs %d", in.Name, got, tensor.ShapeText(in.Shape), want)
		case err != nil:
			return ""
		}
		if kind := token.Kind(); kind != '[' && kind != ']' {
			got++
		}
	}
}

func (s *scanner) appendElement(dst []byte, t tensor.Type) ([]byte, error) {
	switch t {
	case tensor.Bool:
		b, err := s.boolean()
		return append(dst, b), err
	case tensor.Bytes:
		start := len(dst)
		dst, err := s.appendString(append(dst, 0, 0, 0, 0))
		size := len(dst) - start - 4
		if err == nil {
			err = s.limits.CheckString(int64(size)) // hence it fits into four bytes
		}
		binary.LittleEndian.PutUint32(dst[start:], uint32(size))
		return dst, err
	}
	var n number
	if err := s.number(&n); err != nil {
		return dst, err
	}
	return n.append(dst, t)
}

func (n *number) append(dst []byte, t tensor.Type) ([]byte, error) {
	var bits uint64
	var fits bool
	switch t {
	case tensor.FP32:
		f, ok := n.float32()
		bits, fits = uint64(math.Float32bits(f)), ok
	case tensor.FP64:
		f, ok := n.float64()
		bits, fits = math.Float64bits(f), ok
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		v, ok := n.int(8 * t.Size())
		bits, fits = uint64(v), ok
	default:
		bits, fits = n.uint(8 * t.Size())
	}
	if !fits {
		return dst, n.mismatch(t)
	}
	switch t.Size() {
	case 1:
		return append(dst, byte(bits)), nil
	case 2:
		return binary.LittleEndian.AppendUint16(dst, uint16(bits)), nil
	case 4:
		return binary.LittleEndian.AppendUint32(dst, uint32(bits)), nil
	}
	return binary.LittleEndian.AppendUint64(dst, bits), nil
}

// mismatch returns the error for a number of the wrong kind or out of range.
func (n *number) mismatch(t tensor.Type) error {
	float := t == tensor.FP32 || t == tensor.FP64
	unsigned := t >= tensor.Uint8 && t <= tensor.Uint64
	if !float && !n.integer || unsigned && n.negative {
		return errMismatch
	}
	return errRange
}

// tritonReason returns Triton's wording for err, if Triton has one.
func tritonReason(err error, t tensor.Type) string {
	switch {
	case errors.Is(err, errCount):
		return "Shape does not match true shape of 'data' field"
	case !errors.Is(err, errMismatch):
		return err.Error()
	}
	switch t {
	case tensor.Bool:
		return "attempt to access JSON non-boolean as boolean"
	case tensor.Bytes:
		return "attempt to access JSON non-string as string"
	case tensor.FP32, tensor.FP64:
		return "attempt to access JSON non-number as double"
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		return "attempt to access JSON non-signed-integer as signed-integer"
	}
	return "attempt to access JSON non-unsigned-integer as unsigned-integer"
}
