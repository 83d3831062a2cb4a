package calibrate

import (
	"math"

	"github.com/shoal-serving/shoal/tensor"
)

func isFloat(t tensor.Type) bool {
	return t == tensor.FP16 || t == tensor.BF16 || t == tensor.FP32 || t == tensor.FP64
}

// encode returns the bits of v, which is in [0, 1), truncated to the precision of t.
func encode(t tensor.Type, v float64) uint64 {
	single := math.Float32bits(float32(v))
	switch t {
	case tensor.FP64:
		return math.Float64bits(v)
	case tensor.BF16:
		return uint64(single >> 16)
	case tensor.FP16:
		if v < 1.0/(1<<14) {
			return 0 // would be subnormal
		}
		const biasDifference = 127 - 15 // of the exponents
		return uint64(single>>23-biasDifference)<<10 | uint64(single>>13&(1<<10-1))
	}
	return uint64(single)
}
