package automatic

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// line returns the profile of a model that takes fixed plus perRow per row, at the given
// sizes.
func line(fixed, perRow time.Duration, sizes ...int) (p batching.Profile) {
	for _, rows := range sizes {
		took := fixed + time.Duration(rows)*perRow
		p.Sizes = append(p.Sizes, batching.Timing{Rows: rows, Median: took, P95: took, Runs: 5})
	}
	return p
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Abs(want)) { // nor is NaN near
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func TestFewSizesTellTheOthers(t *testing.T) {
	c := newCurve(64)
	c.calibrate(line(5*ms, ms/2, 1, 8, 64).Sizes)
	for _, rows := range []int{1, 2, 5, 8, 30, 64} {
		near(t, "a size", c.expected(rows), 5e6+0.5e6*float64(rows), 1e-6)
	}
	if c.nonlinear {
		t.Error("a straight line is taken to be bent")
	}
	near(t, "beyond the largest", c.expected(128), 2*c.expected(64), 1e-9)
}

func TestLiveBatchesOverrideCalibration(t *testing.T) {
	c := newCurve(8)
	c.calibrate(line(10*ms, 0, 1, 2, 4, 8).Sizes)
	for range 200 {
		c.record(4, 11e6)
	}
	near(t, "the size that was seen", c.expected(4), 11e6, 0.015)
	near(t, "another size", c.expected(1), 10e6, 0.03)
}

func TestOneSizeAloneDoesNotBendTheLine(t *testing.T) {
	c := newCurve(64)
	c.calibrate(line(5*ms, ms/2, 1, 2, 4, 8, 16, 32, 64).Sizes)
	for i := range 1_000 {
		c.record(4, 7e6*(1+0.03*float64(i%3-1)))
	}
	near(t, "what is fixed", c.fixed, 5e6, 0.02)
	near(t, "what a row takes", c.perRow, 0.5e6, 0.02)
}

func TestStepIsSeen(t *testing.T) {
	c := newCurve(16)
	var sizes []batching.Timing
	for rows := 1; rows <= 16; rows++ {
		took := time.Duration(2+2*((rows+7)/8)) * ms
		sizes = append(sizes, batching.Timing{Rows: rows, Median: took, Runs: 5})
	}
	c.calibrate(sizes)
	if !c.nonlinear {
		t.Error("a step is taken for a line")
	}
	if c.smooth(9) < 1.2*c.smooth(8) {
		t.Errorf("8 rows take %v and 9 rows %v: there is no step", c.smooth(8), c.smooth(9))
	}
}

func TestLargerBatchesAreNotFaster(t *testing.T) {
	c := newCurve(8)
	for range 20 {
		c.record(2, 5e6)
		c.record(6, 4e6)
	}
	for rows := 2; rows <= 8; rows++ {
		if !(c.expected(rows) >= c.expected(rows-1)) {
			t.Errorf("%d rows take %v, and %d rows %v", rows-1, c.expected(rows-1), rows, c.expected(rows))
		}
	}
}

func TestOneBatchThatIsFarOffCountsLittle(t *testing.T) {
	c := newCurve(4)
	for range 100 {
		c.record(1, 1e6)
	}
	c.record(1, 1e9)
	c.build()
	near(t, "the size", c.expected(1), 1e6, 0.04)
}

func TestSlowestOfTwentyIsTold(t *testing.T) {
	c := newCurve(1)
	for i := range 10_000 {
		took := 1e6
		if i%10 == 0 {
			took = 1.4e6
		}
		c.record(1, took)
	}
	c.build()
	if slow := c.p95(1); !(slow >= 1.35e6 && slow <= 1.5e6) {
		t.Errorf("the p95 is %v, want about 1.4e6", slow)
	}
}

func TestOneSlowRunOfCalibrationRulesOutNoSize(t *testing.T) {
	c := newCurve(64)
	sizes := line(5*ms, ms/20, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64).Sizes
	for i := range sizes {
		sizes[i].P95 = sizes[i].Median * 104 / 100
	}
	sizes[6].P95 = 3 * sizes[6].Median
	c.calibrate(sizes)
	if got := sizesOf(&c, &rate{}, 20*ms); got.max != 64 { // 8.2 ms, twice
		t.Errorf("batches within 20 ms have up to %d rows, want 64: the p95 is %v", got.max, time.Duration(c.p95(64)))
	}
}

func TestTheQueueThatStandsTellsWhoComesBehind(t *testing.T) {
	var b busyPeriod
	for range 100 { // groups of 8, and no requests after them
		b.began(8, 4)
		b.ended(4)
		b.began(4, 4)
		b.ended(0)
	}
	if got := b.expectedAfter(8); got != 0 {
		t.Errorf("%v are expected behind 8, want none", got)
	}
	for range 50 { // as many rows arrive as are served
		b.began(20, 5)
		b.ended(15)
	}
	if got := b.expectedAfter(20); got < 40 {
		t.Errorf("%v are expected behind 20 while it does not end, want 40 or more", got)
	}
}

// On a device that runs one batch at a time, parallel ones would be kept for what is chance.
func TestTheChanceInABatchsTimeIsNotPutDownToAShortMomentBesideOthers(t *testing.T) {
	c := newContention(2)
	for i := range 100 {
		beside := 1.0
		c.record(10, &[maxParallel + 1]float64{1: 10*(1+0.05*float64(i%3-1)) - beside/2, 2: beside}, 2)
		if got := c.slowdown(2); got < 1.8 || got > 2.2 {
			t.Fatalf("after %d batches, the slowdown of two is %.2f, want 2", i+1, got)
		}
	}
}

func TestContentionIsTheOneThatExplainsTheTimes(t *testing.T) {
	c := newContention(3)
	// Two parallel batches take 1.4 times as long. A batch of 10 does half of its work
	// alone.
	for range 300 {
		c.record(10, &[maxParallel + 1]float64{1: 5, 2: 7}, 3)
	}
	near(t, "the slowdown of two", c.slowdown(2), 1.4, 0.001)
	if c.useful != 2 {
		t.Errorf("%d at once are useful, want 2: a third was never tried", c.useful)
	}
	if c.backlog != 3 {
		t.Errorf("%d at once are tried in a backlog, want 3", c.backlog)
	}
}

func TestSerialDeviceIsUsedOnce(t *testing.T) {
	c := newContention(4)
	c.calibrate([]float64{1, 2, 3, 4}, 4)
	if c.useful != 1 || c.backlog != 1 {
		t.Errorf("%d at once are useful and %d in a backlog, want 1 and 1", c.useful, c.backlog)
	}
	c.calibrate([]float64{1, 1, 1, 1}, 4)
	if c.useful != 4 || c.backlog != 4 {
		t.Errorf("%d at once are useful and %d in a backlog, want 4 and 4", c.useful, c.backlog)
	}
}

func TestRateFallsInSilence(t *testing.T) {
	var r rate
	for i := range 100 {
		r.arrived(batching.Time(i)*ms, 2)
	}
	near(t, "the rate", r.current(100*ms)*1e6, 1, 0.02)
	near(t, "the rate after as long a silence", r.current(200*ms)*1e6, 0.4, 0.3)
	near(t, "the rows", r.rows, 2, 0)
}

func TestRateFollowsAChange(t *testing.T) {
	var r rate
	now := batching.Time(0)
	for range 1_000 {
		now += ms
		r.arrived(now, 1)
	}
	for range 64 {
		now += ms / 4
		r.arrived(now, 1)
	}
	near(t, "the rate", r.current(now)*1e6, 4, 0.05)
}

func TestSpeedThatDoublesIsFollowed(t *testing.T) {
	for _, by := range []float64{2, 0.5} {
		var d drift
		for i := range 1_000 {
			if f := d.record(1 + 0.05*float64(i%3-1)); f != 1 {
				t.Fatalf("a steady model is said to have changed by %v", f)
			}
		}
		batches, f := 0, 1.0
		for f == 1 {
			batches++
			f = d.record(by)
		}
		if batches > 8 {
			t.Errorf("a change by %v was noticed after %d batches, want at most 8", by, batches)
		}
		near(t, "the change", f, by, 0.1)
	}
}

func TestOneSlowBatchIsNoChange(t *testing.T) {
	var d drift
	for i := range 1_000 {
		ratio := 1.0
		if i%20 == 0 {
			ratio = 10
		}
		if f := d.record(ratio); f != 1 {
			t.Fatalf("batch %d: the speed is said to have changed by %v", i, f)
		}
	}
}

func TestNoiseIsNoChange(t *testing.T) {
	for _, spread := range []float64{0.2, 0.4, 0.6} {
		var d drift
		chance := rand.New(rand.NewPCG(1, 2))
		ratio := func() float64 { return math.Exp(spread * chance.NormFloat64()) }
		for range 20_000 {
			d.record(ratio())
		}
		if d.count > 2 {
			t.Errorf("spread %v: in 20,000 batches the speed is said to have changed %d times", spread, d.count)
		}
		before, batches := d.count, 0
		for d.count == before && batches < 100 {
			batches++
			d.record(2 * ratio())
		}
		if batches > 50 {
			t.Errorf("spread %v: twice the time was not noticed in %d batches", spread, batches)
		}
	}
}

func TestBinsHoldTheirTimes(t *testing.T) {
	for k := range bins {
		middle := (edges[k] + edges[k+1]) / 2
		for _, units := range []float64{edges[k], middle} {
			if got := binOf(units); got != k {
				t.Errorf("%v units are in bin %d, want %d", units, got, k)
			}
		}
	}
	if got := binOf(edges[bins]); got != bins {
		t.Errorf("what is beyond the last bin is in bin %d", got)
	}
}

// A burst of 8 with gaps of 10 units, then a long pause.
func TestBurstIsWaitedForWithinItsGaps(t *testing.T) {
	var g gaps
	now := batching.Time(0)
	for range 50 {
		for range 8 {
			now += 10
			g.arrived(now, 1)
		}
		now += 5_000
	}
	g.arrived(now, 1)
	const rate = 8.0 / 5_080
	wait := g.bestWait(now+1, 1, rate, 500, 1, 250)
	if wait < 9 || wait > 16 {
		t.Errorf("it waits %v for a request that comes 10 after the last, want about as long", wait)
	}
	if wait := g.bestWait(now+100, 1, rate, 500, 1, 250); wait != 0 {
		t.Errorf("it waits %v although the burst is over", wait)
	}
	if wait := g.bestWait(now+1, 1, rate, 5, 8, 250); wait != 0 {
		t.Errorf("it waits %v although that costs more than it saves", wait)
	}
}

func TestEvenTrafficIsNoBurst(t *testing.T) {
	var g gaps
	for i := range 500 {
		g.arrived(batching.Time(i)*100, 1)
	}
	if wait := g.bestWait(499*100+1, 1, 1.0/100, 500, 1, 250); wait != 0 {
		t.Errorf("it waits %v for even traffic", wait)
	}
}

// oneShape is what returns see if all requests have the same shape.
var oneShape = shapeShare{share: 1}

// serve ends a batch of n requests every period; each client returns after its delay.
func serve(r *returns, batches int, period batching.Time, delays ...batching.Time) batching.Time {
	now := batching.Time(0)
	for range batches {
		now += period
		r.batchEnded(now, len(delays), 0, 1)
		for _, d := range delays {
			r.arrived(now+d, 1, oneShape)
		}
	}
	return now
}

func TestClientsThatComeBackAreExpected(t *testing.T) {
	var r returns
	now := serve(&r, 100, 600, 20, 25, 30, 35)
	near(t, "the share", r.share, 1, 0.05)
	if !r.closedLoop {
		t.Error("the traffic is not taken for a closed loop")
	}
	now += 600
	r.batchEnded(now, 4, 0, 1)
	var back awaited
	r.fillAwaited(now+1, 1, oneShape, &back)
	near(t, "who is expected", back.requests, 4, 0.05)
	r.arrived(now+20, 1, oneShape)
	r.arrived(now+25, 1, oneShape)
	r.fillAwaited(now+26, 1, oneShape, &back)
	near(t, "who is expected when two are back", back.requests, 2, 0.1)
	if by := back.shareWithin(&r, 40); by < 0.95 {
		t.Errorf("the chance that one is back by 40 more is %v", by)
	}
	r.fillAwaited(now+500, 1, oneShape, &back)
	if back.requests > 0 {
		t.Errorf("%v are still expected long after", back.requests)
	}
}

func TestRequestsByChanceAreNoReturns(t *testing.T) {
	var r returns
	now, next := batching.Time(0), batching.Time(0)
	for range 300 {
		now += 600
		for ; next < now; next += 97 { // at no fixed distance from the end of a batch
			r.arrived(next, 1, oneShape)
		}
		r.batchEnded(now, 6, 0, 1)
	}
	if r.share > 0.2 {
		t.Errorf("%v of them are taken for returns", r.share)
	}
}

func TestChanceOfKOfN(t *testing.T) {
	for _, test := range []struct {
		k, n int
		f    float64
		want float64
	}{
		{1, 1, 0.3, 0.3}, {3, 3, 0.5, 0.125}, {1, 2, 0.5, 0.75}, {2, 4, 0.5, 11.0 / 16}, {2, 4, 0, 0}, {2, 4, 1, 1}, {30, 60, 0.5, 0.55},
	} {
		near(t, "the chance", atLeast(test.k, test.n, test.f), test.want, 0.01)
	}
}

func TestOneMoreAtOnceIsTriedWhileItPays(t *testing.T) {
	c := newContention(3)
	if n := c.probe; n != 2 {
		t.Errorf("%d at once are tried first, want 2", n)
	}
	for range 20 {
		c.record(10, &[maxParallel + 1]float64{2: 11}, 3)
	}
	if n := c.probe; n != 3 {
		t.Errorf("%d at once are tried next, want 3", n)
	}
	near(t, "what it would have taken alone", c.soloTime(&[maxParallel + 1]float64{2: 11}), 10, 0.02)
	if alone := c.soloTime(&[maxParallel + 1]float64{3: 11}); alone != 0 {
		t.Errorf("it would have taken %v alone, but nobody knows what three at once take", alone)
	}
	for range 20 {
		c.record(10, &[maxParallel + 1]float64{3: 30}, 3)
	}
	if n := c.probe; n != 0 {
		t.Errorf("%d at once are tried, want none: all are measured", n)
	}
	if c.useful != 2 {
		t.Errorf("%d at once are useful, want 2", c.useful)
	}
	c.allowRetry(c.useful, 3)
	if n := c.probe; n != 3 {
		t.Errorf("after a while %d at once are tried, want 3: two are known to be worth it", n)
	}
}

func TestMoreAtOnceAreHeldAgainstTheBestOfFewer(t *testing.T) {
	c := newContention(3)
	c.calibrate([]float64{1, 1.7, 3}, 3)
	if c.useful != 2 {
		t.Fatalf("%d at once are useful, want 2", c.useful)
	}
	c.calibrate([]float64{1, 2.5, 3}, 3) // three are better than two, but no better than one
	if c.useful != 1 || c.backlog != 1 || c.flood != 1 {
		t.Errorf("%d at once are useful, %d in a backlog and %d in a flood, want one each", c.useful, c.backlog, c.flood)
	}
}

// One batch has all four threads, and is 2.8 times as fast. Two at once are slower than that, and
// four are faster.
func TestSeveralAtOnceMakeUpForTheThreadsOfOne(t *testing.T) {
	c := newContention(4)
	c.calibrate([]float64{1 / 2.8, 1.02, 1.03, 1.05}, 4)
	if c.useful != 4 || c.backlog != 4 || c.flood != 4 || c.probe != 0 {
		t.Errorf("%d at once are useful, %d in a backlog and %d in a flood, and %d are probed, want four each, and none", c.useful, c.backlog, c.flood, c.probe)
	}
	c.calibrate([]float64{1 / 2.8, 1.2, 1.3, 1.4}, 4)
	if c.useful != 1 {
		t.Errorf("%d at once are useful, want 1: four are 2.86 times as fast, and one is 2.8", c.useful)
	}
}

func TestAllInstancesRunIfAsManyPayAsAreEstimated(t *testing.T) {
	for slowdown, want := range map[float64]int{1: 40, 2.5: 1} {
		profile := line(5*ms, 3*ms, 1, 2, 4, 8)
		for n := range maxParallel {
			profile.Slowdown = append(profile.Slowdown, max(1, slowdown*float64(n)))
		}
		if slowdown == 1 {
			profile.Slowdown = slices.Repeat([]float64{1}, maxParallel)
		}
		p := New(Options{MaxRows: 8, Instances: 40, Profile: profile})
		if _, running := p.Backlog(0); p.parallel(0) != want || p.parallel(1000) != want || running != want {
			t.Errorf("a slowdown of %v: %d batches run in parallel, %d of many rows, and %d in a backlog, want %d", slowdown, p.parallel(0), p.parallel(1000), running, want)
		}
	}
}

// Another model keeps the device busy, so that no batch is ever exclusive.
func TestBatchesAreNotAloneForLongIfNoneCanBe(t *testing.T) {
	profile := line(5*ms, 3*ms, 1, 2, 4, 8)
	profile.Slowdown = []float64{0.9, 1, 1}
	p := New(Options{MaxRows: 8, Instances: 3, Exclusive: true, Profile: profile})
	p.aloneDue, p.waiting, p.waitingRows = true, 100, 100
	items := []*batching.Item{{Rows: 1}}
	batches := 0
	for ; p.probing() == 1; batches++ {
		now := batching.Time(batches) * 10 * ms
		p.Began(now, &batching.Action{Instance: 1, Items: items})
		p.Ended(now+8*ms, 1, items, false)
		p.waiting, p.waitingRows = 100, 100
		if batches > 1000 {
			t.Fatal("batches still run one at a time")
		}
	}
	if batches < minSamples {
		t.Errorf("%d batches ran one at a time", batches)
	}
}

// The first batches of a size class had all threads. Others take longer.
func TestAnExclusiveBatchOfANewClassIsNotTheTimeOfOthers(t *testing.T) {
	profile := line(5*ms, 3*ms, 1, 2, 4, 8)
	profile.Slowdown = []float64{0.5, 1}
	p := New(Options{MaxRows: 8, Instances: 2, Exclusive: true, Profile: profile})
	p.curve = newCurve(8)
	for range 2 * minSamples {
		r := run{rows: 1, scale: 1}
		r.timeBeside[1] = 10e6
		p.learn(&r, 10e6)
	}
	near(t, "the time of a batch that is not exclusive", p.curve.expected(1), 20e6, 0.05)
	near(t, "the share of it that an exclusive one takes", p.contention.factor[1], 0.5, 0.05)
}

// The times it is measured against may be guesses that are too long.
func TestAfterAChangeOfSpeedASlowdownIsNotSmallAtOnce(t *testing.T) {
	c := newContention(2)
	c.calibrate([]float64{1, 2}, 2)
	c.restart(2)
	batches := 0
	for c.useful == 1 && batches < 100 {
		c.record(1e6, &[maxParallel + 1]float64{2: 1.2e6}, 2)
		batches++
	}
	if want := minRestored - retrySamples; batches != want {
		t.Errorf("two at once are used after %d batches that were 1.2 times as slow and not twice, want %d", batches, want)
	}
}

// Another process used the cores while two parallel batches were calibrated.
func TestASlowdownThatWasMismeasuredIsTriedAgain(t *testing.T) {
	c := newContention(2)
	c.calibrate([]float64{1, 2.5}, 2)
	if n := c.probe; n != 0 || c.useful != 1 {
		t.Fatalf("what was calibrated is tried at once: %d at once, %d useful", n, c.useful)
	}
	c.allowRetry(c.useful, 2)
	batches := 0
	for c.probe == 2 {
		c.record(10, &[maxParallel + 1]float64{2: 11}, 2)
		batches++
	}
	if batches > 8 || c.useful != 2 {
		t.Errorf("after %d batches %d at once are useful, want 2 after 8 or fewer; they are taken to be %v times as slow, and are 1.1", batches, c.useful, c.slowdown(2))
	}
}

// A slowdown may keep batches from running in parallel, also where that number is in use.
func TestASlowdownWithoutNewSamplesIsMeasuredAgain(t *testing.T) {
	c := newContention(3)
	c.calibrate([]float64{1, 1.8, 1.85}, 3)
	c.allowRetry(3, 3)
	if c.probe != 0 {
		t.Errorf("%d parallel batches are probed, which were just calibrated", c.probe)
	}
	c.allowRetry(3, 3)
	if c.probe != 2 {
		t.Errorf("%d parallel batches are probed, want 2", c.probe)
	}
}

func TestARetryGoesOnWhileItIsFasterThanExpected(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes float64 // of two batches in parallel, times one alone
		probe int
	}{{"as slow as before", 2.7, 0}, {"not slowed down", 1, 2}} {
		c := newContention(2)
		c.calibrate([]float64{1, 2.7}, 2)
		c.allowRetry(1, 2)
		for range 2 {
			var ran [maxParallel + 1]float64
			ran[2] = tt.takes * 1e6
			c.record(1e6, &ran, 2)
		}
		if c.probe != tt.probe {
			t.Errorf("%s: %d parallel batches are probed after two, want %d", tt.name, c.probe, tt.probe)
		}
	}
}

// Otherwise the next batch would be of the largest size again, which is slow for another reason.
func TestBatchesGrowByStepsAfterASizeWasDisproved(t *testing.T) {
	c := newCurve(48)
	for range 4 {
		c.record(2, 1.4e6)
		c.record(34, 44e6)
	}
	c.disprove(4, 2.2e6)
	if c.record(4, 2.2e6); c.largest != 4 {
		t.Errorf("the largest size that was measured is %d, want 4", c.largest)
	}
}

// Requests take five times as long as in calibration, which looks at first like a
// slowdown of parallel batches.
func TestAnotherSpeedIsNotTakenForASlowdown(t *testing.T) {
	for _, aloneFirst := range []int{0, 30} {
		profile := line(5*ms, 3*ms, 1, 2, 3, 4, 8)
		profile.Slowdown = []float64{1, 1.05}
		p := New(Options{MaxRows: 8, Instances: 2, Profile: profile})
		takes := 5 * p.curve.expected(1)
		for n := range 300 {
			r := run{rows: 1}
			took := takes
			if n >= aloneFirst && p.contention.useful == 2 {
				took *= 1.05
				r.timeBeside[2] = took
			} else {
				r.timeBeside[1] = took
			}
			p.learn(&r, took)
		}
		if p.contention.useful != 2 {
			t.Errorf("%d alone first: %d at once are useful, want 2; they are taken to be %.2f times as slow, and are 1.05", aloneFirst, p.contention.useful, p.contention.slowdown(2))
		}
	}
}

// A rule that keeps batches apart because of a slowdown also keeps it from being measured.
func TestSlowdownsThatWereCalibratedUnderTrafficAreMeasuredInTheFirstRound(t *testing.T) {
	profile := line(2*ms, 0, 1, 2)
	profile.Slowdown = []float64{1, 1.1, 1.9}
	for _, batch := range []uint64{0, 1000} {
		p := New(Options{MaxRows: 2, Instances: 3})
		p.ledger.batch = batch
		p.Calibrated(profile)
		if p.contention.allowRetry(3, 3); (p.contention.probe == 2) != (batch > 0) {
			t.Errorf("calibrated at batch %d: %d at once are probed first", batch, p.contention.probe)
		}
	}
}

func TestAnExplanationSaysWhatEachSizeRestsOn(t *testing.T) {
	p := New(Options{MaxRows: 16, Instances: 2, Profile: batching.Profile{Sizes: []batching.Timing{{Rows: 1, Median: 2 * ms, Runs: 5}, {Rows: 3, Median: 4 * ms, Runs: 5}}}})
	p.curve.record(5, 6e6)
	p.resize()
	e := p.Explain()
	var rows []int
	for _, s := range e.Curve {
		rows = append(rows, s.Rows)
		if want := s.Rows == 1 || s.Rows == 3; s.Calibrated != want || (s.Samples > 0) != (s.Rows == 5) {
			t.Errorf("%+v rests on the wrong thing", s)
		}
	}
	if want := []int{1, 2, 3, 4, 5, 8, 14, 16}; !slices.Equal(rows, want) {
		t.Errorf("the sizes are %v, want %v, of which all but three are fitted; efficient is %d and the peak %d", rows, want, e.TargetRows, e.PeakRows)
	}
	if want := []bool{true, false}; !slices.Equal(e.Measured, want) {
		t.Errorf("of slowdowns %v were measured, want %v", e.Measured, want)
	}
	if empty := New(Options{MaxRows: 16}).Explain(); len(empty.Curve) != 0 {
		t.Errorf("nothing is known, and it says %v", empty.Curve)
	}
}

func TestWhatARuleCostStaysInItsAccount(t *testing.T) {
	p := New(Options{MaxRows: 8})
	p.ledger.accounts[burst].add(5e6, 0)
	p.ledger.accounts[burst].add(-2e6, 1)
	for range 128 {
		p.ledger.batchEnded(1e6)
	}
	for _, r := range p.Explain().Rules {
		if want := r.Name != "burst"; r.Enabled != want || !want && (r.OffBatches != 256 || r.Stops != 1 || r.Cost != 0 || r.TotalCost != 5*ms || r.TotalGain != 2*ms) {
			t.Errorf("%+v", r)
		}
	}
}

func TestGapsTellHowCrowdedRequestsAre(t *testing.T) {
	var g gaps
	now := batching.Time(0)
	for i := range 401 {
		g.arrived(now, 1000)
		now += 1000 * batching.Time(1+99*(i%2)) // every other request arrives right after another
	}
	if got := g.shareWithin(5000, 1000); got < 0.45 || got > 0.55 {
		t.Errorf("%.2f come within 5 µs, want about a half", got)
	}
}

func TestABatchThatIsNotExclusiveCountsAsBesideOthersUntilItEnds(t *testing.T) {
	for exclusive, want := range map[bool][3][2]float64{
		false: {{1e6, 4e6}, {6e6, 4e6}, {5e6, 0}},
		true:  {{1e6, 4e6}, {0, 10e6}, {0, 5e6}},
	} {
		p := New(Options{MaxRows: 4, Instances: 2, Exclusive: exclusive})
		items := []*batching.Item{{Rows: 1}}
		began := func(now batching.Time, instance int, alone bool) {
			p.Began(now, &batching.Action{Instance: instance, Items: items, Exclusive: alone})
		}
		var got [3][2]float64
		end := func(n int, now batching.Time, instance int) {
			p.Ended(now, instance, items, true)
			got[n] = [2]float64(p.runs[instance-1].timeBeside[1:])
		}
		began(0, 1, true)
		began(1*ms, 2, false)
		end(0, 5*ms, 1)
		end(1, 11*ms, 2)
		began(20*ms, 1, false) // nothing else runs, but it does not have the device to itself
		end(2, 25*ms, 1)
		if got != want {
			t.Errorf("exclusive %v: ran %v ns alone and beside another, want %v", exclusive, got, want)
		}
	}
}
