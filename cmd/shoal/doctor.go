package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/doctor"
)

// newDoctorCommand returns `shoal doctor`.
func newDoctorCommand() *cobra.Command {
	opts := doctor.Options{Backends: slices.Sorted(maps.Keys(runners(nil, nil, nil, 1)))}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [PATH...]",
		Short: "Look for what would keep a server from starting",
		Long: `Doctor looks at the ONNX Runtime library, at cores, memory and ports, and at the models that the paths lead to, without
loading them. It prints a line for each, and what to do. The exit status is 1 if something would not be served.`,
		Example: `  shoal doctor examples/onnx
  shoal doctor models --json`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			opts.Paths = paths
			facts := doctor.Look(cmd.Context(), opts)
			return report(cmd.OutOrStdout(), facts.Judge(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, for other programs")
	cmd.Flags().StringVar(&opts.Library, "onnxruntime-library", "", "`path` of the ONNX Runtime library; without it SHOAL_ONNXRUNTIME says, or it lies beside the program or in ../lib")
	return cmd
}

// report prints findings. Its error says that some are bad.
func report(w io.Writer, findings []doctor.Finding, asJSON bool) error {
	failed := 0
	for _, f := range findings {
		if f.Status == doctor.Fail {
			failed++
		}
		if asJSON {
			continue
		}
		if _, err := fmt.Fprintln(w, f); err != nil {
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
