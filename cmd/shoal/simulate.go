package main

import (
	"bufio"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/render"
	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

// newSimulateCommand returns `shoal simulate`.
func newSimulateCommand() *cobra.Command {
	var svg, json string
	var settings []string
	var width int
	cmd := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "Show how requests would be batched, as a timeline",
		Long: `Simulate runs the batching of the server in virtual time. It reads a scenario with requests, the speed of a model and the
settings to compare, and prints a timeline for each setting, and the latencies side by side. It simulates some hundred thousand
requests per second.`,
		Example: `  shoal simulate examples/scenarios/a-to-e.yaml
  shoal simulate examples/scenarios/seed-device.yaml --svg seed-device.svg
  shoal simulate scenario.yaml --setting "one at a time" --json -`,
		Args: arguments(1, 1, `name a scenario, as in "shoal simulate examples/scenarios/a-to-e.yaml"; docs/simulate.md describes the format`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if width == 0 {
				width = console.Width(cmd.OutOrStdout())
			}
			report, err := simulateFile(args[0], settings)
			if err != nil {
				return err
			}
			if svg != "" {
				if err := writeTo(svg, cmd.OutOrStdout(), func(w io.Writer) error { return render.SVG(w, report) }); err != nil {
					return err
				}
			}
			if json != "" {
				if err := writeTo(json, cmd.OutOrStdout(), report.WriteJSON); err != nil {
					return err
				}
			}
			if svg == "-" || json == "-" {
				return nil // the output is for another program
			}
			return render.Text(cmd.OutOrStdout(), report, width)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&svg, "svg", "", "write a picture to this `file`; use - for stdout")
	flags.StringVar(&json, "json", "", "write all results as JSON to this `file`; use - for stdout")
	flags.StringArrayVar(&settings, "setting", nil, "run only the setting of this `name`; may be repeated")
	flags.IntVar(&width, "width", 0, "`columns` of the text; 0 means the width of the terminal")
	return cmd
}

func simulateFile(file string, settings []string) (*simulate.Report, error) {
	selected, err := scenario.Load(file)
	if err != nil {
		return nil, err
	}
	if len(settings) > 0 {
		if selected, err = selected.Select(settings...); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
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
