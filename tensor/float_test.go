package tensor

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestFloatReadsAllFloatingPointTypes(t *testing.T) {
	for _, tt := range []struct {
		typ  Type
		bits uint64
		want float64
	}{
		{FP16, 0x3c00, 1},
		{FP16, 0xc000, -2},
		{FP16, 0x7bff, 65504},
		{FP16, 0x0001, math.Ldexp(1, -24)},
		{FP16, 0x8000, 0},
		{FP16, 0x7c00, math.Inf(1)},
		{FP16, 0xfc00, math.Inf(-1)},
		{FP16, 0x7e00, math.NaN()},
		{BF16, 0x3f80, 1},
		{BF16, 0xc040, -3},
		{FP32, uint64(math.Float32bits(0.5)), 0.5},
		{FP64, math.Float64bits(-1e300), -1e300},
	} {
		got := Float(tt.typ, binary.LittleEndian.AppendUint64(nil, tt.bits))
		if got != tt.want && !(math.IsNaN(got) && math.IsNaN(tt.want)) {
			t.Errorf("%v %#x is %v, want %v", tt.typ, tt.bits, got, tt.want)
		}
	}
}
