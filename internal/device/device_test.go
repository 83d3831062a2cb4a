package device

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const us = time.Microsecond

func TestACurveIsALineOrATable(t *testing.T) {
	line := Curve{Fixed: 100 * us, PerRow: 10 * us}
	table := Curve{Table: []Point{{1, 100 * us}, {4, 130 * us}, {8, 250 * us}}}
	square := Curve{Fixed: 300 * us, PerRow: 20 * us, Square: 2 * us}
	step := Curve{Fixed: 200 * us, PerRow: 25 * us, Step: 8}
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
		{square, 1, 322 * us},
		{square, 10, 700 * us},
		{step, 1, 400 * us},
		{step, 8, 400 * us},
		{step, 9, 600 * us},
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

func TestNoiseIsOneOnAverage(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	noise := Noise{Spread: 0.03, Outliers: 0.001, Times: 3}
	const runs = 200_000
	sum, squares, outliers := 0.0, 0.0, 0.0
	for range runs {
		f := noise.Factor(chance)
		if f > 2 {
			outliers++
			continue
		}
		sum += f
		squares += (f - 1) * (f - 1)
	}
	usual := runs - outliers
	if mean, spread := sum/usual, math.Sqrt(squares/usual); math.Abs(mean-1) > 0.001 || math.Abs(spread-0.03) > 0.001 {
		t.Errorf("mean %.4f and spread %.4f, want 1 and 0.03", mean, spread)
	}
	if share := outliers / runs; share < 0.0007 || share > 0.0013 {
		t.Errorf("%.4f of the runs are outliers, want 0.001", share)
	}
	if f := (Noise{}).Factor(chance); f != 1 {
		t.Errorf("without noise the factor is %v", f)
	}
}

func TestTheLastChangeHolds(t *testing.T) {
	changes := []Change{{10 * us, 2}, {20 * us, 0.5}}
	for at, want := range map[Time]float64{0: 1, 10 * us: 2, 19 * us: 2, 20 * us: 0.5, Never: 0.5} {
		if got := TimesAt(changes, at); got != want {
			t.Errorf("at %v batches take %v times as long, want %v", at, got, want)
		}
	}
}

func TestAChangeOfTheDevicesSpeedConcernsRunningBatches(t *testing.T) {
	d := Device{Speed: []Change{{At: 10 * us, Times: 5}, {At: 60 * us, Times: 1}}}
	d.Start(0, 1, 15*us) // 10µs at full speed, and 5µs of work at a fifth of it
	if _, at := d.Next(); at != 35*us {
		t.Errorf("the batch ends at %v, want 35µs", at)
	}
	d.Start(35*us, 2, 20*us) // 25µs at a fifth of the speed do 5µs of the work
	d.End(35*us, 1)
	if _, at := d.Next(); at != 75*us {
		t.Errorf("the second ends at %v, want 75µs", at)
	}
	d.Start(70*us, 3, 10*us)
	if id, at := d.Next(); id != 2 || at != 75*us {
		t.Errorf("%d ends next at %v, want 2 at 75µs", id, at)
	}
}
