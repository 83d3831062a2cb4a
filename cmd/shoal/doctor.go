package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/doctor"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/repository"
)

// newDoctorCommand returns `shoal doctor`.
func newDoctorCommand() *cobra.Command {
	var opts serveOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [PATH...]",
		Short: "Check the environment and the models before you serve them",
		Long: `Doctor checks the ONNX Runtime library, cores, memory, ports, and the models of the given paths, without loading them. It
prints a line for each check of the environment, and a table of the models: those that run unchanged, those that run with
a difference, and those that cannot run, with the reason and what to do. The exit status is 1 if something would not be
served.

Doctor takes every flag of "shoal serve", and the same environment variables and settings file, so that it checks the ports
and paths that the server would use.`,
		Example: `  shoal doctor models
  shoal doctor models --http-port 9000 --json`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			_, store, err := opts.configure(cmd.Flags(), paths)
			if err != nil {
				return err
			}
			facts := doctor.Look(cmd.Context(), opts.examination(store))
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

// examination returns what doctor looks at. store has the settings of a model store, and is nil if
// there is none.
func (o *serveOptions) examination(store *mms.Settings) doctor.Options {
	d := doctor.Options{Paths: o.repositories, Inspect: repository.InspectOptions{Backends: backends(), FileConfig: o.fileConfig}, Library: o.onnxLibrary}
	ports := o.addresses()
	if store != nil {
		ports = append(ports, storeEndpoints(store, o.allowMetrics)...)
	}
	for _, a := range ports {
		d.Ports = append(d.Ports, doctor.Port{Protocol: a.protocol, Address: a.address, Hint: a.hint})
	}
	return d
}

// backends returns the names of all backends, sorted.
func backends() []string { return slices.Sorted(maps.Keys(runners(nil, nil, nil, nil, 1))) }

// report prints findings: a line for each check of the environment, and a table of the
// models. It returns an error if some checks failed.
func report(w io.Writer, findings []doctor.Finding, asJSON bool) error {
	if err := writeFindings(w, findings, asJSON); err != nil {
		return err
	}
	failed := 0
	for _, f := range findings {
		if f.Status == doctor.Fail {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return nil
}

func writeFindings(w io.Writer, findings []doctor.Finding, asJSON bool) error {
	if asJSON {
		return writeJSON(w, findings)
	}
	var out strings.Builder
	for _, f := range findings {
		if f.Model == "" {
			out.WriteString(findingLine(w, f) + "\n")
		}
	}
	if summary := doctor.Summary(findings); summary != "" {
		out.WriteString("\n" + modelTable(w, findings) + "\n" + summary + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// modelTable returns a line for each model, whose last column wraps on a terminal.
func modelTable(w io.Writer, findings []doctor.Finding) string {
	name, word := len("MODEL"), len(doctor.Differs)
	for _, f := range findings {
		name = max(name, len(f.Model))
	}
	paint := console.PaletteOf(w)
	var out strings.Builder
	row := func(model, verdict, detail string, style console.Style) {
		prefix := fmt.Sprintf("%-*s  %s%s  ", name, model, paint.Paint(style, verdict), strings.Repeat(" ", word-len(verdict)))
		if !console.IsTerminal(w) {
			out.WriteString(prefix + detail + "\n")
			return
		}
		for _, line := range console.Wrap(prefix, detail, console.Width(w), console.Columns(prefix)) {
			out.WriteString(line + "\n")
		}
	}
	row("MODEL", "VERDICT", "DETAIL", console.Bold)
	for _, f := range findings {
		if f.Model != "" {
			row(f.Model, string(f.Verdict), f.Detail(), statusStyles[f.Status])
		}
	}
	return out.String()
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
