package batching

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestAlarmsAreAsInASortedList sets, moves and removes alarms at random, and
// compares the heap with a list that is sorted each time.
func TestAlarmsAreAsInASortedList(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(2, seed))
		items := make([]*Item, 1+r.IntN(40))
		for i := range items {
			items[i] = &Item{sequence: uint64(i)}
		}
		var heap alarms
		var list []*Item
		for range 300 {
			it, at := items[r.IntN(len(items))], Time(r.IntN(20))
			if r.IntN(3) == 0 {
				at = Never
			}
			heap.set(it, at)
			list = slices.DeleteFunc(list, func(other *Item) bool { return other == it })
			if at != Never {
				list = append(list, it)
			}
			slices.SortFunc(list, func(a, b *Item) int {
				return cmp.Or(cmp.Compare(a.alarm, b.alarm), cmp.Compare(a.sequence, b.sequence))
			})
			compareAlarms(t, heap, list)
		}
		// Items that are removed one by one come in order.
		for _, want := range list {
			got := heap[0]
			heap.set(got, Never)
			if got != want {
				t.Fatalf("seed %d: got item %d at %v, want %d at %v", seed, got.sequence, got.alarm, want.sequence, want.alarm)
			}
		}
	}
}

func compareAlarms(t *testing.T, heap alarms, list []*Item) {
	t.Helper()
	want := Never
	if len(list) > 0 {
		want = list[0].alarm
	}
	if got := heap.next(); got != want || len(heap) != len(list) {
		t.Fatalf("got the next of %d alarms at %v, want of %d at %v", len(heap), got, len(list), want)
	}
	for i, it := range heap {
		if it.alarmSlot != i+1 {
			t.Fatalf("item %d is in slot %d, but has %d", it.sequence, i+1, it.alarmSlot)
		}
	}
}
