package matrix

import (
	"math"
	"testing"

	"github.com/shoal-serving/shoal/test/measure"
)

func TestALimitAppliesToAFractionOfTheCells(t *testing.T) {
	var all []ratio // the worst first
	for _, v := range []float64{1.5, 1.04, 1.03, 1.02, 1.01, 1, 1, 1, 1, 1} {
		all = append(all, ratio{value: v})
	}
	for share, want := range map[float64]float64{1: 1.5, 0.9: 1.04, 0.5: 1} {
		if got := quantile(all, share); got != want {
			t.Errorf("%v of the cells have at most %v, want %v", share, got, want)
		}
	}
	m := comparison{limits: []limit{{0.9, 1.04}}}
	judged := func() Verdict {
		var v Verdict
		m.judge(all, &v)
		return v
	}
	if v := judged(); !v.Kept() {
		t.Error("nine of ten cells have at most 1.04, but the limit for 90 % is missed")
	}
	m.limits = append(m.limits, limit{1, 1.1})
	if v := judged(); v.Kept() || v.Figure != 1.5 || v.Bound != measure.AtMost(1.1) {
		t.Errorf("%+v, want that 1.5 misses the limit for all cells", v)
	}
	m.slack = 0.4
	if v := judged(); !v.Kept() {
		t.Error("a limit is missed despite enough slack")
	}
}

func TestTheWorstMinuteIsFound(t *testing.T) {
	theirs := make([]Window, 12)
	ours := make([]Window, 12)
	for i := range theirs {
		theirs[i], ours[i] = Window{10, 100}, Window{10, 100}
	}
	ours[11].Sum = 160
	if got := worstMinute(ours, theirs); math.Abs(got-1.1) > 1e-9 {
		t.Errorf("the worst minute is %v times as slow, want 1.1", got)
	}
}

func TestTheGridHasEachSettingOnce(t *testing.T) {
	c := &Cell{Model: mid, Device: serial, Traffic: closed(12, ms)}
	seen := map[Static]bool{}
	for _, s := range c.grid() {
		if seen[s] {
			t.Errorf("duplicate setting %v", s)
		}
		seen[s] = true
	}
	if !seen[Static{Preferred: 12, Delay: 5 * ms, MaxRows: 64, Instances: 2}] {
		t.Error("the grid lacks the number of clients as the preferred size")
	}
}
