package device

import (
	"testing"
	"time"
)

const us = time.Microsecond

func TestACurveIsALineOrATable(t *testing.T) {
	line := Curve{Fixed: 100 * us, PerRow: 10 * us}
	table := Curve{Table: []Point{{1, 100 * us}, {4, 130 * us}, {8, 250 * us}}}
	single := Curve{Table: []Point{{4, 100 * us}}}
	for _, tt := range []struct {
		c    Curve
		rows int
		want time.Duration
	}{
		{line, 1, 110 * us},
		{line, 8, 180 * us},
		{table, 1, 100 * us},
		{table, 2, 110 * us},
		{table, 8, 250 * us},
		{table, 12, 370 * us}, // the last line goes on
		{single, 2, 100 * us},
		{single, 8, 200 * us},
		{Curve{}, 5, 0},
	} {
		if got := tt.c.Takes(tt.rows); got != tt.want {
			t.Errorf("%+v: %d rows take %v, want %v", tt.c, tt.rows, got, tt.want)
		}
	}
}

func TestBatchesSlowEachOtherDownWhileTheyOverlap(t *testing.T) {
	d := Device{Slowdown: []float64{1, 2}}
	d.Start(0, 1, 100*us)
	d.Start(50*us, 2, 100*us) // half of 1 is done; both run at half speed now
	if id, at := d.Next(); id != 1 || at != 150*us {
		t.Errorf("%d ends next at %v, want 1 at 150µs", id, at)
	}
	d.End(150*us, 1) // half of 2 is left, and it is alone
	if id, at := d.Next(); id != 2 || at != 200*us {
		t.Errorf("%d ends next at %v, want 2 at 200µs", id, at)
	}
	d.End(200*us, 2)
	if _, at := d.Next(); at != Never {
		t.Errorf("something ends at %v on an idle device", at)
	}
}

func TestBatchesDoNotDisturbEachOtherWithoutSlowdown(t *testing.T) {
	var d Device
	d.Start(0, 1, 100*us)
	d.Start(10*us, 2, 20*us)
	if id, at := d.Next(); id != 2 || at != 30*us {
		t.Errorf("%d ends next at %v, want 2 at 30µs", id, at)
	}
	d.End(20*us, 2) // stopped early
	if id, at := d.Next(); id != 1 || at != 100*us {
		t.Errorf("%d ends next at %v, want 1 at 100µs", id, at)
	}
}
