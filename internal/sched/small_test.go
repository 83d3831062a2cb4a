package sched

import (
	"testing"
	"time"
)

type counted uint64

func (c *counted) SmallBatches() uint64 { return uint64(*c) }

func TestSmallBatchesAreLoggedOnceAMinute(t *testing.T) {
	var n counted
	w := smallWatch{policy: &n}
	for _, step := range []struct {
		at    time.Duration
		count counted
		want  uint64
	}{
		{at: 0, count: 0, want: 0},
		{at: time.Second, count: 1, want: 1},
		{at: 2 * time.Second, count: 5, want: 0},
		{at: 60 * time.Second, count: 9, want: 0},
		{at: 61 * time.Second, count: 9, want: 8},
		{at: 130 * time.Second, count: 9, want: 0},
		{at: 131 * time.Second, count: 10, want: 1},
	} {
		n = step.count
		if got := w.more(step.at); got != step.want {
			t.Errorf("at %v, of %d small batches %d are logged, want %d", step.at, n, got, step.want)
		}
	}
}

func TestAPolicyThatDoesNotCountSmallBatchesLogsNone(t *testing.T) {
	if n := new(smallWatch).more(time.Hour); n != 0 {
		t.Errorf("%d small batches are logged, want 0", n)
	}
}
