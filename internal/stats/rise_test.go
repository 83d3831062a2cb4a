package stats

import (
	"testing"
	"time"
)

func TestARise(t *testing.T) {
	for _, tt := range []struct {
		rate, n float64
		want    bool
	}{
		{0, 5, false},
		{0, 6, true},
		{1, 7, false},
		{1, 9, true},
		{100, 149, false}, // five deviations are 50
		{100, 152, true},
		{10000, 14900, false},
		{10000, 15100, true},
		{100, 10, false},
	} {
		if got := Rose(tt.rate, tt.n, time.Second); got != tt.want {
			t.Errorf("%v requests in a second at a rate of %v: a rise: %v", tt.n, tt.rate, got)
		}
	}
}
