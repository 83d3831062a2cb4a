package matrix

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// beam is how many ways of having served the same requests are followed.
const beam = 64

// A way is one of having served the first requests.
type way struct {
	free time.Duration // when the executor is
	cost time.Duration // the sum of the latencies so far
}

// clairvoyant returns the mean latency that one executor could reach that knows all
// arrivals, in order of time, from the start. Requests are served in the order in
// which they come; a batch then begins when the executor is free and its last
// member is there, since waiting for anything else only costs. Ways that are both
// later and dearer than others are dropped, and of the rest the cheapest are
// followed.
func clairvoyant(arrivals []time.Duration, curve device.Curve) time.Duration {
	n := len(arrivals)
	sums := make([]time.Duration, n+1)
	for i, at := range arrivals {
		sums[i+1] = sums[i] + at
	}
	takes := make([]time.Duration, MaxRows+1)
	for rows := range takes {
		takes[rows] = curve.Takes(rows)
	}
	ways := make([][]way, n+1)
	ways[0] = []way{{}}
	for i := range n {
		ways[i] = followed(ways[i], arrivals[i:])
		for rows := 1; rows <= min(MaxRows, n-i); rows++ {
			asked := sums[i+rows] - sums[i]
			for _, w := range ways[i] {
				end := max(w.free, arrivals[i+rows-1]) + takes[rows]
				ways[i+rows] = append(ways[i+rows], way{end, w.cost + end*time.Duration(rows) - asked})
			}
		}
		ways[i] = nil
	}
	return slices.MinFunc(ways[n], func(a, b way) int { return cmp.Compare(a.cost, b.cost) }).cost / time.Duration(n)
}

// followed returns the ways that may still be the best. How cheap one is includes
// what those who wait have waited by the time that it is free.
func followed(ways []way, left []time.Duration) []way {
	slices.SortFunc(ways, func(a, b way) int { return cmp.Or(cmp.Compare(a.free, b.free), cmp.Compare(a.cost, b.cost)) })
	kept := ways[:0]
	for _, w := range ways {
		if len(kept) == 0 || w.cost < kept[len(kept)-1].cost {
			kept = append(kept, w)
		}
	}
	if len(kept) <= beam {
		return kept
	}
	waited := func(w way) (sum time.Duration) {
		for _, at := range left {
			if at >= w.free {
				break
			}
			sum += w.free - at
		}
		return sum
	}
	type scored struct {
		way
		score time.Duration
	}
	all := make([]scored, len(kept))
	for i, w := range kept {
		all[i] = scored{w, w.cost + waited(w)}
	}
	slices.SortFunc(all, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	kept = kept[:beam]
	for i := range kept {
		kept[i] = all[i].way
	}
	return kept
}

// regretted is how many requests the clairvoyant knows.
const regretted = 2_000

// Regret returns gate A12: by how much the mean latency is above what one executor
// could reach that knows all arrivals. Noise is left out, since nobody knows it.
func Regret(s Subject, seeds, worst int) (Verdict, error) {
	v := Verdict{Gate: "A12", Requires: "open loop, one executor: mean latency at most 1.10 of what a clairvoyant reaches"}
	var ours, greedys []ratio
	for _, m := range []Model{flat, mid, linear, proportional, convex, step} {
		for _, t := range []Traffic{
			poisson(0.1), poisson(0.3), poisson(0.5), poisson(0.7), poisson(0.85), byChance(0.2, 0.9, 200*ms, 100*ms), bursts(0.5, 8, 10*us),
		} {
			c := &Cell{Model: m, Device: serial, Traffic: t, Seed: 1}
			our, plain := ratio{cell: c}, ratio{cell: c}
			for seed := range uint64(seeds) {
				r := run{requests: regretted, seed: seed + 1}
				best, arrivals := c.foresee(r)
				if len(arrivals) != regretted {
					continue
				}
				for _, one := range []struct {
					setting simulate.Setting
					to      *ratio
				}{
					{c.setting(s.New(Instances, c.calibrate(r.seed)), MaxRows, Instances, r), &our},
					{c.setting(greedy(1).policy(), MaxRows, 1, r), &plain},
				} {
					mean, err := c.meanOfAll(one.setting)
					if err != nil {
						return v, err
					}
					one.to.bySeed = append(one.to.bySeed, float64(mean)/float64(best))
					one.to.value += float64(mean) / float64(best) / float64(seeds)
				}
			}
			ours, greedys = append(ours, our), append(greedys, plain)
		}
	}
	higher := func(a, b ratio) int { return cmp.Compare(b.value, a.value) }
	slices.SortStableFunc(ours, higher)
	slices.SortStableFunc(greedys, higher)
	m := measure{what: "automatic", limits: []limit{{1, 1.1}}}
	v.Measured, v.Kept = m.judge(ours)
	m.what = "greedy beside it"
	plain, _ := m.judge(greedys)
	v.Measured += "; " + plain
	for _, r := range ours[:min(worst, len(ours))] {
		v.Worst = append(v.Worst, r.String())
	}
	return v, nil
}

// foresee returns the clairvoyant's mean latency for a run, and the arrivals.
func (c *Cell) foresee(r run) (time.Duration, []time.Duration) {
	var arrivals []time.Duration
	var s simulate.Scenario
	_, err := s.Measure(c.setting(greedy(1).policy(), MaxRows, 1, r), func(a simulate.Answer) { arrivals = append(arrivals, a.Arrived) })
	if err != nil {
		return 0, nil
	}
	slices.Sort(arrivals)
	return clairvoyant(arrivals, c.Model.Curve), arrivals
}

func (c *Cell) meanOfAll(set simulate.Setting) (time.Duration, error) {
	var sum time.Duration
	n := 0
	var s simulate.Scenario
	_, err := s.Measure(set, func(a simulate.Answer) {
		sum += a.At - a.Arrived
		n++
	})
	return sum / time.Duration(max(1, n)), err
}
