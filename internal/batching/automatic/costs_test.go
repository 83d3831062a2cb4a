package automatic

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A workload runs one batch after the other on a policy.
type workload struct {
	*Policy
	now batching.Time
}

// run runs a batch of requests with one row each, which takes 1 ms and 2 µs for each element.
func (w *workload) run(requests int, elements int64) {
	var items []*batching.Item
	for range requests {
		items = append(items, &batching.Item{Rows: 1, Shape: uint64(elements), Elements: elements})
		w.Arrived(w.now, items[len(items)-1])
	}
	w.Began(w.now, &batching.Action{Kind: batching.Run, Instance: 1, Items: items})
	w.now += takes(requests, elements)
	w.Ended(w.now, 1, items, false)
}

func takes(rows int, elements int64) time.Duration {
	return time.Millisecond + time.Duration(int64(rows)*elements)*2*time.Microsecond
}

func TestRowsOfDifferentSizesHaveTheirOwnCosts(t *testing.T) {
	w := workload{Policy: New(Options{MaxRows: 16})}
	for i := range 400 {
		w.run(1+i%8, 4)
		w.run(1+i%8, 512)
	}
	for _, elements := range []int64{4, 512} {
		for _, rows := range []int{1, 4, 8, 16} {
			got, want := w.Predict(batching.Size{Rows: rows, Elements: elements}, 1), takes(rows, elements)
			if got < want*95/100 || got > want*110/100 {
				t.Errorf("%d rows of %d elements are predicted to take %v, want about %v", rows, elements, got, want)
			}
		}
	}
	if n := w.Explain().Drifts; n != 0 {
		t.Errorf("the change from short to long rows counts as %d changes of speed, want none", n)
	}
}

func TestTheFirstLongRowsRunInSmallBatches(t *testing.T) {
	w := workload{Policy: New(Options{MaxRows: 64})}
	for i := range 200 {
		w.run(1+i%64, 4)
	}
	largest := func() int {
		w.selectClass(512)
		return w.target()
	}
	w.ensureClass(512)
	if got := w.target(); got != 1 {
		t.Errorf("the first batch of long rows may have %d rows, want 1", got)
	}
	w.run(1, 512)
	if got := largest(); got != maxGrowth {
		t.Errorf("after one batch of a long row the next may have %d rows, want %d", got, maxGrowth)
	}
	for range 20 {
		w.run(largest(), 512)
	}
	if got := largest(); got < 32 {
		t.Errorf("after 20 batches of long rows the next may have %d rows, want at least 32", got)
	}
}

func TestNothingIsPredictedForRowsOfAnUnknownSize(t *testing.T) {
	w := workload{Policy: New(Options{MaxRows: 16})}
	for range 20 {
		w.run(8, 4)
	}
	if got := w.Predict(batching.Size{Rows: 1, Elements: 512}, 1); got != 0 {
		t.Errorf("long rows are predicted to take %v before any was measured, want 0", got)
	}
	if rows, _ := w.Backlog(512); rows != 16 {
		t.Errorf("a queue of long rows is expected to run in batches of %d, want 16", rows)
	}
}
