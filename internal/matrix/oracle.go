package matrix

import (
	"fmt"
	"slices"
	"time"
)

// Version of what decides about the oracle: the simulator, the static rule, the
// grid and the constants below. One more makes stored results void. The command
// repeats some of them to see whether that was forgotten.
const Version = 1

// An Effort is how long runs are. The reduced matrix has less of it.
type Effort struct {
	Screen   int           // requests of the first pass over the grid
	Second   int           // requests of the pass over the best
	Full     int           // requests of the runs that count
	Seeds    int           // of those
	Keep     int           // settings for each metric that the second pass tries
	Finals   int           // settings for each metric that full runs decide between
	Minutes  time.Duration // of the runs that are looked at in windows of a minute; 0 means none
	OneGuard bool          // windows of the calibrated policy only
}

// FullEffort is that of the matrix.
var FullEffort = Effort{Screen: 3_000, Second: 20_000, Full: 100_000, Seeds: 5, Keep: 16, Finals: 3, Minutes: 2 * time.Minute}

// Seed 0 narrows the grid down; those after it count. Among the last few settings
// the seeds that count decide, which favours the oracle: the policy has one try.
const choosing = 0

// An Oracle is what static settings make of a cell. It does not depend on the
// automatic policy, and stays when that changes.
type Oracle struct {
	Cell      string          `json:"cell"` // its key
	Name      string          `json:"name"`
	Version   int             `json:"version"`
	Effort    Effort          `json:"effort"`
	Tried     int             `json:"tried"` // settings
	Best      map[Metric]Best `json:"best"`
	Greedy    []Figures       `json:"greedy"`     // one instance, by seed
	GreedyAll []Figures       `json:"greedy_all"` // as many instances as the automatic policy may use
	Windows   []Window        `json:"windows"`    // of the greedy rule that is the better one in this cell
	Took      float64         `json:"took_s"`
}

// Best is the best static setting by one metric.
type Best struct {
	Setting Static    `json:"setting"`
	Figures []Figures `json:"figures"` // by seed
}

// candidate is a setting with what came of it last.
type candidate struct {
	setting Static
	figures Figures
	bySeed  []Figures
}

// Ask finds the best static settings for a cell.
func Ask(c *Cell, e Effort) (*Oracle, error) {
	o := &Oracle{Cell: c.Key(), Name: c.Name(), Version: Version, Effort: e, Best: map[Metric]Best{}}
	kept, err := c.screen(e, o)
	if err != nil {
		return nil, err
	}
	for i := range kept {
		if kept[i].bySeed, err = c.bySeed(kept[i].setting, e); err != nil {
			return nil, err
		}
	}
	for _, metric := range c.Metrics() {
		best := slices.MinFunc(kept, func(a, b candidate) int {
			return metric.compare(mean(a.bySeed, metric), mean(b.bySeed, metric))
		})
		o.Best[metric] = Best{Setting: best.setting, Figures: best.bySeed}
	}
	if o.Greedy, err = c.bySeed(greedy(1), e); err != nil {
		return nil, err
	}
	if o.GreedyAll, err = c.bySeed(greedy(Instances), e); err != nil {
		return nil, err
	}
	if e.Minutes > 0 {
		better := greedy(1)
		if mean(o.GreedyAll, Mean) < mean(o.Greedy, Mean) {
			better = greedy(Instances)
		}
		o.Windows, err = c.windows(better.policy(), MaxRows, better.Instances, e.Minutes)
	}
	return o, err
}

// Check repeats one run of the oracle's, and reports whether it came to the same.
func (o *Oracle) Check(c *Cell) error {
	again, err := c.measureStatic(greedy(1), run{requests: o.Effort.Full, seed: 1})
	if err != nil {
		return err
	}
	if kept := o.Greedy[0]; again != kept {
		return fmt.Errorf("%s: the greedy rule gave %+v when this was stored, and gives %+v now: the simulator or the rule has changed, "+
			"so add one to matrix.Version, and all static settings are run again", o.Name, kept, again)
	}
	return nil
}

// screen narrows the grid down in two passes, the second longer and with fewer
// settings, and returns those that are left.
func (c *Cell) screen(e Effort, o *Oracle) ([]candidate, error) {
	all, err := c.stable(e)
	if err != nil {
		return nil, err
	}
	o.Tried = len(all)
	short := max(e.Screen, c.Traffic.Screen*e.Screen/FullEffort.Screen)
	for _, pass := range []struct{ requests, keep int }{
		{short, e.Keep}, {max(e.Second, short), e.Finals},
	} {
		for i := range all {
			all[i].figures, err = c.measureStatic(all[i].setting, run{requests: pass.requests, seed: choosing})
			if err != nil {
				return nil, err
			}
		}
		all = c.foremost(all, pass.keep)
	}
	return all, nil
}

// stable returns the settings of the grid that can keep up with what arrives. In
// a closed loop that is the greedy rule's throughput.
func (c *Cell) stable(e Effort) (all []candidate, err error) {
	needed := min(1, c.Traffic.share()) * c.Capacity()
	if c.Traffic.Closed() {
		f, err := c.measureStatic(greedy(1), run{requests: e.Screen, seed: choosing})
		if err != nil {
			return nil, err
		}
		needed = 0.9 * f.Throughput // what a short run says of it
	}
	for _, s := range c.grid() {
		if c.fastest(s) >= needed {
			all = append(all, candidate{setting: s})
		}
	}
	return all, nil
}

// fastest returns the throughput of a setting at the size that is best for it.
func (c *Cell) fastest(s Static) float64 {
	most := 0.0
	for rows := 1; rows <= s.MaxRows; rows++ {
		most = max(most, c.speed(rows, s.Instances))
	}
	return most
}

// foremost returns the best settings by each metric.
func (c *Cell) foremost(all []candidate, keep int) []candidate {
	var kept []candidate
	for _, metric := range c.Metrics() {
		slices.SortStableFunc(all, func(a, b candidate) int { return metric.compare(metric.of(a.figures), metric.of(b.figures)) })
		for _, s := range all[:min(keep, len(all))] {
			if !slices.ContainsFunc(kept, func(k candidate) bool { return k.setting == s.setting }) {
				kept = append(kept, s)
			}
		}
	}
	return kept
}

// bySeed measures a setting at full length with each seed that counts.
func (c *Cell) bySeed(s Static, e Effort) (all []Figures, err error) {
	for seed := range e.Seeds {
		f, err := c.measureStatic(s, run{requests: e.Full, seed: uint64(seed + 1)})
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

func mean(all []Figures, m Metric) float64 {
	sum := 0.0
	for _, f := range all {
		sum += m.of(f)
	}
	return sum / float64(len(all))
}
