package onnxruntime

import "github.com/shoal-serving/shoal/tensor"

// elements are the library's element types, indexed by its enum.
var elements = [...]struct {
	name string
	typ  tensor.Type
}{
	{"undefined", tensor.Invalid},
	{"float", tensor.FP32},
	{"uint8", tensor.Uint8},
	{"int8", tensor.Int8},
	{"uint16", tensor.Uint16},
	{"int16", tensor.Int16},
	{"int32", tensor.Int32},
	{"int64", tensor.Int64},
	{"string", tensor.Bytes},
	{"bool", tensor.Bool},
	{"float16", tensor.FP16},
	{"double", tensor.FP64},
	{"uint32", tensor.Uint32},
	{"uint64", tensor.Uint64},
	{"complex64", tensor.Invalid},
	{"complex128", tensor.Invalid},
	{"bfloat16", tensor.BF16},
}

// TypeOf returns the type of an element type of the library, whose numbers are those of ONNX
// files; [tensor.Invalid] if the server does not have it.
func TypeOf(element int) tensor.Type {
	if element < 0 || element >= len(elements) {
		return tensor.Invalid
	}
	return elements[element].typ
}
