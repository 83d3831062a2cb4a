package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	// enoughRepeats is the number of repeats that distinguishes a difference from noise.
	enoughRepeats = 7
	// sameWithin is the maximum distance of the interval of a ratio from 1 for the verdict
	// Same.
	sameWithin = 0.05
)

// A Side is one of the compared configurations, with its reports in the order of their
// measurement.
type Side struct {
	Label   string
	Reports []*Report
}

// A Verdict describes a ratio.
type Verdict string

// The verdicts.
const (
	Better  Verdict = "better"
	Worse   Verdict = "worse"
	Same    Verdict = "the same"                  // within 5 %
	Unclear Verdict = "unclear"                   // the interval is too wide to decide
	TooFew  Verdict = "not enough repeats to say" // fewer than seven
	Missing Verdict = "not measured"              // on the first side
)

// A Comparison compares each side with the first, for each load that all of them have.
type Comparison struct {
	Sides []string   `json:"sides"`
	Notes []string   `json:"notes,omitempty"` // reasons to distrust it
	Loads []Compared `json:"loads"`

	curves [][]loadLevels // for each side
}

// Compared is the results of one load.
type Compared struct {
	Load     string    `json:"load"` // such as "Concurrency: 4"
	Measures []Measure `json:"measures"`
}

// A Measure is one figure of a load.
type Measure struct {
	Name string        `json:"name"` // "throughput", in infer/s, or a latency, in nanoseconds
	Of   []MeasureSide `json:"of"`   // for each side
}

// A MeasureSide is the figures of one side. All but the first have a ratio to the first.
type MeasureSide struct {
	Median  float64 `json:"median"`
	Repeats int     `json:"repeats"`
	Against *Ratio  `json:"against_first,omitempty"`
}

// A Ratio is the ratio of two sides, with its 95 % confidence interval.
type Ratio struct {
	Ratio   float64 `json:"ratio"`
	Low     float64 `json:"low,omitempty"` // 0 if there are too few repeats
	High    float64 `json:"high,omitempty"`
	Paired  bool    `json:"paired"` // repeats are compared in pairs
	Verdict Verdict `json:"verdict"`
}

// measures are the compared figures.
var measures = []struct {
	name string
	more bool // higher is better
	of   func(Summary) float64
}{
	{"throughput", true, func(s Summary) float64 { return s.InfersPerSecond }},
	{"mean", false, func(s Summary) float64 { return float64(s.Mean) }},
	{"p50", false, func(s Summary) float64 { return float64(s.percentile(50)) }},
	{"p95", false, func(s Summary) float64 { return float64(s.percentile(95)) }},
	{"p99", false, func(s Summary) float64 { return float64(s.percentile(99)) }},
}

// loadLevels are the repeats of one load.
type loadLevels struct {
	load   string
	levels []Level
}

// values returns the figure of each repeat.
func (l loadLevels) values(of func(Summary) float64) (values []float64) {
	for _, level := range l.levels {
		values = append(values, of(level.Client))
	}
	return values
}

func (l loadLevels) median(of func(Summary) float64) float64 {
	mid, _, _ := Median(l.values(of))
	return mid
}

// byLoad groups levels by load, lightest load first. It omits levels without answers.
func byLoad(levels []Level) (all []loadLevels) {
	for _, l := range levels {
		if l.Client.Requests == 0 {
			continue
		}
		i := slices.IndexFunc(all, func(of loadLevels) bool { return of.load == l.name() })
		if i < 0 {
			i = len(all)
			all = append(all, loadLevels{load: l.name()})
		}
		all[i].levels = append(all[i].levels, l)
	}
	slices.SortStableFunc(all, func(a, b loadLevels) int {
		x, y := a.levels[0], b.levels[0]
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.Concurrency, y.Concurrency), cmp.Compare(x.Rate, y.Rate))
	})
	return all
}

// Compare compares each side with the first. It ignores interrupted levels, and returns an
// error if nothing is left to compare.
func Compare(sides []Side) (*Comparison, error) {
	if len(sides) < 2 {
		return nil, errors.New("a comparison needs at least two sides")
	}
	c := &Comparison{Loads: []Compared{}}
	for _, s := range sides {
		c.Sides = append(c.Sides, s.Label)
		c.curves = append(c.curves, byLoad(s.levels()))
		c.Notes = append(c.Notes, s.notes()...)
	}
	c.Notes = append(c.Notes, settingsDiffer(sides)...)
	for _, base := range c.curves[0] {
		row := []loadLevels{base}
		for _, curve := range c.curves[1:] {
			if i := slices.IndexFunc(curve, func(l loadLevels) bool { return l.load == base.load }); i >= 0 {
				row = append(row, curve[i])
			}
		}
		if len(row) == len(sides) {
			c.Loads = append(c.Loads, compareLoad(row))
		}
	}
	if len(c.Loads) == 0 {
		return nil, fmt.Errorf("%s have no load in common: measure them with the same ranges", strings.Join(c.Sides, " and "))
	}
	c.Notes = append(c.Notes, c.notShared()...)
	return c, nil
}

func compareLoad(sides []loadLevels) Compared {
	out := Compared{Load: sides[0].load}
	for _, m := range measures {
		measure := Measure{Name: m.name}
		base := sides[0].values(m.of)
		for i, side := range sides {
			of := MeasureSide{Median: side.median(m.of), Repeats: len(side.levels)}
			if i > 0 {
				of.Against = against(base, side.values(m.of), m.more)
			}
			measure.Of = append(measure.Of, of)
		}
		out.Measures = append(out.Measures, measure)
	}
	return out
}

// against returns the ratio of values to base. If both have the same number of repeats,
// they are compared in pairs, so that disturbances of both cancel out.
func against(base, values []float64, more bool) *Ratio {
	if slices.Min(base) <= 0 {
		return &Ratio{Verdict: Missing}
	}
	r := &Ratio{Paired: len(base) == len(values)}
	if r.Paired {
		ratios := make([]float64, len(base))
		for i := range base {
			ratios[i] = values[i] / base[i]
		}
		r.Ratio, r.Low, r.High = Median(ratios)
	} else {
		r.Ratio, r.Low, r.High = ratioOfMedians(base, values)
	}
	if min(len(base), len(values)) < enoughRepeats {
		r.Low, r.High, r.Verdict = 0, 0, TooFew
		return r
	}
	r.Verdict = verdict(r.Low, r.High, more)
	return r
}

// verdict returns the verdict for an interval.
func verdict(low, high float64, more bool) Verdict {
	switch {
	case low > 1 && more, high < 1 && !more:
		return Better
	case low > 1, high < 1:
		return Worse
	case low >= 1-sameWithin && high <= 1+sameWithin:
		return Same
	}
	return Unclear
}

func (s Side) levels() (all []Level) {
	for _, r := range s.Reports {
		for _, l := range r.Levels {
			if !l.Interrupted {
				all = append(all, l)
			}
		}
	}
	return all
}

// notes returns reasons why the figures of a side may be wrong.
func (s Side) notes() (notes []string) {
	unstable, failed, late := 0, 0, 0
	for _, l := range s.levels() {
		if !l.Stable {
			unstable++
		}
		if l.Client.Failed > 0 {
			failed++
		}
		if l.late() {
			late++
		}
	}
	for _, n := range []struct {
		count int
		what  string
	}{{unstable, "did not become stable"}, {failed, "had requests that failed"}, {late, "were sent late: the machine that measured could not keep up"}} {
		if n.count > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d of %d measurements %s.", s.Label, n.count, len(s.levels()), n.what))
		}
	}
	return notes
}

// settingsDiffer returns a note if the sides were measured with different settings.
func settingsDiffer(sides []Side) []string {
	of := func(r *Report) string {
		requests, windows := r.settings()
		return fmt.Sprintf("model %s over %s, %s, %s", r.Model, r.Protocol, requests, windows)
	}
	first := of(sides[0].Reports[0])
	for _, s := range sides {
		for _, r := range s.Reports {
			if other := of(r); other != first {
				return []string{fmt.Sprintf("Not all was measured in the same way: %s has %s; %s has %s.", sides[0].Label, first, s.Label, other)}
			}
		}
	}
	return nil
}

// notShared returns a note with the loads that only some sides have.
func (c *Comparison) notShared() (notes []string) {
	for i, curve := range c.curves {
		var alone []string
		for _, l := range curve {
			if !slices.ContainsFunc(c.Loads, func(shared Compared) bool { return shared.Load == l.load }) {
				alone = append(alone, l.load)
			}
		}
		if len(alone) > 0 {
			notes = append(notes, fmt.Sprintf("%s: not compared, since not all have it: %s.", c.Sides[i], strings.Join(alone, ", ")))
		}
	}
	return notes
}

// count returns the number of figures of a side by verdict.
func (c *Comparison) count(side int) map[Verdict]int {
	n := map[Verdict]int{}
	for _, l := range c.Loads {
		for _, m := range l.Measures {
			n[m.Of[side].Against.Verdict]++
		}
	}
	return n
}

// Worse returns the figures with the verdict worse, such as "after: p99 at Concurrency: 4".
func (c *Comparison) Worse() (names []string) {
	for _, l := range c.Loads {
		for _, m := range l.Measures {
			for i, of := range m.Of {
				if of.Against != nil && of.Against.Verdict == Worse {
					names = append(names, fmt.Sprintf("%s: %s at %s", c.Sides[i], m.Name, l.Load))
				}
			}
		}
	}
	return names
}

// summary describes how a side compares with the first.
func (c *Comparison) summary(side int) string {
	counts := c.count(side)
	var parts []string
	total := 0
	for _, v := range []Verdict{Better, Worse, Same, Unclear, TooFew, Missing} {
		if n := counts[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s in %d", v, n))
			total += n
		}
	}
	return fmt.Sprintf("%s, compared with %s: %s of %d figures.", c.Sides[side], c.Sides[0], strings.Join(parts, ", "), total)
}

// value formats a figure of a measure.
func (m Measure) value(v float64) string {
	if m.Name == "throughput" {
		return fmt.Sprintf("%.1f infer/s", v)
	}
	return brief(time.Duration(v))
}

// interval formats the interval, or the number of repeats that it needs.
func (r *Ratio) interval() string {
	if r.Low == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3f to %.3f", r.Low, r.High)
}

// WriteText writes a table for each load.
func (c *Comparison) WriteText(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := &printer{w: out}
	for _, note := range c.Notes {
		p.line("Note: %s", note)
	}
	if len(c.Notes) > 0 {
		p.line("")
	}
	for _, l := range c.Loads {
		p.line("%s", l.Load)
		p.line("  \tside\trepeats\tmedian\tratio\t95 %% interval\t")
		for _, m := range l.Measures {
			for i, of := range m.Of {
				name := m.Name
				if i > 0 {
					name = ""
				}
				line := fmt.Sprintf("  %s\t%s\t%d\t%s\t", name, c.Sides[i], of.Repeats, m.value(of.Median))
				if r := of.Against; r != nil {
					line += fmt.Sprintf("%.3f\t%s\t%s", r.Ratio, r.interval(), r.Verdict)
				} else {
					line += "\t\t"
				}
				p.line("%s", line)
			}
		}
		p.line("")
	}
	for i := range c.Sides[1:] {
		p.line("%s", c.summary(i+1))
	}
	if p.err != nil {
		return p.err
	}
	return out.Flush()
}

// WriteJSON writes all figures.
func (c *Comparison) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(c)
}
