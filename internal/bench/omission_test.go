package bench

import (
	"slices"
	"testing"
	"time"
)

func TestAClosedLoopSeesAStallOnceForEachClient(t *testing.T) {
	// Due every 10, answered after 1; but nothing is answered from 30 to 70.
	spans := []Span{{0, 1}, {10, 11}, {20, 21}, {30, 71}, {40, 72}, {50, 73}, {60, 74}, {70, 75}, {80, 81}}
	for _, c := range []struct {
		clients int
		want    []time.Duration
	}{
		// The second one of the stall is sent when the first is answered.
		{1, []time.Duration{1, 1, 1, 41, 1, 1, 1, 1, 1}},
		{2, []time.Duration{1, 1, 1, 41, 32, 2, 2, 2, 1}},
		// With enough clients it is an open loop.
		{9, []time.Duration{1, 1, 1, 41, 32, 23, 14, 5, 1}},
	} {
		if got := inClosedLoop(spans, c.clients); !slices.Equal(got, c.want) {
			t.Errorf("%d clients see %v, want %v", c.clients, got, c.want)
		}
	}
	// Who is answered first does not matter.
	slices.Reverse(spans)
	if got := inClosedLoop(spans, 1); got[3] != 41 {
		t.Errorf("got %v", got)
	}
	if got := inClosedLoop(nil, 1); len(got) != 0 {
		t.Errorf("of no requests: %v", got)
	}
}

func TestClientsAreAsManyAsWaitWithoutAStall(t *testing.T) {
	var spans []Span
	for n := range time.Duration(101) {
		spans = append(spans, Span{n * 10, n*10 + 25})
	}
	for usual, want := range map[time.Duration]int{0: 1, 5: 1, 10: 1, 11: 2, 25: 3, 30: 3} {
		if got := clients(spans, usual); got != want {
			t.Errorf("a usual latency of %d gives %d clients, want %d", usual, got, want)
		}
	}
	if got := clients([]Span{{5, 6}, {5, 7}}, 1); got != 2 {
		t.Errorf("two that are due at once are %d clients", got)
	}
}
