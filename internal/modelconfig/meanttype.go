package modelconfig

import (
	"fmt"
	"strings"

	"github.com/shoal-serving/shoal/tensor"
)

// commonTypes are the datatypes by their names in NumPy, PyTorch, TensorFlow and ONNX.
var commonTypes = map[string]tensor.Type{
	"float": tensor.FP32, "float32": tensor.FP32, "single": tensor.FP32, "fp": tensor.FP32,
	"float64": tensor.FP64, "double": tensor.FP64,
	"float16": tensor.FP16, "half": tensor.FP16, "bfloat16": tensor.BF16,
	"int": tensor.Int64, "long": tensor.Int64, "integer": tensor.Int64, "short": tensor.Int16, "byte": tensor.Uint8,
	"boolean": tensor.Bool,
	"str":     tensor.Bytes, "string": tensor.Bytes, "bytes": tensor.Bytes, "object": tensor.Bytes,
}

// numpyTypes are NumPy's names of datatypes.
var numpyTypes = map[tensor.Type]string{
	tensor.Bool: "bool", tensor.FP16: "float16", tensor.FP32: "float32", tensor.FP64: "float64",
	tensor.Uint8: "uint8", tensor.Uint16: "uint16", tensor.Uint32: "uint32", tensor.Uint64: "uint64",
	tensor.Int8: "int8", tensor.Int16: "int16", tensor.Int32: "int32", tensor.Int64: "int64",
}

// conversionHint says how to convert data to a datatype.
func conversionHint(t tensor.Type) string {
	if name := numpyTypes[t]; name != "" {
		return fmt.Sprintf("convert the data to %v; in Python, with array.astype(numpy.%s)", t, name)
	}
	return fmt.Sprintf("convert the data to %v", t)
}

// MeantType returns the datatype that was probably meant by an invalid name of one, such as
// float32, TYPE_FLOAT or fp32; [tensor.Invalid] if no guess is likely.
func MeantType(name string) tensor.Type {
	name = strings.ToLower(name)
	for _, prefix := range []string{"type_", "np.", "numpy.", "torch.", "tf."} {
		name = strings.TrimPrefix(name, prefix)
	}
	if t, ok := commonTypes[name]; ok {
		return t
	}
	t, _ := tensor.ParseType(strings.ToUpper(name)) // Invalid if it is unknown
	return t
}
