package automatic

import "testing"

// A size that never runs could seem to be the best for good.
func TestOnlySizesThatRequestsMakeUpAreBest(t *testing.T) {
	c := newCurve(8)
	for i, took := range []float64{0.6e6, 0.9e6, 2.5e6, 2.9e6, 3.6e6, 3.7e6, 5e6, 6e6} {
		for range 2 * minBentSamples {
			c.record(i+1, took)
		}
	}
	c.build()
	for name, tt := range map[string]struct {
		requests []int // rows of each
		want     int
	}{
		"no request yet":             {nil, 2},
		"requests of one row":        {[]int{1}, 2},
		"requests of three rows":     {[]int{3}, 6},
		"requests of four rows":      {[]int{4}, 4},
		"requests of two and more":   {[]int{2, 6}, 2},
		"requests of three and more": {[]int{3, 7}, 6},
		"requests of about three":    {[]int{2, 3, 3, 3}, 2},
	} {
		var r rate
		for range 200 {
			for _, rows := range tt.requests {
				r.arrived(0, rows)
			}
		}
		if got := sizesOf(&c, &r, 0); got.peak != tt.want || got.efficient > got.peak {
			t.Errorf("%s: the best size is %d rows, and %d are as good, want %d", name, got.peak, got.efficient, tt.want)
		}
	}
}
