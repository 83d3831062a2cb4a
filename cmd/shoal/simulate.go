package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

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
		Long: `Simulate runs the rules of the server in virtual time: a file with requests, a
model's speed and the settings to compare goes in, and the timeline of each
setting comes out, with the latencies side by side. It goes through some hundred
thousand requests a second.`,
		Example: `  shoal simulate examples/scenarios/a-to-e.yaml
  shoal simulate examples/scenarios/seed-device.yaml --svg seed-device.svg
  shoal simulate scenario.yaml --setting "one at a time" --json -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true // what is wrong from here on is in the scenario
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
	flags.StringVar(&svg, "svg", "", "write the picture to this `file`; - is the standard output, in place of the text")
	flags.StringVar(&json, "json", "", "write all figures to this `file`; - is the standard output, in place of the text")
	flags.StringArrayVar(&settings, "setting", nil, "run only the setting of this `name`; may be given several times")
	flags.IntVar(&width, "width", terminalWidth(), "`columns` of the text")
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

// writeTo writes to the file, or to out if it is called "-". A file that could
// not be finished is an error, so that nobody shows half a picture.
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

// terminalWidth returns how many columns the shell says that there are, or as
// many as fit nearly everywhere.
func terminalWidth() int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 100
}
