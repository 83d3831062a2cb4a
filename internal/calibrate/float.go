package calibrate

import (
	"encoding/binary"
	"math"

	"github.com/shoal-serving/shoal/tensor"
)

func isFloat(t tensor.Type) bool {
	return t == tensor.FP16 || t == tensor.BF16 || t == tensor.FP32 || t == tensor.FP64
}

// encode returns the bits of a number from 0 up to, but not with, 1. Small formats
// have it cut off.
func encode(t tensor.Type, v float64) uint64 {
	single := math.Float32bits(float32(v))
	switch t {
	case tensor.FP64:
		return math.Float64bits(v)
	case tensor.BF16:
		return uint64(single >> 16)
	case tensor.FP16:
		if v < 1.0/(1<<14) {
			return 0 // below that the format has another meaning
		}
		const difference = 127 - 15 // of what exponents begin at
		return uint64(single>>23-difference)<<10 | uint64(single>>13&(1<<10-1))
	}
	return uint64(single)
}

// decode returns the number at the front of data.
func decode(t tensor.Type, data []byte) float64 {
	switch t {
	case tensor.FP64:
		return math.Float64frombits(binary.LittleEndian.Uint64(data))
	case tensor.FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
	case tensor.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16))
	}
	return half(binary.LittleEndian.Uint16(data))
}

// half returns the number that 16 bits stand for.
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
