package kserve

import (
	"math"
	"strconv"
)

// A number is a decoded JSON number: ± mantissa · 10^exponent.
type number struct {
	text     []byte
	mantissa uint64 // may have overflowed if it has more than 19 digits
	count    int    // of its digits, including leading zeros
	exponent int64
	negative bool
	integer  bool // it has neither a decimal point nor an exponent
}

// readDigits reads the digits at the start of text into the mantissa, and returns their
// number.
func (n *number) readDigits(text []byte) int {
	mantissa, i := n.mantissa, 0
	for ; i < len(text); i++ {
		c := text[i] - '0' // greater than 9 if it is not a digit
		if c > 9 {
			break
		}
		mantissa = mantissa*10 + uint64(c)
	}
	n.mantissa = mantissa
	n.count += i
	return i
}

// readExponent reads the exponent after an e, adds it to the number's, and returns its
// length. Larger ones are clamped to 2^40: no text has enough digits after its decimal
// point to compensate for that.
func (n *number) readExponent(text []byte) int {
	i, sign := 0, int64(1)
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		sign = ',' - int64(text[0]) // the comma is between + and - in ASCII
		i++
	}
	first, e := i, int64(0)
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		e = min(e*10+int64(text[i]-'0'), 1<<40)
	}
	if i == first {
		return 0
	}
	n.exponent += sign * e
	return i
}

// tens are the powers of ten that a float64 represents exactly.
var tens = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// fastFloat64 returns the float64 nearest to the number's absolute value, if a single
// operation on two exact operands, which rounds once, yields it.
func (n *number) fastFloat64() (float64, bool) {
	if n.count > 19 || n.mantissa > 1<<53 {
		return 0, false
	}
	switch e := n.exponent; {
	case e == 0:
		return float64(n.mantissa), true
	case e > 0 && e < int64(len(tens)):
		return float64(n.mantissa) * tens[e], true
	case e < 0 && -e < int64(len(tens)):
		return float64(n.mantissa) / tens[-e], true
	}
	return 0, false
}

// float64 returns the nearest float64, and false if the number is out of range.
func (n *number) float64() (float64, bool) {
	f, ok := n.fastFloat64()
	if !ok {
		f, err := strconv.ParseFloat(string(n.text), 64)
		return f, err == nil
	}
	if n.negative {
		f = -f
	}
	return f, true
}

// float32 returns the nearest float32, and false if the number is out of range.
//
// Rounding the nearest float64 again gives the same result, with two exceptions: when that
// lies halfway between two float32 values, and so hides on which side the number is, and
// when the result is subnormal and has fewer bits.
func (n *number) float32() (float32, bool) {
	const (
		half = 1 << 28 // half of the last bit that a float32 keeps, among those that it drops
		mask = half<<1 - 1
	)
	f, ok := n.fastFloat64()
	normal := f == 0 || f >= 0x1p-126 && f <= math.MaxFloat32
	if !ok || !normal || math.Float64bits(f)&mask == half {
		f, err := strconv.ParseFloat(string(n.text), 32)
		return float32(f), err == nil
	}
	if n.negative {
		f = -f
	}
	return float32(f), true
}

// int returns the number if it is an integer that fits into bits.
func (n *number) int(bits int) (int64, bool) {
	if !n.integer {
		return 0, false
	}
	if n.count < 19 {
		v := int64(n.mantissa)
		if n.negative {
			v = -v
		}
		limit := int64(1) << (bits - 1)
		return v, bits == 64 || v >= -limit && v < limit
	}
	v, err := strconv.ParseInt(string(n.text), 10, bits)
	return v, err == nil
}

// uint returns the number if it is an unsigned integer that fits into bits.
func (n *number) uint(bits int) (uint64, bool) {
	if !n.integer || n.negative {
		return 0, false
	}
	if n.count < 19 {
		return n.mantissa, bits == 64 || n.mantissa>>bits == 0
	}
	v, err := strconv.ParseUint(string(n.text), 10, bits)
	return v, err == nil
}
