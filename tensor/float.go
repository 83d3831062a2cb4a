package tensor

import (
	"encoding/binary"
	"math"
)

// Float returns the first element of data, whose type t is a floating-point type.
func Float(t Type, data []byte) float64 {
	switch t {
	case FP64:
		return math.Float64frombits(binary.LittleEndian.Uint64(data))
	case FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
	case BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16))
	}
	return half(binary.LittleEndian.Uint16(data))
}

// half returns the value of a half-precision number.
func half(bits uint16) float64 {
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
