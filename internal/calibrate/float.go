package calibrate

import (
	"encoding/binary"
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

// decode returns the first number in data.
func decode(t tensor.Type, data []byte) float64 {
	switch t {
	case tensor.FP64:
		return math.Float64frombits(binary.LittleEndian.Uint64(data))
	case tensor.FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
	case tensor.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16))
	}
	return decodeFP16(binary.LittleEndian.Uint16(data))
}

// decodeFP16 returns the value of a half-precision number.
func decodeFP16(bits uint16) float64 {
	sign := 1.0
	if bits>>15 == 1 {
		sign = -1
	}
	exponent, fraction := int(bits>>10&(1<<5-1)), float64(bits&(1<<10-1))
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 1<<5 - 1:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
