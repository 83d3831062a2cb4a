package matrix

import (
	"fmt"
	"slices"
	"time"
)

// Version identifies everything that determines an [Oracle]: the simulator, the static
// rule, the grid and the constants below. Increase it when one of them changes, so that
// the command discards stored results. The command repeats some of them to detect that
// this was forgotten.
const Version = 1

// Effort is the number and length of the runs. The reduced matrix has less of it.
type Effort struct {
	Screen   int           // requests of the first pass, over the whole grid
	Second   int           // requests of the second pass
	Full     int           // requests of the final runs
	Seeds    int           // of the final runs
	Keep     int           // settings for each metric in the second pass
	Finals   int           // settings for each metric in the final runs
	Minutes  time.Duration // length of the runs for gate A9; 0 means none
	OneGuard bool          // gate A9 is run for the calibrated policy only
}

// FullEffort is the effort of the full matrix.
var FullEffort = Effort{Screen: 3_000, Second: 20_000, Full: 100_000, Seeds: 5, Keep: 16, Finals: 3, Minutes: 2 * time.Minute}

// searchSeed is the seed of the search; final runs use those after it. The best setting is
// chosen by the final runs, which favours the static settings: the policy has one try.
const searchSeed = 0

// An Oracle is the results of a cell with static settings. It does not depend on the
// automatic policy, so it remains valid when that changes.
type Oracle struct {
	Cell      string          `json:"cell"` // its key
	Name      string          `json:"name"`
	Version   int             `json:"version"`
	Effort    Effort          `json:"effort"`
	Tried     int             `json:"tried"` // number of settings
	Best      map[Metric]Best `json:"best"`
	Greedy    []Figures       `json:"greedy"`     // one instance, by seed
	GreedyAll []Figures       `json:"greedy_all"` // with the number of instances that the automatic policy may use
	Windows   []Window        `json:"windows"`    // of the better one of the two in this cell
	Took      float64         `json:"took_s"`
}

// Best is the best static setting by one metric.
type Best struct {
	Setting Static    `json:"setting"`
	Figures []Figures `json:"figures"` // by seed
}

// A candidate is a setting with its figures in the last pass of the search.
type candidate struct {
	setting Static
	figures Figures
}

// FindBest searches the grid for the best static settings of a cell, and measures them.
func FindBest(c *Cell, e Effort) (*Oracle, error) {
	tried, found, err := c.search(e)
	if err != nil {
		return nil, err
	}
	o, err := BestOf(c, found, e)
	if o != nil {
		o.Tried = tried
	}
	return o, err
}

// BestOf measures the given settings at full length, and returns the best of them with the
// figures of the greedy rule.
func BestOf(c *Cell, settings []Static, e Effort) (*Oracle, error) {
	if len(settings) == 0 {
		return nil, fmt.Errorf("%s: no static settings to measure", c.Name())
	}
	o := &Oracle{Cell: c.Key(), Name: c.Name(), Version: Version, Effort: e, Tried: len(settings), Best: map[Metric]Best{}}
	all := make([]Best, len(settings))
	for i, s := range settings {
		figures, err := c.bySeed(s, e)
		if err != nil {
			return nil, err
		}
		all[i] = Best{Setting: s, Figures: figures}
	}
	for _, metric := range c.Metrics() {
		o.Best[metric] = slices.MinFunc(all, func(a, b Best) int {
			return metric.compare(mean(a.Figures, metric), mean(b.Figures, metric))
		})
	}
	var err error
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

// Check repeats one run, and returns an error if the result differs from the stored one.
func (o *Oracle) Check(c *Cell) error {
	again, err := c.measureStatic(greedy(1), run{requests: o.Effort.Full, seed: 1})
	if err != nil {
		return err
	}
	if kept := o.Greedy[0]; again != kept {
		return fmt.Errorf("%s: the stored result of the greedy rule is %+v, but it is %+v now: the simulator or the rule has changed; "+
			"increase matrix.Version to run all static settings again", o.Name, kept, again)
	}
	return nil
}

// search narrows the grid down in two passes, of which the second is longer and has fewer
// settings. It returns the number of settings tried, and those that are left.
func (c *Cell) search(e Effort) (tried int, found []Static, err error) {
	all, err := c.sustainable(e)
	if err != nil {
		return 0, nil, err
	}
	tried = len(all)
	short := max(e.Screen, c.Traffic.Screen*e.Screen/FullEffort.Screen)
	for _, pass := range []struct{ requests, keep int }{
		{short, e.Keep}, {max(e.Second, short), e.Finals},
	} {
		for i := range all {
			all[i].figures, err = c.measureStatic(all[i].setting, run{requests: pass.requests, seed: searchSeed})
			if err != nil {
				return 0, nil, err
			}
		}
		all = c.keepBest(all, pass.keep)
	}
	for _, k := range all {
		found = append(found, k.setting)
	}
	return tried, found, nil
}

// sustainable returns the settings of the grid whose throughput is sufficient: that of the
// arrivals or, in a closed loop, that of the greedy rule.
func (c *Cell) sustainable(e Effort) (all []candidate, err error) {
	needed := min(1, c.Traffic.share()) * c.Capacity()
	if c.Traffic.Closed() {
		f, err := c.measureStatic(greedy(1), run{requests: e.Screen, seed: searchSeed})
		if err != nil {
			return nil, err
		}
		needed = 0.9 * f.Throughput // a short run measures it roughly
	}
	for _, s := range c.grid() {
		if c.maxThroughput(s) >= needed {
			all = append(all, candidate{setting: s})
		}
	}
	return all, nil
}

// maxThroughput returns the throughput of a setting at its most efficient batch size.
func (c *Cell) maxThroughput(s Static) float64 {
	most := 0.0
	for rows := 1; rows <= s.MaxRows; rows++ {
		most = max(most, c.speed(rows, s.Instances))
	}
	return most
}

// keepBest returns the best settings by each metric.
func (c *Cell) keepBest(all []candidate, keep int) []candidate {
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

// bySeed measures a setting at full length, once with each seed of the final runs.
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
