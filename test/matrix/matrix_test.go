package matrix

import "testing"

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
	meanLatencyIsAtMost(t, 11, "convex/serial poisson 0.85") // an efficient policy takes 9.2 to 9.7 ms
}

// Requests that are longer than those of calibration look like another speed, and calibrated
// slowdowns were measured again at once, when the times of most sizes were too long. Two batches at
// once seemed to be faster than one on a device that runs one at a time: 22.8 to 43.8 ms.
func TestParallelBatchesAreNotProbedWithTimesThatAreGuesses(t *testing.T) {
	meanLatencyIsAtMost(t, 27, "lengths/serial poisson 0.85") // with one instance it is 21.2 to 23.6 ms
}

// The slowdowns that were measured first after such a change were too small, too.
func TestParallelBatchesAreNotUsedBecauseTimesAreGuesses(t *testing.T) {
	meanLatencyIsAtMost(t, 60, "lengths/serial poisson 0.95")
}

// meanLatencyIsAtMost runs a cell with eight seeds, and fails if one of them has a longer mean latency
// in milliseconds.
func meanLatencyIsAtMost(t *testing.T, most float64, name string) {
	t.Helper()
	if raceEnabled {
		t.Skip("figures do not differ with the race detector, and take ten times as long")
	}
	cells := 0
	for _, c := range Tuned() {
		if c.Name() != name {
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
