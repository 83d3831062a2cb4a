package matrix

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/test/measure"
)

// A Pair is the results of a cell with static settings and with the policy.
type Pair struct {
	Cell   *Cell
	Oracle *Oracle
	Trial  *Trial
}

// A Verdict is the result of one gate.
type Verdict struct {
	Gate     string
	Requires string
	Measured string
	Figure   float64       // of the limit that is missed by most, or else of the first
	Bound    measure.Bound // its limit
	NotRun   bool          // no cell has the figures that the gate needs
	Cells    int           // number of cells and measures that were compared, if the gate is about cells
	Worst    []string      // cells, the worst first
}

// Slack loosens the limits for runs that are shorter than those of the full matrix. Zero
// means the limits themselves.
type Slack struct {
	Mean float64 // added to limits of throughputs and mean latencies
	Tail float64 // added to limits of p99
}

// A ratio compares the figures of a cell.
type ratio struct {
	cell   *Cell
	value  float64   // mean over the seeds
	bySeed []float64 // may be empty
	note   string
}

// A comparison is that of some of the cells, with its limits.
type comparison struct {
	what    string
	cells   func(*Cell) bool
	ratio   func(Pair) ratio
	atLeast bool // higher is better
	slack   float64
	limits  []limit
}

// A limit applies to a fraction of the cells: 1 means all of them, 0.5 the median.
type limit struct{ share, bound float64 }

type gate struct {
	id, requires string
	measures     []comparison
}

func (c *Cell) isOpen(executors string) bool {
	return !c.Traffic.Closed() && c.Device.Executors() == executors
}

func (c *Cell) isClosed(executors string) bool {
	return c.Traffic.Closed() && c.Device.Executors() == executors
}

// versusBest returns the ratio of the calibrated policy to the best static setting.
func versusBest(m Metric) func(Pair) ratio {
	return func(p Pair) ratio {
		best := p.Oracle.Best[m]
		r := compare(p.Cell, p.Trial.Calibrated, best.Figures, m)
		r.note = best.Setting.String()
		return r
	}
}

// compare pairs the runs by seed.
func compare(c *Cell, ours, theirs []Figures, m Metric) ratio {
	r := ratio{cell: c}
	for i := range ours {
		r.bySeed = append(r.bySeed, m.of(ours[i])/m.of(theirs[i]))
	}
	for _, v := range r.bySeed {
		r.value += v / float64(len(r.bySeed))
	}
	return r
}

// versusGreedy returns the ratio of the policy's throughput to that of the greedy rule.
func versusGreedy(p Pair) ratio {
	return compare(p.Cell, p.Trial.Calibrated, p.Oracle.Greedy, Throughput)
}

// relativeToBest compares the policy with the best static setting, by the main metric of
// the cell. 1 is as good, and lower is worse for every metric.
func relativeToBest(p Pair) ratio {
	if p.Cell.Traffic.Closed() {
		return versusBest(Throughput)(p)
	}
	best := p.Oracle.Best[Mean]
	r := compare(p.Cell, best.Figures, p.Trial.Calibrated, Mean)
	r.note = best.Setting.String()
	return r
}

func minutes(windows func(*Trial) []Window) func(Pair) ratio {
	return func(p Pair) ratio { return ratio{cell: p.Cell, value: worstMinute(windows(p.Trial), p.Oracle.Windows)} }
}

// isSmallClosedLoop reports whether the cell is a closed loop in which waiting for a full
// batch pays most.
func isSmallClosedLoop(c *Cell) bool {
	n := c.Traffic.clients()
	return c.Traffic.Closed() && c.Model.Name == flat.Name && c.Traffic.Name == closed(n, 200*us).Name && n >= 2 && n <= 32
}

func gates(s Slack) []gate {
	one := func(c *Cell) bool { return c.isOpen("one") }
	return []gate{
		{"A1", "closed loop, one executor: at least 0.97 of the best static throughput, median 0.995", []comparison{
			{"throughput", func(c *Cell) bool { return c.isClosed("one") }, versusBest(Throughput), true, s.Mean, []limit{{1, 0.97}, {0.5, 0.995}}},
		}},
		{"A2", "flat model, 2 to 32 clients: at least 1.5 times the greedy rule's throughput", []comparison{
			{"throughput", isSmallClosedLoop, versusGreedy, true, s.Mean, []limit{{1, 1.5}}},
		}},
		{"A3", "open loop, one executor, mean: at most 1.03 in 90 % of cells, 1.10 in all", []comparison{
			{"mean", one, versusBest(Mean), false, s.Mean, []limit{{0.9, 1.03}, {1, 1.1}}},
		}},
		{"A4", "open loop, one executor, p99: at most 1.10 in 90 % of cells, 1.25 in all", []comparison{
			{"p99", one, versusBest(P99), false, s.Tail, []limit{{0.9, 1.1}, {1, 1.25}}},
		}},
		{"A5", "independent executors: throughput at least 0.97; mean at most 1.05 in the median, 1.15 in all", []comparison{
			{"throughput", func(c *Cell) bool { return c.isClosed("independent") }, versusBest(Throughput), true, s.Mean, []limit{{1, 0.97}}},
			{"mean", func(c *Cell) bool { return c.isOpen("independent") }, versusBest(Mean), false, s.Mean, []limit{{0.5, 1.05}, {1, 1.15}}},
		}},
		{"A6", "partly shared device: throughput at least 0.90; mean at most 1.10 in the median", []comparison{
			{"throughput", func(c *Cell) bool { return c.isClosed("shared") }, versusBest(Throughput), true, s.Mean, []limit{{1, 0.9}}},
			{"mean", func(c *Cell) bool { return c.isOpen("shared") }, versusBest(Mean), false, s.Mean, []limit{{0.5, 1.1}}},
		}},
	}
}

func guard(id string, s Slack) gate {
	return gate{id, "any minute: mean latency at most 1.02 times the greedy rule's", []comparison{
		{"calibrated", allCells, minutes(func(t *Trial) []Window { return t.Windows }), false, s.Mean, []limit{{1, 1.02}}},
		{"cold", allCells, minutes(func(t *Trial) []Window { return t.ColdWindows }), false, s.Mean, []limit{{1, 1.02}}},
	}}
}

func allCells(*Cell) bool { return true }

// Judge compares the results with the gates that are about cells: A1 to A6, and A9. Each
// verdict names up to worst of its worst cells.
func Judge(pairs []Pair, s Slack, worst int) []Verdict {
	var all []Verdict
	for _, g := range gates(s) {
		all = append(all, g.judge(pairs, worst))
	}
	return append(all, guard("A9", s).judge(pairs, worst))
}

// JudgeHeldOut compares the results of [HeldOut] with their own gates.
func JudgeHeldOut(pairs []Pair, s Slack, worst int) []Verdict {
	overall := gate{"H1", "within 3 % of the best static setting in 90 % of cells, never below 0.9 of it", []comparison{
		{"as good as", allCells, relativeToBest, true, s.Mean, []limit{{0.9, 0.97}, {1, 0.9}}},
	}}
	tails := gate{"H2", "p99, for information: no limit", []comparison{
		{"p99", func(c *Cell) bool { return !c.Traffic.Closed() }, versusBest(P99), false, s.Tail, nil},
	}}
	return []Verdict{overall.judge(pairs, worst), tails.judge(pairs, worst), guard("H3", s).judge(pairs, worst)}
}

func (g gate) judge(pairs []Pair, worst int) Verdict {
	v := Verdict{Gate: g.id, Requires: g.requires, NotRun: true}
	var measured []string
	for _, m := range g.measures {
		all := m.ratios(pairs)
		if len(all) == 0 {
			continue
		}
		v.NotRun = false
		v.Cells += len(all)
		measured = append(measured, m.judge(all, &v))
		for _, r := range all[:min(worst, len(all))] {
			v.Worst = append(v.Worst, m.what+" "+r.String())
		}
	}
	v.Measured = strings.Join(measured, "; ")
	return v
}

// ratios returns the comparison for each cell, the worst first.
func (m *comparison) ratios(pairs []Pair) (all []ratio) {
	for _, p := range pairs {
		if !m.cells(p.Cell) {
			continue
		}
		if r := m.ratio(p); r.value > 0 && !math.IsNaN(r.value) {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b ratio) int {
		if m.atLeast {
			a, b = b, a
		}
		return cmp.Compare(b.value, a.value)
	})
	return all
}

// judge describes the ratios, which are sorted with the worst first, and holds them against the
// limits.
func (m *comparison) judge(all []ratio, v *Verdict) string {
	for _, l := range m.limits {
		bound := measure.AtMost(l.bound + m.slack)
		if m.atLeast {
			bound = measure.AtLeast(l.bound - m.slack)
		}
		v.hold(quantile(all, l.share), bound)
	}
	return fmt.Sprintf("%s: worst %.3f, 90 %% %.3f, median %.3f of %d cells",
		m.what, all[0].value, quantile(all, 0.9), quantile(all, 0.5), len(all))
}

// hold holds a figure against its limit.
func (v *Verdict) hold(figure float64, bound measure.Bound) {
	if v.Bound == (measure.Bound{}) || bound.Miss(figure) > v.Bound.Miss(v.Figure) {
		v.Figure, v.Bound = figure, bound
	}
}

// Kept reports whether all limits are kept.
func (v *Verdict) Kept() bool { return v.Bound.Miss(v.Figure) == 0 }

// quantile returns the worst ratio of the best fraction of them.
func quantile(all []ratio, share float64) float64 {
	return all[len(all)-int(math.Ceil(share*float64(len(all))-1e-9))].value
}

func (r ratio) String() string {
	text := fmt.Sprintf("%.3f", r.value)
	if len(r.bySeed) > 1 {
		low, high := interval(r.bySeed)
		text += fmt.Sprintf(" [%.3f, %.3f]", low, high)
	}
	text += " " + r.cell.Name()
	if r.note != "" {
		text += " (best: " + r.note + ")"
	}
	return text
}

// interval returns the bootstrap 95 % confidence interval of the mean.
func interval(values []float64) (low, high float64) {
	const samples = 2_000
	chance := rand.New(rand.NewPCG(1, 1))
	means := make([]float64, samples)
	for i := range means {
		for range values {
			means[i] += values[chance.IntN(len(values))] / float64(len(values))
		}
	}
	slices.Sort(means)
	return means[samples*25/1000], means[samples*975/1000]
}
