package node

import (
	"testing"
	"time"
)

func TestATallyCountsFromZeroIfAVersionWasLoadedAgain(t *testing.T) {
	const fast, slow = time.Millisecond, time.Second
	before := &Figures{Requests: 100, Failures: 3, Times: []Bucket{{fast, 90}, {slow, 7}}}
	for name, test := range map[string]struct {
		now             Figures
		requests, above uint64
	}{
		"it was not":                     {Figures{Requests: 150, Failures: 3, Times: []Bucket{{fast, 138}, {slow, 9}}}, 50, 2},
		"it was, and has fewer requests": {Figures{Requests: 40, Times: []Bucket{{fast, 39}, {slow, 1}}}, 40, 1},
		"it was, and has more requests":  {Figures{Requests: 200, Times: []Bucket{{fast, 199}, {slow, 1}}}, 200, 1},
		"it was, and has no times yet":   {Figures{Requests: 200}, 200, 0},
	} {
		var tally Tally
		tally.Add(before, &test.now)
		if tally.Requests != test.requests || tally.Above(100*time.Millisecond) != test.above {
			t.Errorf("%s: %d requests, %d of them slow; want %d and %d", name, tally.Requests, tally.Above(100*time.Millisecond), test.requests, test.above)
		}
	}
}
