package matrix

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/test/measure"
)

// The batches that are measured, counted since the change of speed.
const (
	followedFrom = 64
	followedTo   = 192
)

// Follow returns gate A10: the batch times of a model suddenly double or halve. Starting 64
// batches after the change, the policy is compared with one that was calibrated with the
// new speed.
func Follow(s Subject, seeds, worst int) (Verdict, error) {
	v := Verdict{Gate: "A10", Requires: "speed doubles or halves: within 5 % of the steady state after 64 batches"}
	type followed struct {
		name string
		off  float64 // 0.05 means 5 % worse
	}
	var all []followed
	for _, m := range []Model{flat, mid, step} {
		for _, t := range []Traffic{closed(4, 200*us), closed(16, 200*us), poisson(0.25), poisson(0.4)} {
			for _, times := range []float64{2, 0.5} {
				c := &Cell{Model: m, Device: serial, Traffic: t, Noise: defaultNoise, Seed: 1}
				before, after, err := c.follow(s, times, seeds)
				if err != nil {
					return v, err
				}
				off := before/after - 1
				if c.Traffic.Closed() {
					off = after/before - 1
				}
				all = append(all, followed{fmt.Sprintf("%s, ×%g", c.Name(), times), off})
			}
		}
	}
	slices.SortFunc(all, func(a, b followed) int {
		if a.off > b.off {
			return -1
		}
		return 1
	})
	v.hold(all[0].off, measure.AtMost(0.05))
	v.Measured = fmt.Sprintf("worst %.1f %% off, median %.1f %% of %d cases", 100*all[0].off, 100*all[len(all)/2].off, len(all))
	for _, f := range all[:min(worst, len(all))] {
		v.Worst = append(v.Worst, fmt.Sprintf("%.1f %% off: %s", 100*f.off, f.name))
	}
	return v, nil
}

// follow returns the throughput of a closed loop, or the mean latency of an open one: of
// the policy that saw the change, and of one that was calibrated for the new speed.
func (c *Cell) follow(s Subject, times float64, seeds int) (adapted, calibrated float64, err error) {
	const change = 4 * time.Second
	changed := *c
	curve := &changed.Model.Curve
	curve.Fixed = time.Duration(float64(curve.Fixed) * times)
	curve.PerRow = time.Duration(float64(curve.PerRow) * times)
	changed.Traffic.Loads = slices.Clone(c.Traffic.Loads)
	if !c.Traffic.Closed() {
		changed.Traffic.Loads[0].Rate = []float64{c.Traffic.Loads[0].Rate[0] * times} // the same rate, as a fraction of the changed capacity
	}
	for seed := range uint64(seeds) {
		r := run{duration: change + 400*c.takes(16)*2, seed: seed + 1, drift: []device.Change{{At: change, Times: times}}}
		one, err := c.afterBatches(s, change, r)
		if err != nil {
			return 0, 0, err
		}
		r.drift = nil
		two, err := changed.afterBatches(s, change, r)
		if err != nil {
			return 0, 0, err
		}
		adapted += one / float64(seeds)
		calibrated += two / float64(seeds)
	}
	return adapted, calibrated, nil
}

// afterBatches returns the throughput or mean latency of the measured batches.
func (c *Cell) afterBatches(s Subject, since time.Duration, r run) (float64, error) {
	var answers []simulate.Answer
	var scenario simulate.Scenario
	set := c.setting(s.New(Instances, c.calibrate(r.seed)), MaxRows, Instances, r)
	if _, err := scenario.Measure(set, func(a simulate.Answer) { answers = append(answers, a) }); err != nil {
		return 0, err
	}
	first := slices.IndexFunc(answers, func(a simulate.Answer) bool { return a.Began >= since })
	if first < 0 {
		return 0, fmt.Errorf("%s: no batch began after the change", c.Name())
	}
	from := answers[first].Batch + followedFrom
	n, sum := 0, 0.0
	var begin, end time.Duration
	for _, a := range answers[first:] {
		if a.Batch < from || a.Batch >= from+followedTo-followedFrom {
			continue
		}
		if begin == 0 {
			begin = a.Began
		}
		end = a.At
		n++
		sum += float64(a.At-a.Arrived) / float64(ms)
	}
	switch {
	case n == 0:
		return 0, fmt.Errorf("%s: the run ended within %d batches of the change", c.Name(), followedFrom)
	case c.Traffic.Closed():
		return float64(n) / (end - begin).Seconds(), nil
	}
	return sum / float64(n), nil
}
