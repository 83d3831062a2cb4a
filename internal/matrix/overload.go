package matrix

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// An overloaded case is a model with a service level, and more requests than it can
// answer within it.
type overloaded struct {
	model     Model
	objective time.Duration
	times     float64 // what it can answer
}

// Overload returns gates A7 and A8: what is answered in time when more comes than
// can be, and how soon the others are told.
func Overload(seeds, worst int) (goodput, refusal Verdict, err error) {
	goodput = Verdict{Gate: "A7", Requires: "goodput at 1.2 to 4 times the capacity: at least 97 % of what can be answered in time, at most 0.5 % late"}
	refusal = Verdict{Gate: "A8", Requires: "refused at twice the capacity or more: after at most 0.3 of the service level, on average"}
	var good, late, told []figure
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
				told = append(told, figure{name, all[2]})
			}
		}
	}
	for _, f := range [][]figure{good, late, told} {
		slices.SortFunc(f, func(a, b figure) int { return int(1e9 * (b.value - a.value)) })
	}
	goodput.Kept = good[0].value <= 0.03 && late[0].value <= 0.005
	goodput.Measured = fmt.Sprintf("worst %.1f %%, median %.1f %% of %d cases; late: worst %.2f %%", 100-100*good[0].value, 100-100*good[len(good)/2].value, len(good), 100*late[0].value)
	refusal.Kept = told[0].value <= 0.3
	refusal.Measured = fmt.Sprintf("worst %.3f, median %.3f of %d cases", told[0].value, told[len(told)/2].value, len(told))
	for i := range min(worst, len(told)) {
		goodput.Worst = append(goodput.Worst, fmt.Sprintf("%.1f %%: %s", 100-100*good[i].value, good[i].name))
		refusal.Worst = append(refusal.Worst, fmt.Sprintf("%.3f: %s", told[i].value, told[i].name))
	}
	return goodput, refusal, nil
}

// A figure is one of a case; more is worse.
type figure struct {
	name  string
	value float64
}

// measure returns the part of what can be answered in time that is, the part of
// answers that are late, and how soon others are told, in service levels.
func (o *overloaded) measure(r run) (all [3]float64, err error) {
	c := &Cell{Model: o.model, Device: serial, Noise: usualNoise, Seed: 1}
	// A request that just misses a batch waits for it and takes part in the next: both
	// have to fit, and 95 of 100 batches take up to 5 % longer than the mean.
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
