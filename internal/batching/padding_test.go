package batching_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

// shapesOf returns the number of different shapes in a batch.
func shapesOf(items []*batching.Item) int {
	var all []uint64
	for _, it := range items {
		if !slices.Contains(all, it.Shape) {
			all = append(all, it.Shape)
		}
	}
	return len(all)
}

// TestGamesHavePaddedBatches makes sure that the random sequences, in which the referee checks
// that only requests of one group share a batch, have such batches.
func TestGamesHavePaddedBatches(t *testing.T) {
	padded := 0
	for seed := range uint64(2_000) {
		g := game{chance: chance(seed)}
		g.note = func(g *game, _ batching.Event) {
			for _, a := range g.out.List {
				if a.Kind == batching.Run && shapesOf(a.Items) > 1 {
					padded++
				}
			}
		}
		if err := g.play(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if padded < 100 {
		t.Errorf("%d padded batches in 2,000 games, want at least 100", padded)
	}
}

func TestTheRefereeSeesRequestsOfAnotherGroup(t *testing.T) {
	strikes := 0
	for seed := uint64(0); strikes < 10 && seed < 20_000; seed++ {
		struck := false
		g := game{chance: chance(seed)}
		g.spoil = func(g *game, _ batching.Event) {
			for _, a := range g.out.List {
				if !struck && a.Kind == batching.Run && shapesOf(a.Items) > 1 {
					a.Items[len(a.Items)-1].PadGroup = 9
					struck = true
				}
			}
		}
		if err := g.play(); struck {
			strikes++
			if err == nil || !strings.Contains(err.Error(), "which has another shape") {
				t.Fatalf("seed %d: the referee says: %v", seed, err)
			}
		}
	}
	if strikes < 10 {
		t.Errorf("there was opportunity for %d strikes; want 10", strikes)
	}
}

// firstBatch runs the requests on one instance, with a policy that pads all it is offered, and
// returns the owners of the first batch.
func firstBatch(t *testing.T, items ...*batching.Item) (owners []int) {
	t.Helper()
	core := batching.New(batching.Config{Policy: padsAll{batching.Triton{MaxRows: 8}}, MaxRows: 8, OvertakeOtherShapes: true})
	var out batching.Actions
	core.Step(0, batching.Event{Kind: batching.Up, Instance: 1}, &out)
	for i, it := range items {
		it.Owner = i
		core.Step(0, batching.Event{Kind: batching.Arrive, Item: it}, &out)
	}
	core.Step(0, batching.Event{Kind: batching.Take, Instance: 1}, &out)
	for _, a := range out.List {
		if a.Kind == batching.Run {
			for _, it := range a.Items {
				owners = append(owners, it.Owner.(int))
			}
		}
	}
	return owners
}

// padsAll pads all requests that it is offered.
type padsAll struct{ batching.Triton }

func (padsAll) Pad(_ batching.Time, items []*batching.Item, _ int) (int, batching.Reason) {
	return len(items), batching.Padded
}

func TestTheNearestLengthsJoinFirst(t *testing.T) {
	item := func(length, group uint64, rows int) *batching.Item {
		return &batching.Item{Rows: rows, Shape: length, PadGroup: group, Elements: int64(length)}
	}
	for _, test := range []struct {
		name  string
		items []*batching.Item
		want  []int
	}{
		{"by the ratio of lengths", []*batching.Item{item(16, 1, 1), item(2, 1, 1), item(20, 1, 1), item(15, 1, 1)}, []int{0, 3, 2, 1}},
		{"not those of another group", []*batching.Item{item(16, 1, 1), item(15, 2, 1), item(2, 1, 1)}, []int{0, 2}},
		{"not those that cannot be padded", []*batching.Item{item(16, 1, 1), item(15, 0, 1)}, []int{0}},
		{"no more than fit", []*batching.Item{item(16, 1, 4), item(15, 1, 3), item(2, 1, 2)}, []int{0, 1}},
		{"all of the first length before others", []*batching.Item{item(16, 1, 1), item(15, 1, 1), item(16, 1, 1)}, []int{0, 2, 1}},
	} {
		if got := firstBatch(t, test.items...); !slices.Equal(got, test.want) {
			t.Errorf("%s: the batch has %v, want %v", test.name, got, test.want)
		}
	}
}
