package matrix

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// beam is the maximum number of schedules that the search keeps for the same requests.
const beam = 64

// A schedule is a way to serve the first requests.
type schedule struct {
	free time.Duration // when the executor becomes free
	cost time.Duration // sum of the latencies so far
}

// clairvoyant returns the lowest mean latency of one executor that knows all arrivals in
// advance. Requests are served in order of arrival, so a batch begins when the executor is
// free and its last request has arrived; waiting longer only adds latency. It is a beam
// search: schedules that are both later and more expensive than others are dropped, and of
// the rest the cheapest are kept.
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
	schedules := make([][]schedule, n+1)
	schedules[0] = []schedule{{}}
	for i := range n {
		schedules[i] = prune(schedules[i], arrivals[i:])
		for rows := 1; rows <= min(MaxRows, n-i); rows++ {
			asked := sums[i+rows] - sums[i]
			for _, w := range schedules[i] {
				end := max(w.free, arrivals[i+rows-1]) + takes[rows]
				schedules[i+rows] = append(schedules[i+rows], schedule{end, w.cost + end*time.Duration(rows) - asked})
			}
		}
		schedules[i] = nil
	}
	return slices.MinFunc(schedules[n], func(a, b schedule) int { return cmp.Compare(a.cost, b.cost) }).cost / time.Duration(n)
}

// prune returns the schedules that may still be the best. The cost by which it compares
// them includes the time that requests will have waited when the executor becomes free.
func prune(schedules []schedule, left []time.Duration) []schedule {
	slices.SortFunc(schedules, func(a, b schedule) int { return cmp.Or(cmp.Compare(a.free, b.free), cmp.Compare(a.cost, b.cost)) })
	kept := schedules[:0]
	for _, w := range schedules {
		if len(kept) == 0 || w.cost < kept[len(kept)-1].cost {
			kept = append(kept, w)
		}
	}
	if len(kept) <= beam {
		return kept
	}
	waited := func(w schedule) (sum time.Duration) {
		for _, at := range left {
			if at >= w.free {
				break
			}
			sum += w.free - at
		}
		return sum
	}
	type scored struct {
		schedule
		score time.Duration
	}
	all := make([]scored, len(kept))
	for i, w := range kept {
		all[i] = scored{w, w.cost + waited(w)}
	}
	slices.SortFunc(all, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	kept = kept[:beam]
	for i := range kept {
		kept[i] = all[i].schedule
	}
	return kept
}

// regretRequests is the number of requests of a run that is compared with the clairvoyant
// executor.
const regretRequests = 2_000

// Regret returns gate A12: the mean latency relative to that of an executor that knows all
// arrivals in advance. Batch times have no noise here, because it cannot be known.
func Regret(s Subject, seeds, worst int) (Verdict, error) {
	v := Verdict{Gate: "A12", Requires: "open loop, one executor: mean latency at most 1.10 of what a clairvoyant reaches"}
	var ours, greedys []ratio
	for _, m := range []Model{flat, mid, linear, proportional, convex, step} {
		for _, t := range []Traffic{
			poisson(0.1), poisson(0.3), poisson(0.5), poisson(0.7), poisson(0.85), mmpp(0.2, 0.9, 200*ms, 100*ms), bursts(0.5, 8, 10*us),
		} {
			c := &Cell{Model: m, Device: serial, Traffic: t, Seed: 1}
			our, plain := ratio{cell: c}, ratio{cell: c}
			for seed := range uint64(seeds) {
				r := run{requests: regretRequests, seed: seed + 1}
				best, arrivals, err := c.clairvoyantMean(r)
				if err != nil {
					return v, err
				}
				if len(arrivals) != regretRequests {
					return v, fmt.Errorf("%s: %d of %d requests were answered", c.Name(), len(arrivals), regretRequests)
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
	m := comparison{what: "automatic", limits: []limit{{1, 1.1}}}
	v.Measured = m.judge(ours, &v)
	m.what = "greedy for comparison"
	v.Measured += "; " + m.judge(greedys, &Verdict{})
	for _, r := range ours[:min(worst, len(ours))] {
		v.Worst = append(v.Worst, r.String())
	}
	return v, nil
}

// clairvoyantMean returns the clairvoyant executor's mean latency in a run, and the
// arrivals.
func (c *Cell) clairvoyantMean(r run) (time.Duration, []time.Duration, error) {
	var arrivals []time.Duration
	var s simulate.Scenario
	_, err := s.Measure(c.setting(greedy(1).policy(), MaxRows, 1, r), func(a simulate.Answer) { arrivals = append(arrivals, a.Arrived) })
	if err != nil {
		return 0, nil, err
	}
	slices.Sort(arrivals)
	return clairvoyant(arrivals, c.Model.Curve), arrivals, nil
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
