package automatic

import (
	"math/rand/v2"
	"testing"
)

// Requests go into a batch until one does not fit.
func TestRequestsOfDifferentSizesLeaveRowsEmpty(t *testing.T) {
	for _, tt := range []struct {
		most  int
		sizes []int
	}{
		{5, []int{4, 1}},
		{11, []int{8, 2}},
		{3, []int{1, 3, 1, 1, 1}},
		{4, []int{1, 2, 3}},
		{33, []int{8, 1, 5}},
		{6, []int{1, 6}},
		{8, []int{2}},
		{8, []int{3}},
		{4, []int{4}},
		{16, []int{1}},
	} {
		var r rate
		chance := rand.New(rand.NewPCG(1, 2))
		rows, batches, batch := 0, 0, 0
		for range 10_000 {
			n := tt.sizes[chance.IntN(len(tt.sizes))]
			r.arrived(0, n)
			if batch+n > tt.most {
				rows, batches, batch = rows+batch, batches+1, 0
			}
			batch += n
		}
		near(t, "rows that requests fill", r.fill(tt.most), float64(rows)/float64(batches), 0.15)
	}
}

func TestALargeRequestDoesNotFitIntoWhatIsLeft(t *testing.T) {
	var r rate
	for range 500 {
		r.arrived(0, 1)
		r.arrived(0, 6)
	}
	near(t, "share that fits into 5 rows", r.fits(5), 0.5, 0.05)
	near(t, "share that fits into 6 rows", r.fits(6), 1, 0)
}
