package sched

import (
	"testing"
	"time"
)

func TestAWayIsAsLongAsNearlyAllTake(t *testing.T) {
	var w transportDelay
	for i := range 20_000 {
		d := 100 * time.Microsecond
		switch {
		case i%200 == 0: // one in two hundred says nothing of the others
			d = 50 * time.Millisecond
		case i%50 == 1:
			d = 2 * time.Millisecond
		}
		w.observe(d)
	}
	if got := w.expected(); got < 3500*time.Microsecond || got > 5*time.Millisecond {
		t.Errorf("the way there and back is expected to take %v, want about 4ms", got)
	}
	for range 10_000 {
		w.observe(0)
	}
	if got := w.expected(); got > 100*time.Microsecond {
		t.Errorf("after the rush the way is expected to take %v, want next to nothing", got)
	}
}
