package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/tensor"
)

// npyTypes are the array types of numpy that have the bytes of a tensor type.
var npyTypes = map[string]tensor.Type{
	"|b1": tensor.Bool, "|u1": tensor.Uint8, "|i1": tensor.Int8,
	"<u2": tensor.Uint16, "<u4": tensor.Uint32, "<u8": tensor.Uint64,
	"<i2": tensor.Int16, "<i4": tensor.Int32, "<i8": tensor.Int64,
	"<f2": tensor.FP16, "<f4": tensor.FP32, "<f8": tensor.FP64,
}

var (
	npyType  = regexp.MustCompile(`'descr': *'([^']*)'`)
	npyOrder = regexp.MustCompile(`'fortran_order': *True`)
	npyShape = regexp.MustCompile(`'shape': *\(([0-9, ]*)\)`)
)

// readNpy reads an array that numpy.save wrote.
func readNpy(file string) (tensor.Tensor, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t, err := parseNpy(data)
	if err != nil {
		return t, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// parseNpy reads the format of numpy.save: a magic string, the version, the length of the
// header, the header as the text of a Python dict, and the elements.
func parseNpy(data []byte) (t tensor.Tensor, err error) {
	errFormat := errors.New("not an array that numpy.save wrote")
	rest, ok := bytes.CutPrefix(data, []byte("\x93NUMPY"))
	if !ok || len(rest) < 6 {
		return t, errFormat
	}
	size, start := int(binary.LittleEndian.Uint16(rest[2:])), 4
	if rest[0] > 1 {
		size, start = int(binary.LittleEndian.Uint32(rest[2:])), 6
	}
	if size < 0 || size > len(rest)-start {
		return t, errFormat
	}
	header := string(rest[start : start+size])
	kind, shape := npyType.FindStringSubmatch(header), npyShape.FindStringSubmatch(header)
	if kind == nil || shape == nil {
		return t, fmt.Errorf("%w, or its elements are not numbers", errFormat)
	}
	if t.Type, ok = npyTypes[kind[1]]; !ok {
		return t, fmt.Errorf("arrays of type %s cannot be sent; expected numbers, or use --json for strings", kind[1])
	}
	if npyOrder.MatchString(header) {
		return t, errors.New("the array is in Fortran order; save numpy.ascontiguousarray(a)")
	}
	t.Shape = []int64{}
	for dim := range strings.SplitSeq(strings.TrimRight(shape[1], ", "), ",") {
		if dim = strings.TrimSpace(dim); dim == "" {
			continue
		}
		n, err := strconv.ParseInt(dim, 10, 64)
		if err != nil {
			return t, errFormat
		}
		t.Shape = append(t.Shape, n)
	}
	t.Data = rest[start+size:]
	if err := t.Check(); err != nil {
		return t, fmt.Errorf("the file is damaged: %w", err)
	}
	return t, nil
}
