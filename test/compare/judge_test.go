package main

import (
	"slices"
	"testing"
	"time"
)

// measured returns results in which each server has a throughput and a p99 in one
// cell, by round.
func measured(c cell, by map[string][][2]float64) *results {
	r := &results{}
	for name, rounds := range by {
		for round, v := range rounds {
			r.lines = append(r.lines, line{Kind: kindPass, cell: c, Server: name, Round: round, Throughput: v[0], P99: time.Duration(v[1] * float64(time.Millisecond))})
		}
	}
	return r
}

var lone = cell{"text_recognition", protocolHTTP, 1}

// verdict returns the gate of a peer and a bound in a cell.
func verdict(t *testing.T, r *results, c cell, peer string, f figure, bound float64) gate {
	t.Helper()
	all := gates(r, untouched, subjects(), servers())
	i := slices.IndexFunc(all, func(g gate) bool { return g.cell == c && g.peer == peer && g.name == f.name && g.bound == bound })
	if i < 0 {
		t.Fatalf("found no promise of %s beside %s in %v with the bound %v", f.name, peer, c, bound)
	}
	return all[i]
}

func TestOneLookIsEnoughWhereShoalIsClearlyAhead(t *testing.T) {
	const peer = "BentoML 1.4.40"
	r := measured(lone, map[string][][2]float64{untouched: {{200, 6}}, peer: {{150, 9}}})
	g := verdict(t, r, lone, peer, throughput, leastThroughput)
	if !g.met() || !g.clear() {
		t.Errorf("200 beside 150: %v, want it clear", g)
	}
	if g := verdict(t, r, lone, peer, p99, mostP99); !g.met() || !g.clear() {
		t.Errorf("a p99 of 6 ms beside 9: %v, want it clear", g)
	}
	if got := rivals(gates(r, untouched, subjects(), servers()), lone); len(got) != 0 {
		t.Errorf("got %v to measure again, want none", got)
	}
}

func TestWhatIsCloseOrBehindIsMeasuredAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		peer [2]float64
		of   figure
	}{
		{"a throughput that is close", [2]float64{190, 9}, throughput},
		{"a p99 that is close", [2]float64{100, 6.2}, p99},
		{"behind", [2]float64{300, 9}, throughput},
	} {
		const peer = "BentoML 1.4.40"
		r := measured(lone, map[string][][2]float64{untouched: {{200, 6}}, peer: {c.peer}})
		all := gates(r, untouched, subjects(), servers())
		if got := rivals(all, lone); !slices.Equal(got, []string{peer}) {
			t.Errorf("%s: got %v to measure again, want %s", c.name, got, peer)
		}
		if g := verdict(t, r, lone, peer, c.of, 1); g.met() || g.outcome() != "no verdict with 0 pairs, which takes 7" {
			t.Errorf("%s: %v, want no verdict before it is measured in turn", c.name, g)
		}
	}
}

func TestWhatWasMeasuredInTurnCountsAlone(t *testing.T) {
	const peer = "BentoML 1.4.40"
	ours, theirs := [][2]float64{{500, 1}}, [][2]float64{{100, 1}}
	for range 7 {
		ours, theirs = append(ours, [2]float64{90, 5}), append(theirs, [2]float64{100, 5})
	}
	g := verdict(t, measured(lone, map[string][][2]float64{untouched: ours, peer: theirs}), lone, peer, throughput, leastThroughput)
	if g.met() || len(g.got.pairs) != 7 || g.got.mid != 0.9 || g.outcome() != "missed by 10.0 %" {
		t.Errorf("got %v of %d pairs, want 0.9 of 7, missed by 10 %%", g, len(g.got.pairs))
	}
}

func TestAPromiseIsMissedIfOnlyTheIntervalReachesIt(t *testing.T) {
	const peer = "BentoML 1.4.40"
	ours, theirs := [][2]float64{{500, 1}}, [][2]float64{{100, 1}}
	for _, v := range []float64{0.9, 0.9, 0.9, 0.9, 0.95, 1.1, 1.1} {
		ours, theirs = append(ours, [2]float64{100 * v, 5 / v}), append(theirs, [2]float64{100, 5})
	}
	r := measured(lone, map[string][][2]float64{untouched: ours, peer: theirs})
	for _, f := range []figure{throughput, p99} {
		g := verdict(t, r, lone, peer, f, 1)
		if v, err := g.judge(); err != nil || g.met() || !v.OnlyInterval() {
			t.Errorf("%v: %v, want it missed, although the interval reaches it", g, err)
		}
	}
}

func TestFewerThanSevenPairsHaveNoVerdict(t *testing.T) {
	const peer = "BentoML 1.4.40"
	ours, theirs := [][2]float64{{100, 5}}, [][2]float64{{100, 5}}
	for range 6 {
		ours, theirs = append(ours, [2]float64{200, 4}), append(theirs, [2]float64{100, 5})
	}
	g := verdict(t, measured(lone, map[string][][2]float64{untouched: ours, peer: theirs}), lone, peer, throughput, leastThroughput)
	if g.met() || g.outcome() != "no verdict with 6 pairs, which takes 7" {
		t.Errorf("%v, want no verdict", g)
	}
}

func TestThoseWhoWaitArePromisedToBeFarBehindALoneClient(t *testing.T) {
	const peer = "MMS 1.1.11"
	r := measured(lone, map[string][][2]float64{untouched: {{200, 6}}, peer: {{120, 9}}})
	if g := verdict(t, r, lone, peer, throughput, timesWaiting); g.met() {
		t.Errorf("%v is met, want it missed", g)
	}
	for _, g := range gates(r, untouched, subjects(), servers()) {
		if g.bound == timesWaiting && (g.Clients != 1 || g.Model == "ppocrv4_rec" || g.peer == "Triton 2.51") {
			t.Errorf("found a promise where nobody waits: %v", g)
		}
	}
}

func TestAPeerThatIsAbsentIsNeitherMetNorMissed(t *testing.T) {
	g := verdict(t, measured(lone, map[string][][2]float64{untouched: {{200, 6}}}), lone, "MMS 1.1.11", throughput, leastThroughput)
	if g.ok || g.met() || g.outcome() != "not measured" {
		t.Errorf("got %v, want it not measured", g)
	}
}
