package tensorjson

import (
	"bytes"
	"math"
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

func TestElementsAreRead(t *testing.T) {
	for _, c := range []struct {
		typ  tensor.Type
		text string
		want []byte
	}{
		{tensor.FP32, `[1, -0.5, 1e-45]`, tensor.Data([]float32{1, -0.5, 1e-45})},
		{tensor.FP64, `[[1.5], [2]]`, tensor.Data([]float64{1.5, 2})},
		{tensor.Int8, `[-128, 127]`, tensor.Data([]int8{-128, 127})},
		{tensor.Int64, `[-9223372036854775808]`, tensor.Data([]int64{math.MinInt64})},
		{tensor.Uint16, `[[[65535]], [[0]]]`, tensor.Data([]uint16{65535, 0})},
		{tensor.Uint64, `[18446744073709551615]`, tensor.Data([]uint64{math.MaxUint64})},
		{tensor.Bool, `[true, false, 1, 0]`, []byte{1, 0, 1, 0}},
		{tensor.Bytes, `["", "fish"]`, []byte("\x00\x00\x00\x00\x04\x00\x00\x00fish")},
		{tensor.FP32, `[]`, nil},
	} {
		if got, err := Elements(c.typ, []byte(c.text)); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%v %s: %v, %v, want %v", c.typ, c.text, got, err, c.want)
		}
	}
}

func TestElementsOfAnotherTypeAreRefused(t *testing.T) {
	for _, c := range []struct {
		typ  tensor.Type
		text string
		want string
	}{
		{tensor.Int8, `[128]`, "found 128, expected a value of INT8"},
		{tensor.Uint8, `[-1]`, "found -1, expected a value of UINT8"},
		{tensor.Int32, `[1.5]`, "found 1.5, expected a value of INT32"},
		{tensor.FP32, `["1"]`, `found "1", expected a value of FP32`},
		{tensor.FP32, `[true]`, "found true, expected a value of FP32"},
		{tensor.FP32, `[null]`, "found null, expected a value of FP32"},
		{tensor.FP32, `[1e39]`, "found 1e39, expected a value of FP32"},
		{tensor.Bytes, `[1]`, "found 1, expected a value of BYTES"},
		{tensor.Bool, `[2]`, "found 2, expected a value of BOOL"},
		{tensor.FP16, `[1]`, "found 1, expected a value of FP16"},
		{tensor.FP32, `{"a": 1}`, "the data is not an array"},
		{tensor.FP32, `[1,,2]`, "invalid character ',' looking for beginning of value"},
	} {
		if got, err := Elements(c.typ, []byte(c.text)); err == nil || err.Error() != c.want {
			t.Errorf("%v %s: %v, %v, want %q", c.typ, c.text, got, err, c.want)
		}
	}
}
