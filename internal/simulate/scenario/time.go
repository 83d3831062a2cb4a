package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/simulate"
)

// maxTime is the longest time allowed in a scenario. It leaves room to add up many of
// them.
const maxTime = 1000 * time.Hour

// parseTime parses a time: 0, a duration such as 150ms, or a multiple of the unit such as
// X, 2X, X/3, 2X/3 or 0.5X.
func parseTime(s string, u simulate.Unit) (time.Duration, error) {
	d, err := parseAnyTime(s, u)
	switch {
	case err != nil:
		return 0, err
	case d < 0:
		return 0, fmt.Errorf("%q is negative: times begin at 0", s)
	case d > maxTime:
		return 0, fmt.Errorf("%q is too long: the longest time is %v", s, maxTime)
	}
	return d, nil
}

func parseAnyTime(s string, u simulate.Unit) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if before, after, ok := strings.Cut(s, u.Name); ok && u.Name != "" {
		factor, err1 := parseFactor(before)
		divisor, err2 := parseFactor(strings.TrimPrefix(after, "/"))
		if err1 != nil || err2 != nil || divisor == 0 || after != "" && after[0] != '/' {
			return 0, fmt.Errorf("%q is not a multiple of %s: write it as %s, 2%s or 2%s/3", s, u.Name, u.Name, u.Name, u.Name)
		}
		return roundToTime(float64(u.Length) * factor / divisor), nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil && u.Name != "":
		return 0, fmt.Errorf("%q is not a time: write a duration such as 150ms, or a multiple of %s such as %s/3", s, u.Name, u.Name)
	case err != nil:
		return 0, fmt.Errorf("%q is not a time: write a duration such as 150ms or 0.4ms", s)
	}
	return d, nil
}

// roundToTime rounds to nanoseconds. A value that overflows becomes longer than maxTime.
func roundToTime(ns float64) time.Duration {
	if !(math.Abs(ns) < math.MaxInt64) {
		return math.MaxInt64
	}
	return time.Duration(math.Round(ns))
}

// parseFactor parses a factor; the empty string is 1.
func parseFactor(s string) (float64, error) {
	if s == "" {
		return 1, nil
	}
	return strconv.ParseFloat(s, 64)
}
