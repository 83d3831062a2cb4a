package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/doctor"
)

// newDoctorCommand returns `shoal doctor`.
func newDoctorCommand() *cobra.Command {
	var opts serveOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [PATH...]",
		Short: "Check the environment and the models before you serve them",
		Long: `Doctor checks the ONNX Runtime library, cores, memory, ports, and the models of the given paths, without loading them. It
prints a line for each check, and what to do. The exit status is 1 if something would not be served.

Doctor takes every flag of "shoal serve", and the same environment variables and settings file, so that it checks the ports
and paths that the server would use.`,
		Example: `  shoal doctor models
  shoal doctor models --http-port 9000 --json`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			if _, err := readSettings(cmd.Flags(), paths, os.Environ()); err != nil {
				return misuse{err}
			}
			facts := doctor.Look(cmd.Context(), opts.examination())
			return report(cmd.OutOrStdout(), facts.Judge(), asJSON)
		},
	}
	flags := cmd.Flags()
	opts.define(flags)
	shown := []string{"http-port", "grpc-port", "metrics-port", "address", "onnxruntime-library", settingsFlag}
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// examination returns what doctor looks at.
func (o *serveOptions) examination() doctor.Options {
	d := doctor.Options{Paths: o.repositories, Backends: slices.Sorted(maps.Keys(runners(nil, nil, nil, 1))), Library: o.onnxLibrary}
	for _, a := range o.addresses() {
		d.Ports = append(d.Ports, doctor.Port{Protocol: a.protocol, Address: a.address, Hint: a.hint})
	}
	return d
}

// report prints findings. It returns an error if some checks failed.
func report(w io.Writer, findings []doctor.Finding, asJSON bool) error {
	failed, models := 0, map[doctor.Status]int{}
	for _, f := range findings {
		if f.Status == doctor.Fail {
			failed++
		}
		if strings.HasPrefix(f.Check, "model ") {
			models[f.Status]++
		}
		if asJSON {
			continue
		}
		if _, err := fmt.Fprintln(w, findingLine(w, f)); err != nil {
			return err
		}
	}
	if n := models[doctor.OK] + models[doctor.Warn] + models[doctor.Fail]; n > 1 && !asJSON {
		_, err := fmt.Fprintf(w, "%d models: %d can be served, %d of them with warnings, and %d cannot\n", n, models[doctor.OK]+models[doctor.Warn], models[doctor.Warn], models[doctor.Fail])
		if err != nil {
			return err
		}
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(findings); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return nil
}

var statusStyles = map[doctor.Status]console.Style{doctor.OK: console.Green, doctor.Warn: console.Yellow, doctor.Fail: console.Red}

// findingLine returns a finding as a line, which on a terminal has a color, and wraps.
func findingLine(w io.Writer, f doctor.Finding) string {
	text := f.String()
	if !console.IsTerminal(w) {
		return text
	}
	const indent = len("fail  ")
	prefix := console.PaletteOf(w).Paint(statusStyles[f.Status], text[:indent])
	return strings.Join(console.Wrap(prefix, text[indent:], console.Width(w), indent), "\n")
}
