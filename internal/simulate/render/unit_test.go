package render

import (
	"testing"
	"time"
)

func TestTimesAreWrittenInTheUnit(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	x := unit{"X", 100 * ms} // a third is not a whole number of nanoseconds
	for d, want := range map[time.Duration]string{
		0: "0", 100 * ms: "X", 33333333: "X/3", 66666667: "2X/3", 150 * ms: "3X/2", 25 * ms: "X/4", 110 * ms: "1.1X", 233333333: "7X/3", 20 * us: "20µs",
	} {
		if got := x.exact(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", 1: "1ns", 999: "999ns", 1234 * us: "1.23ms", 12345 * us: "12.3ms", 999600 * us: "1s", 61 * time.Second: "61s"} {
		if got := (unit{}).rough(d); got != want {
			t.Errorf("%d is written %s, want %s", d, got, want)
		}
	}
}
