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
