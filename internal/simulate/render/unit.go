package render

import (
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/simulate"
)

// unit formats times as multiples of a [simulate.Unit], or as durations if it has no
// name.
type unit simulate.Unit

// exact formats a time as a fraction of the unit if it is a simple one.
func (u unit) exact(d time.Duration) string {
	if u.Length == 0 || d == 0 {
		return brief(d)
	}
	for divisor := int64(1); divisor <= 6; divisor++ {
		length, parts := int64(u.Length), int64(d)*divisor
		factor := (parts + length/2) / length
		// A third of the unit may not be a whole number of nanoseconds.
		if miss := parts - factor*length; factor == 0 || max(miss, -miss) > divisor {
			continue
		}
		s := u.Name
		if factor != 1 {
			s = strconv.FormatInt(factor, 10) + s
		}
		if divisor != 1 {
			s += "/" + strconv.FormatInt(divisor, 10)
		}
		return s
	}
	return u.rough(d)
}

// rough formats a duration as a decimal multiple of the unit with two decimal places.
func (u unit) rough(d time.Duration) string {
	if d < u.Length/100 || u.Length == 0 {
		return brief(d) // two decimal places are not enough
	}
	return trimZeros(strconv.FormatFloat(float64(d)/float64(u.Length), 'f', 2, 64)) + u.Name
}

// brief formats a duration with three significant digits.
func brief(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	for _, part := range []struct {
		name   string
		length time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"µs", time.Microsecond}} {
		if v := float64(d) / float64(part.length); v >= 0.9995 {
			return trimZeros(strconv.FormatFloat(v, 'f', digitsAfterPoint(v), 64)) + part.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// digitsAfterPoint returns the number of decimal places that shows three significant
// digits of v.
func digitsAfterPoint(v float64) int {
	switch {
	case v >= 99.95:
		return 0
	case v >= 9.995:
		return 1
	}
	return 2
}

func trimZeros(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// ticks returns up to most round times to mark on an axis that ends at the given time.
func (u unit) ticks(end time.Duration, most int) []time.Duration {
	length, divisor := u.step(int64(end), int64(most))
	var at []time.Duration
	for i := int64(0); i*length/divisor <= int64(end); i++ {
		at = append(at, time.Duration(i*length/divisor))
	}
	return at
}

// step returns the interval between ticks in nanoseconds, as a fraction, so that thirds
// of the unit do not accumulate rounding errors.
func (u unit) step(end, most int64) (length, divisor int64) {
	least := max(1, end/max(1, most-1))
	unit := int64(u.Length)
	for _, divisor := range []int64{12, 6, 3, 2} {
		if unit/divisor >= least {
			return unit, divisor
		}
	}
	for power := max(unit, 1); ; power *= 10 {
		for _, n := range []int64{1, 2, 5} {
			if n*power >= least {
				return n * power, 1
			}
		}
	}
}
