package modelconfig

import (
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
