package evict

import (
	"math"
	"testing"
)

func TestModelsThatGrewLeaveLessRoom(t *testing.T) {
	var g Growth
	if got := g.Limit(1000, 0); got != 1000 {
		t.Errorf("limit %d before anything was seen, want 1000", got)
	}
	g.Observe(500, 1000, true)
	if got := g.Limit(1000, 0); got != 500 {
		t.Errorf("limit %d for models that hold twice of what is counted, want 500", got)
	}
	g.Observe(500, 400, true)
	if got := g.Limit(1500, 0); got != 800 { // 15/8 of what is counted
		t.Errorf("limit %d after one look at models that have not grown, want 800", got)
	}
	for range 100 {
		g.Observe(500, 400, true)
	}
	if got := g.Limit(1000, 0); got < 999 {
		t.Errorf("limit %d for models that hold less than is counted, want 1000", got)
	}
}

// One of many models may leak, or cache what it has seen.
func TestTheGrowthOfOneModelLeavesRoomForOthers(t *testing.T) {
	var g Growth
	g.Observe(10, 1000, true)
	if got, want := g.Limit(16_000, 0), int64((16_000-970)/mostGrowth); got != want {
		t.Errorf("limit %d, want %d", got, want)
	}
	for range 100 { // a newcomer does not grow
		g.Observe(210, 1200, true)
	}
	if got, want := g.Limit(16_000, 0), int64((16_000-570)/mostGrowth); got != want {
		t.Errorf("limit %d after others were loaded, want %d", got, want)
	}
	g.Observe(100, 1000, true)
	if got := g.Limit(100, 0); got < 10 {
		t.Errorf("limit %d where all have grown tenfold, want 10", got)
	}
}

func TestANewcomerThatFitsAloneAlwaysHasRoom(t *testing.T) {
	var g Growth
	g.Observe(100, 1000, true)
	for newcomer, want := range map[int64]int64{50: 100, 900: 900, 2000: 1000} {
		if got := g.Limit(1000, newcomer); got != want {
			t.Errorf("limit %d for a newcomer of %d, want %d", got, newcomer, want)
		}
	}
}

func TestWhatIsSeenDuringLoadsCountsLess(t *testing.T) {
	var g Growth
	g.Observe(500, 500, true)
	g.Observe(500, 1000, false)
	if got := g.Limit(900, 0); got != 800 { // 9/8 of what is counted
		t.Errorf("limit %d after one look, want 800", got)
	}
	for range 100 {
		g.Observe(500, 1000, false)
	}
	if got := g.Limit(1000, 0); got < 500 || got > 501 {
		t.Errorf("limit %d after many looks, want 500", got)
	}
	g.Observe(0, 1000, true)
	if got := g.Limit(1000, 0); got > 501 {
		t.Errorf("limit %d after a look without models, want as before", got)
	}
}

// Memory that is lost for good, such as fragments, costs as many models as it holds, and not all of
// them in the end.
func TestMemoryThatIsLostCostsNoMoreThanItself(t *testing.T) {
	var g Growth
	counted := int64(1000)
	for range 100 {
		g.Observe(counted, counted+300, true)
		counted = min(counted, g.Limit(1000, 0))
	}
	if counted < 690 || counted > 710 {
		t.Errorf("%d are left for models, want 700", counted)
	}
}

// The memory of a machine may be unknown.
func TestWithoutALimitThereIsRoomForAll(t *testing.T) {
	var g Growth
	if got := g.Limit(math.MaxInt64, 1000); got != math.MaxInt64 {
		t.Errorf("limit %d before anything was seen, want none", got)
	}
	g.Observe(500, 600, true)
	if got := g.Limit(math.MaxInt64, 1000); got < math.MaxInt64/2 {
		t.Errorf("limit %d for models that have grown", got)
	}
}

func TestRoomChangesInSteps(t *testing.T) {
	room := int64(3210) // no multiple of a step, which is 100
	for _, step := range []struct{ limit, want int64 }{
		{3210, 3210},
		{3205, 3200},
		{3210, 3200},
		{3231, 3231}, // all of it
		{3199, 3100},
		{3099, 3000},
		{3149, 3000}, // a limit near the edge of a step does not change it again and again
		{3099, 3000},
		{3150, 3100},
		{1050, 1000},
		{3210, 3200},
	} {
		if room = Room(room, step.limit, 3231); room != step.want {
			t.Fatalf("a limit of %d makes it %d, want %d", step.limit, room, step.want)
		}
	}
	if got := Room(7, 5, 7); got != 5 { // steps of less than one byte
		t.Errorf("%d, want 5", got)
	}
}
