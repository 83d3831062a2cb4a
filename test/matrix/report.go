package matrix

import (
	"fmt"
	"slices"
	"strings"
)

// Table returns the verdicts as a Markdown table, followed by the worst cells of each.
func Table(all []Verdict) string {
	w := &strings.Builder{}
	fmt.Fprint(w, "| gate | required | measured | |\n|---|---|---|---|\n")
	for _, v := range all {
		word := "missed"
		switch {
		case v.NotRun:
			word = "not run"
		case v.Kept():
			word = "kept"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", v.Gate, v.Requires, v.Measured, word)
	}
	fmt.Fprintln(w, "\nThe worst cells of each gate, with the 95 % interval over the seeds:")
	for _, v := range all {
		for i, cell := range v.Worst {
			if i == 0 {
				fmt.Fprintf(w, "\n- %s\n", v.Gate)
			}
			fmt.Fprintf(w, "  - %s\n", cell)
		}
	}
	return w.String()
}

// Models returns a Markdown table of the worst and the median cell of each model, relative
// to the best static setting: of the calibrated policy, the cold one, and the greedy rule.
func Models(pairs []Pair) string {
	w := &strings.Builder{}
	var models []string
	for _, p := range pairs {
		if name := p.Cell.model(); !slices.Contains(models, name) {
			models = append(models, name)
		}
	}
	kinds := []struct {
		name string
		of   func(Pair) []Figures
	}{
		{"calibrated", func(p Pair) []Figures { return p.Trial.Calibrated }},
		{"cold", func(p Pair) []Figures { return p.Trial.Cold }},
		{"greedy", func(p Pair) []Figures { return p.Oracle.Greedy }},
		{"greedy, 4 instances", func(p Pair) []Figures { return p.Oracle.GreedyAll }},
	}
	fmt.Fprint(w, "| model | | throughput, closed | mean, open | p99, open | p99.9, open |\n|---|---|---|---|---|---|\n")
	for _, model := range models {
		for _, kind := range kinds {
			fmt.Fprintf(w, "| %s | %s |", model, kind.name)
			for _, metric := range []Metric{Throughput, Mean, P99, P999} {
				m := comparison{atLeast: metric == Throughput, ratio: func(p Pair) ratio {
					return compare(p.Cell, kind.of(p), p.Oracle.Best[metric].Figures, metric)
				}, cells: func(c *Cell) bool { return c.model() == model && slices.Contains(c.Metrics(), metric) }}
				if all := m.ratios(pairs); len(all) > 0 {
					fmt.Fprintf(w, " %.3f / %.3f |", all[0].value, quantile(all, 0.5))
				} else {
					fmt.Fprint(w, " |")
				}
			}
			fmt.Fprintln(w)
		}
	}
	return w.String()
}

func (c *Cell) model() string { return c.Model.Name + "/" + c.Device.Name }
