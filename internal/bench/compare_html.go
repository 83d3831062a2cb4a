package bench

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"

	"github.com/shoal-serving/shoal/internal/plot"
)

// WriteHTML writes the comparison as a self-contained page.
func (c *Comparison) WriteHTML(w io.Writer) error {
	return pages.ExecuteTemplate(w, "compare.html", c.page())
}

// A comparePage is the data of the comparison template.
type comparePage struct {
	*Comparison
	Summaries []string
	Charts    []figure
	Rows      []compareRow
	Scale     string // range of the drawn intervals
}

// A compareRow is one side of one measure.
type compareRow struct {
	Load, Measure string // only in their first row
	Side          string
	Repeats       int
	Median        string
	Ratio         string // empty for the first side
	Interval      string
	Verdict       Verdict
	Class         string // of the verdict
	SVG           template.HTML
}

func (c *Comparison) page() comparePage {
	p := comparePage{Comparison: c}
	for i := range c.Sides[1:] {
		p.Summaries = append(p.Summaries, c.summary(i+1))
	}
	for _, percent := range []float64{50, 99} {
		var lines []curveLine
		for i, label := range c.Sides {
			for _, of := range byModel(c.curves[i]) {
				name := label
				if model := of[0].levels[0].Model; model != "" {
					name += ", " + model
				}
				lines = append(lines, curveLine{name, "s" + strconv.Itoa((i*2)%6), percent, of, i == 0})
			}
		}
		name := "Throughput and " + percentName(percent)
		p.Charts = append(p.Charts, figure{name, "Each point is the median of a load's repeats, which are the faint dots.", curve("curve-"+percentName(percent), name, lines)})
	}
	reach := c.reach()
	p.Scale = fmt.Sprintf("%.2f to %.2f", 1/reach, reach)
	for _, l := range c.Loads {
		for n, m := range l.Measures {
			for i, of := range m.Of {
				row := compareRow{Side: c.Sides[i], Repeats: of.Repeats, Median: m.value(of.Median)}
				if i == 0 {
					row.Measure = m.Name
				}
				if i == 0 && n == 0 {
					row.Load = l.Load
				}
				if r := of.Against; r != nil {
					row.Ratio, row.Interval, row.Verdict = fmt.Sprintf("%.3f", r.Ratio), r.interval(), r.Verdict
					row.Class = map[Verdict]string{Better: "good", Worse: "bad"}[r.Verdict]
					row.SVG = r.draw(reach)
				}
				p.Rows = append(p.Rows, row)
			}
		}
	}
	return p
}

// reach returns the largest factor that the drawings of intervals must show.
func (c *Comparison) reach() float64 {
	reach := 1 + 2*sameWithin
	for _, l := range c.Loads {
		for _, m := range l.Measures {
			for _, of := range m.Of {
				if r := of.Against; r != nil && r.Ratio > 0 {
					reach = max(reach, r.Ratio, 1/r.Ratio)
				}
			}
		}
	}
	return reach
}

// draw draws the interval with 1 in the middle. Values beyond reach are clipped.
func (r *Ratio) draw(reach float64) template.HTML {
	const half, height = 80.0, 16.0
	if r.Ratio <= 0 {
		return ""
	}
	x := func(v float64) string {
		return plot.Px(half + (half-5)*max(-1, min(1, math.Log(v)/math.Log(reach))))
	}
	span := ""
	if r.Low > 0 {
		span = fmt.Sprintf(`<line class="span" x1="%s" y1="8" x2="%s" y2="8"/>`, x(r.Low), x(r.High))
	}
	return template.HTML(fmt.Sprintf(`<svg width="%s" height="%s" aria-hidden="true"><line class="base" x1="%s" y1="0" x2="%s" y2="%s"/>%s<circle class="dot" cx="%s" cy="8" r="4"/></svg>`,
		plot.Px(2*half), plot.Px(height), plot.Px(half), plot.Px(half), plot.Px(height), span, x(r.Ratio)))
}
