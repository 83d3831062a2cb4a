package kserve

import (
	"math"
	"strconv"
)

// A number is a JSON number taken apart: ± mantissa · 10^exponent.
type number struct {
	text     []byte
	mantissa uint64 // wrapped around, perhaps, if it has more than 19 digits
	count    int    // of its digits, with zeros before the first other one
	exponent int64
	negative bool
	integer  bool // it was written without a point and without an exponent
}

// digits reads the digits at the start of text into the mantissa, and returns
// how many there were.
func (n *number) digits(text []byte) int {
	mantissa, i := n.mantissa, 0
	for ; i < len(text); i++ {
		c := text[i] - '0' // above 9 for whatever is not a digit
		if c > 9 {
			break
		}
		mantissa = mantissa*10 + uint64(c)
	}
	n.mantissa = mantissa
	n.count += i
	return i
}

// power reads the exponent that follows an e, adds it to that of the number,
// and returns how long it was. A larger one is taken as 2^40: no text has enough
// digits after its point to make up for that.
func (n *number) power(text []byte) int {
	i, sign := 0, int64(1)
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		sign = ',' - int64(text[0]) // the comma stands between the two
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

// The powers of ten that a float64 holds exactly.
var tens = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// quick returns the float64 nearest to the number's absolute value if one
// operation on two exact operands, which rounds once, gives it.
func (n *number) quick() (float64, bool) {
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

// float64 returns the nearest float64, and false if the number is too large.
func (n *number) float64() (float64, bool) {
	f, ok := n.quick()
	if !ok {
		f, err := strconv.ParseFloat(string(n.text), 64)
		return f, err == nil
	}
	if n.negative {
		f = -f
	}
	return f, true
}

// float32 returns the nearest float32, and false if the number is too large.
//
// Rounding the nearest float64 once more gives the same, with two exceptions:
// when it lies halfway between two float32, and so hides on which side the
// number is, and when float32 has fewer bits than usual, below its smallest
// normal number.
func (n *number) float32() (float32, bool) {
	const (
		half = 1 << 28 // of the last bit that a float32 keeps, among those that it drops
		mask = half<<1 - 1
	)
	f, ok := n.quick()
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

// uint returns the number if it is an integer without a sign that fits into
// bits.
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
