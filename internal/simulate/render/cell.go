package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/plot"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/cell"
)

// CellText writes the results of a cell as a table, with a column for each balancer.
func CellText(w io.Writer, r *cell.Report) error {
	var b strings.Builder
	if r.Title != "" {
		fmt.Fprintf(&b, "%s\n\n", r.Title)
	}
	if r.Text != "" {
		fmt.Fprintf(&b, "%s\n\n", r.Text)
	}
	if r.NodesNeeded > 0 {
		fmt.Fprintf(&b, "%d nodes answer at least %.1f %% of the requests in the objective, even if a zone is lost.\n\n", r.NodesNeeded, 100*cell.Wanted)
	}
	line := func(name string, value func(*cell.Result) string) {
		fmt.Fprintf(&b, "%-22s", name)
		for _, result := range r.Results {
			fmt.Fprintf(&b, "%16s", value(result))
		}
		b.WriteByte('\n')
	}
	percent := func(share float64) string { return fmt.Sprintf("%.2f %%", 100*share) }
	line("", func(r *cell.Result) string { return string(r.Balancer) })
	line("nodes", func(r *cell.Result) string { return fmt.Sprint(r.Nodes) })
	line("requests", func(r *cell.Result) string { return fmt.Sprint(r.Sent) })
	line("in the objective", func(r *cell.Result) string { return percent(r.InObjective) })
	line("refused", func(r *cell.Result) string { return percent(r.Refused) })
	line("lost", func(r *cell.Result) string { return fmt.Sprint(r.Lost) })
	line("retried", func(r *cell.Result) string { return fmt.Sprint(r.Retried) })
	line("p50", func(r *cell.Result) string { return milliseconds(r.P50) })
	line("p99", func(r *cell.Result) string { return milliseconds(r.P99) })
	line("device time", func(r *cell.Result) string { return percent(r.DeviceTime) })
	line("of the fullest node", func(r *cell.Result) string { return percent(r.Fullest) })
	line("mean batch", func(r *cell.Result) string { return fmt.Sprintf("%.2f", r.MeanBatch) })
	line("copies", func(r *cell.Result) string { return fmt.Sprint(r.Copies) })
	line("of these active", func(r *cell.Result) string { return fmt.Sprint(r.Active) })
	line("loads", func(r *cell.Result) string { return fmt.Sprint(r.Loads) })
	line("unloads", func(r *cell.Result) string { return fmt.Sprint(r.Unloads) })
	line("loads on demand", func(r *cell.Result) string { return fmt.Sprint(r.ColdLoads) })
	for _, result := range r.Results {
		if round := lastFrozen(result); round != nil {
			fmt.Fprintf(&b, "\n%s: at %v, %s\n", result.Balancer, round.At, round.Frozen)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func lastFrozen(r *cell.Result) (last *cell.Round) {
	for i := range r.Rounds {
		if r.Rounds[i].Frozen != "" {
			last = &r.Rounds[i]
		}
	}
	return last
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// CellSVG draws the share of requests that were answered in the objective, by the second in
// which they were sent, with a line for each balancer.
func CellSVG(w io.Writer, r *cell.Report) error {
	p := newPicture(&simulate.Report{Title: r.Title, Text: r.Text})
	p.header()
	seconds := 1
	for i, result := range r.Results {
		colour := palette[i%len(palette)]
		p.y += 24
		p.line(edge, p.y-5, edge+20, p.y-5, fmt.Sprintf(`stroke="%s" stroke-width="4" stroke-linecap="round"`, colour))
		p.text(edge+28, p.y, `font-size="14"`, fmt.Sprintf("%s: %.2f %% in the objective, device time %.1f %%", result.Balancer, 100*result.InObjective, 100*result.DeviceTime))
		seconds = max(seconds, len(result.Seconds))
	}
	c := chart{left: edge + 46, top: p.y + 40, width: pictureWidth - 2*edge - 46, height: 280, mostX: float64(seconds), mostY: 100}
	p.text(c.left-40, c.top-14, `class="name"`, "% in the objective")
	for v := 0.0; v <= 100; v += 20 {
		p.line(c.left, c.y(v), c.left+c.width, c.y(v), `class="grid"`)
		p.text(c.left-8, c.y(v)+4, `class="soft" font-size="12" text-anchor="end"`, fmt.Sprint(v))
	}
	for step, v := plot.Step(c.mostX/8), 0.0; v <= c.mostX; v += step {
		p.text(c.x(v), c.top+c.height+18, `class="soft" font-size="12" text-anchor="middle"`, fmt.Sprintf("%g s", v))
	}
	for i, result := range r.Results {
		fmt.Fprintf(&p.body, `<polyline fill="none" stroke-width="2.5" stroke-linejoin="round" stroke="%s" points="`, palette[i%len(palette)])
		for second, s := range result.Seconds {
			if s.Sent > 0 {
				fmt.Fprintf(&p.body, "%s,%s ", plot.Px(c.x(float64(second)+0.5)), plot.Px(c.y(100*float64(s.InObjective)/float64(s.Sent))))
			}
		}
		p.body.WriteString(`"/>` + "\n")
	}
	p.y = c.top + c.height + 30
	_, err := w.Write(p.finish())
	return err
}
