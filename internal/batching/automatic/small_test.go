package automatic

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestManySmallBatchesInARowAreCounted(t *testing.T) {
	for _, test := range []struct {
		name          string
		batches, rows int
		waiting       int
		shapes        int
		want          uint64
	}{
		{name: "one by one while 16 wait", batches: 70, rows: 1, waiting: 16, shapes: 1, want: 7},
		{name: "not enough in a row", batches: 63, rows: 1, waiting: 16, shapes: 1},
		{name: "few wait", batches: 70, rows: 1, waiting: 3, shapes: 1},
		{name: "half of what is efficient", batches: 70, rows: 4, waiting: 16, shapes: 1},
		{name: "requests that cannot share a batch", batches: 70, rows: 1, waiting: 16, shapes: 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := New(Options{MaxRows: 8, Profile: flat(8)})
			now, waiting := batching.Time(0), 0
			for n := range test.batches {
				for ; waiting < test.waiting; waiting++ {
					p.Arrived(now, &batching.Item{Rows: 1, Shape: uint64((n + waiting) % test.shapes)})
				}
				items := make([]*batching.Item, test.rows)
				for i := range items {
					items[i] = &batching.Item{Rows: 1}
				}
				p.Began(now, &batching.Action{Kind: batching.Run, Instance: 1, Items: items})
				now += 1_000_000
				p.Ended(now, 1, items, false)
				waiting -= test.rows
			}
			if got := p.SmallBatches(); got != test.want {
				t.Errorf("%d small batches are counted, want %d", got, test.want)
			}
		})
	}
}

// flat returns the profile of a device on which all sizes take 1 ms.
func flat(rows int) (p batching.Profile) {
	for n := 1; n <= rows; n++ {
		p.Sizes = append(p.Sizes, batching.Timing{Rows: n, Median: 1_000_000, P95: 1_000_000, Runs: 10})
	}
	return p
}
