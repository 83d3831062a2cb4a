package matrix

import (
	"strings"
	"testing"
)

func TestCellsHaveUniqueNamesAndKeys(t *testing.T) {
	for set, cells := range map[string][]*Cell{"tuned": Tuned(), "held out": HeldOut()} {
		names, keys := map[string]bool{}, map[string]bool{}
		for _, c := range cells {
			if names[c.Name()] || keys[c.Key()] {
				t.Errorf("%s: duplicate cell %s", set, c.Name())
			}
			names[c.Name()], keys[c.Key()] = true, true
			if share := c.Traffic.share(); share > 0.96 {
				t.Errorf("%s: %s has a mean load of %.2f of its capacity, want at most 0.96", set, c.Name(), share)
			}
		}
		t.Logf("%s: %d cells", set, len(cells))
	}
}

// A batch that is faster than expected, which one of hundreds is, had the calibrated times of all
// larger ones forgotten. A line through the others has no end, and the largest batches, by which a
// device whose time grows with the square of the size falls behind for good, seemed to be the best.
func TestACurveThatBendsUpwardsIsNotForgotten(t *testing.T) {
	if raceEnabled {
		t.Skip("figures do not differ with the race detector, and take ten times as long")
	}
	const most = 11.0 // ms; an efficient policy takes 9.2 to 9.7
	cells := 0
	for _, c := range Tuned() {
		if !strings.HasPrefix(c.Name(), "convex/serial poisson 0.85") || c.Drift != 0 {
			continue
		}
		cells++
		for seed := range uint64(8) {
			r := run{requests: 20_000, seed: seed + 1}
			f, err := c.measure(Automatic.New(Instances, c.calibrate(r.seed)), MaxRows, Instances, r)
			if err != nil {
				t.Fatal(err)
			}
			if f.Mean > most {
				t.Errorf("seed %d: the mean latency is %.1f ms, want at most %.1f", r.seed, f.Mean, most)
			}
		}
	}
	if cells != 1 {
		t.Errorf("%d cells, want 1", cells)
	}
}
