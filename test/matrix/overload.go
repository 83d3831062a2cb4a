package matrix

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/test/measure"
)

// overloaded is a model with a latency objective, and more requests than it can answer
// within it.
type overloaded struct {
	model     Model
	objective time.Duration
	times     float64 // load relative to what it can answer in time
}

// Overload returns gates A7 and A8: the goodput under overload, and how soon other requests
// are refused.
func Overload(seeds, worst int) (goodput, refusal Verdict, err error) {
	goodput = Verdict{Gate: "A7", Requires: "goodput at 1.2 to 4 times the capacity: at least 97 % of the capacity, at most 0.5 % late"}
	refusal = Verdict{Gate: "A8", Requires: "refusals at twice the capacity or more: after at most 0.3 of the objective, on average"}
	var good, late, refused []figure
	for _, o := range []overloaded{
		{model: flat, objective: 20 * ms}, {model: mid, objective: 50 * ms}, {model: linear, objective: 50 * ms}, {model: step, objective: 30 * ms},
	} {
		for _, o.times = range []float64{1.2, 2, 4} {
			name := fmt.Sprintf("%s within %v, %g times", o.model.Name, o.objective, o.times)
			var all [3]float64
			for seed := range uint64(seeds) {
				one, err := o.measure(run{duration: 40 * time.Second, seed: seed + 1})
				if err != nil {
					return goodput, refusal, fmt.Errorf("%s: %w", name, err)
				}
				for i := range one {
					all[i] += one[i] / float64(seeds)
				}
			}
			good, late = append(good, figure{name, 1 - all[0]}), append(late, figure{name, all[1]})
			if o.times >= 2 {
				refused = append(refused, figure{name, all[2]})
			}
		}
	}
	for _, f := range [][]figure{good, late, refused} {
		slices.SortFunc(f, func(a, b figure) int { return int(1e9 * (b.value - a.value)) })
	}
	goodput.hold(good[0].value, measure.AtMost(0.03))
	goodput.hold(late[0].value, measure.AtMost(0.005))
	goodput.Measured = fmt.Sprintf("worst %.1f %%, median %.1f %% of %d cases; late: worst %.2f %%", 100-100*good[0].value, 100-100*good[len(good)/2].value, len(good), 100*late[0].value)
	refusal.hold(refused[0].value, measure.AtMost(0.3))
	refusal.Measured = fmt.Sprintf("worst %.3f, median %.3f of %d cases", refused[0].value, refused[len(refused)/2].value, len(refused))
	for i := range min(worst, len(refused)) {
		goodput.Worst = append(goodput.Worst, fmt.Sprintf("%.1f %%: %s", 100-100*good[i].value, good[i].name))
		refusal.Worst = append(refusal.Worst, fmt.Sprintf("%.3f: %s", refused[i].value, refused[i].name))
	}
	return goodput, refusal, nil
}

// A figure is a result of one case; higher is worse.
type figure struct {
	name  string
	value float64
}

// measure returns the goodput relative to the capacity, the fraction of late answers, and
// the mean time to a refusal relative to the objective.
func (o *overloaded) measure(r run) (all [3]float64, err error) {
	c := &Cell{Model: o.model, Device: serial, Noise: defaultNoise, Seed: 1}
	// A request that just misses a batch waits for it and runs in the next, so both must
	// fit into the objective. The p95 of batch times is 5 % above the mean.
	const slow = 1.05
	capacity := 0.0
	for rows := 1; rows <= MaxRows && 2*slow*c.takes(rows).Seconds() <= o.objective.Seconds(); rows++ {
		capacity = max(capacity, c.speed(rows, 1))
	}
	c.Traffic = poisson(o.times * capacity / c.Capacity())
	set := c.setting(automatic.New(automatic.Options{MaxRows: MaxRows, Instances: 1, Profile: c.calibrate(r.seed), Objective: o.objective}), MaxRows, 1, r)
	set.Models[0].Objective, set.Models[0].Admission = o.objective, true
	var s simulate.Scenario
	sum, err := s.Measure(set, func(simulate.Answer) {})
	if err != nil {
		return all, err
	}
	return [3]float64{sum.Goodput / capacity, float64(sum.Late) / float64(sum.Answered), float64(sum.Refusal.Mean) / float64(o.objective)}, nil
}
