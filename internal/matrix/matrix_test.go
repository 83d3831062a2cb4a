package matrix

import "testing"

func TestCellsHaveNamesAndKeysOfTheirOwn(t *testing.T) {
	for set, cells := range map[string][]*Cell{"tuned": Tuned(), "held out": HeldOut()} {
		names, keys := map[string]bool{}, map[string]bool{}
		for _, c := range cells {
			if names[c.Name()] || keys[c.Key()] {
				t.Errorf("%s: %s is there twice", set, c.Name())
			}
			names[c.Name()], keys[c.Key()] = true, true
			if share := c.Traffic.share(); share > 0.96 {
				t.Errorf("%s: %s sends %.2f of what can be answered, for ever", set, c.Name(), share)
			}
		}
		t.Logf("%s: %d cells", set, len(cells))
	}
}
