package automatic

import "testing"

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
		if got := c.expected(rows); got > 2.5e6 {
			t.Errorf("%d rows are expected to take %v, and 4 rows have taken 2.2e6", rows, got)
		}
	}
	near(t, "a size that is not disproved", c.expected(1), 2e6, 0.1)
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
