package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/cell"
	"github.com/shoal-serving/shoal/internal/simulate/render"
	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

// newSimulateCommand returns `shoal simulate`.
func newSimulateCommand() *cobra.Command {
	var svg, json, nodes string
	var play bool
	var settings []string
	var width int
	cmd := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "Show how requests would be batched, as a timeline",
		Long: `Simulate runs the batching of the server in virtual time. It reads a scenario with requests, the speed of a model and the
settings to compare, and prints a timeline for each setting, and the latencies side by side. It simulates some hundred thousand
requests per second.

A file with the field nodes describes a cell: several nodes that share many models. For a cell, simulate prints goodput, device time,
latencies and moves of models; with --nodes auto it finds the smallest cell that suffices while a zone is lost.`,
		Example: `  shoal simulate examples/scenarios/a-to-e.yaml
  shoal simulate examples/scenarios/seed-device.yaml --svg seed-device.svg
  shoal simulate scenario.yaml --setting "one at a time" --json -
  shoal simulate examples/scenarios/cell.yaml --nodes auto`,
		Args: arguments(1, 1, `name a scenario, as in "shoal simulate examples/scenarios/a-to-e.yaml"; docs/reference/simulate.md describes the format`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneToStdout([2]string{"--svg", svg}, [2]string{"--json", json}); err != nil {
				return misuse{err}
			}
			if width == 0 {
				width = console.Width(cmd.OutOrStdout())
			}
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if scenario.IsCell(text) {
				for _, name := range []string{"play", "width"} {
					if cmd.Flags().Changed(name) {
						return misuse{fmt.Errorf("%s: --%s is for scenarios, and the file describes a cell", args[0], name)}
					}
				}
				report, err := simulateCell(cmd, args[0], nodes, settings)
				if err != nil {
					return err
				}
				return writeReport(out, svg, json, func(w io.Writer) error { return render.CellSVG(w, report) }, report.WriteJSON,
					func(w io.Writer) error { return render.CellText(w, report) })
			}
			if nodes != "" {
				return misuse{fmt.Errorf("%s: --nodes is for cells, and the file has no field nodes", args[0])}
			}
			report, err := simulateFile(args[0], settings)
			if err != nil {
				return err
			}
			return writeReport(out, svg, json, func(w io.Writer) error { return render.SVG(w, report, render.SVGOptions{Play: play}) }, report.WriteJSON,
				func(w io.Writer) error { return render.Text(w, report, width) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&svg, "svg", "", "write a picture to this `file`; use - for stdout")
	flags.BoolVar(&play, "play", false, "let the picture play its timelines, over and over")
	flags.StringVar(&json, "json", "", "write all results as JSON to this `file`; use - for stdout")
	flags.StringArrayVar(&settings, "setting", nil, "run only the setting of this `name`; may be repeated")
	flags.StringVar(&nodes, "nodes", "", "`number` of nodes of a cell instead of the file's; auto finds the smallest that suffices while a zone is lost")
	flags.IntVar(&width, "width", 0, "`columns` of the text; 0 means the width of the terminal")
	return cmd
}

// oneToStdout returns an error if more than one of the given flags, with the file of each, writes to
// stdout: nothing could read one report behind another.
func oneToStdout(flags ...[2]string) error {
	first := ""
	for _, flag := range flags {
		switch name, file := flag[0], flag[1]; {
		case file != "-":
		case first != "":
			return fmt.Errorf("%s and %s cannot both write to stdout; name a file for one of them", first, name)
		default:
			first = name
		}
	}
	return nil
}

// writeReport writes a report as a picture and as JSON, if those are asked for, and as text
// unless one of them goes to stdout.
func writeReport(out io.Writer, svg, json string, asSVG, asJSON, asText func(io.Writer) error) error {
	if svg != "" {
		if err := writeTo(svg, out, asSVG); err != nil {
			return err
		}
	}
	if json != "" {
		if err := writeTo(json, out, asJSON); err != nil {
			return err
		}
	}
	if svg == "-" || json == "-" {
		return nil // the output is for another program
	}
	return asText(out)
}

// simulateCell runs a cell file with the given number of nodes; empty means the file's.
func simulateCell(cmd *cobra.Command, file, nodes string, settings []string) (*cell.Report, error) {
	study, err := scenario.LoadCell(file)
	if err != nil {
		return nil, err
	}
	if len(settings) > 0 {
		return nil, misuse{fmt.Errorf("%s: --setting is for scenarios; a cell has the field balancer", file)}
	}
	var report *cell.Report
	switch nodes {
	case "auto":
		report, err = study.RunSmallest(func(n int, r *cell.Result) {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%d nodes: %.2f %% in the objective\n", n, 100*r.InObjective)
		})
	case "":
		report, err = study.Run()
	default:
		n, wrong := strconv.Atoi(nodes)
		if wrong != nil || n < 1 || n > scenario.MaxNodes {
			return nil, misuse{fmt.Errorf("--nodes is %q, and must be auto or a number from 1 to %d", nodes, scenario.MaxNodes)}
		}
		study.Cell.Nodes = cell.Nodes(n, study.Zones, study.Memory)
		report, err = study.Run()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return report, nil
}

func simulateFile(file string, settings []string) (*simulate.Report, error) {
	selected, err := scenario.Load(file)
	if err != nil {
		return nil, err
	}
	if len(settings) > 0 {
		if selected, err = selected.Select(settings...); err != nil {
			return nil, misuse{fmt.Errorf("%s: %w", file, err)}
		}
	}
	report, err := selected.Run()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return report, nil
}

// writeTo writes to the file, or to out if it is called "-". It returns an error if the file
// is not complete.
func writeTo(file string, out io.Writer, write func(io.Writer) error) error {
	if file == "-" {
		return write(out)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(f)
	if err = write(buffered); err == nil {
		err = buffered.Flush()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
