package automatic

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestRetestsGetRarerWhileTheyConfirmTheCurve(t *testing.T) {
	var r retest
	batch := uint64(100)
	for _, want := range []uint64{16, 32, 64, 128, 128} {
		r.confirmed(batch, 0.3) // of a batch
		if r.next != batch+want {
			t.Errorf("the next retest is %d batches later, want %d", r.next-batch, want)
		}
		batch = r.next
	}
	// One that costs the time of four batches may be one of 800 only.
	if r.confirmed(batch, 4); r.next != batch+800 {
		t.Errorf("after a slow one the next is %d batches later, want 800", r.next-batch)
	}
	r.restart(batch)
	if r.next != batch+retestFirst {
		t.Errorf("after a change the next retest is %d batches later, want %d", r.next-batch, retestFirst)
	}
	r.restart(batch + retestFirst - 1)
	if r.next != batch+retestFirst {
		t.Error("a second change has postponed the retest")
	}
}

func TestABatchDisprovesWhatIsSlowerAndSmaller(t *testing.T) {
	c := newCurve(8)
	c.calibrate(line(2*ms, 0, 1, 2).Sizes)
	c.calibrate(line(10*ms, 0, 3, 4, 5, 6, 8).Sizes)
	c.disprove(4, 2.2e6)
	c.record(4, 2.2e6)
	c.build()
	for rows := 1; rows <= 8; rows++ {
		if got := c.expected(rows); !(got <= 2.5e6) {
			t.Errorf("%d rows are expected to take %v, and 4 rows have taken 2.2e6", rows, got)
		}
	}
	near(t, "a size that is not disproved", c.expected(1), 2e6, 0.1)
}

// A line between the sizes of a curve that bends upwards is above it, so that a batch of a size
// between them seems to be fast.
func TestAFastRetestKeepsWhatItDoesNotContradict(t *testing.T) {
	takes := func(rows int) time.Duration {
		return 3*ms + time.Duration(rows)*200*us + time.Duration(rows*rows)*20*us
	}
	for _, slow := range []bool{false, true} {
		var profile batching.Profile
		for _, rows := range []int{1, 2, 4, 8, 16, 32, 64} {
			one := batching.Timing{Rows: rows, Median: takes(rows), Runs: 5}
			if rows == 4 && slow {
				one.Median = 10 * ms
			}
			profile.Sizes = append(profile.Sizes, one)
		}
		p := New(Options{MaxRows: 64, Instances: 1, Profile: profile})
		const rows = 7
		took := 0.85 * p.curve.expected(rows)
		p.judgeRetest(&run{rows: rows, retest: true}, took)
		if _, weight := p.curve.cells[64].estimate(); weight == 0 {
			t.Error("one batch, which may be fast by chance, has disproved what was measured")
		}
		p.judgeRetest(&run{rows: rows, retest: true}, took)
		_, weight := p.curve.cells[64].estimate()
		if kept := weight > 0; kept == slow {
			t.Errorf("4 rows had seemed to take %v, 7 have taken %.1f ms: what was measured of 64 is kept: %t", profile.Sizes[2].Median, took/1e6, kept)
		}
		if p.retest.next != p.ledger.batch {
			t.Errorf("the next retest is %d batches later, want at once: larger sizes may be faster, too", p.retest.next-p.ledger.batch)
		}
	}
}

// By a line through all, 55 rows would take less time than 32, and seem to be the best size.
func TestASizeBetweenMeasuredOnesIsExpectedBetweenTheirTimes(t *testing.T) {
	c := newCurve(64)
	var profile batching.Profile
	takes := func(rows float64) float64 { return 3e6 + rows*rows*20e3 }
	for rows := 1; rows <= 64; rows *= 2 {
		profile.Sizes = append(profile.Sizes, batching.Timing{Rows: rows, Median: time.Duration(takes(float64(rows))), Runs: 3}) // as often as long batches run
	}
	c.calibrate(profile.Sizes)
	for _, rows := range []int{6, 12, 24, 48} {
		below, above := takes(float64(rows)*2/3), takes(float64(rows)*4/3)
		near(t, "a size between two", c.expected(rows), (below+above)/2, 0.15)
	}
	if best := sizesOf(&c, &rate{}, 0).peak; best < 8 || best > 16 {
		t.Errorf("the best size is %d rows, want about 12", best)
	}
}

func TestARescaledCalibrationIsAGuess(t *testing.T) {
	c := newCurve(8)
	c.calibrate(line(2*ms, ms/10, 1, 2, 4, 8).Sizes)
	c.rescale(3)
	for range 40 {
		c.record(8, 2.8e6) // as fast as before: the change was not real
	}
	c.build()
	near(t, "the size that ran", c.expected(8), 2.8e6, 0.1)
}
