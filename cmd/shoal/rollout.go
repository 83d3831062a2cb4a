package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/cell"
)

// newRolloutCommand returns `shoal rollout`.
func newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Give requests of a cell's model to a new version, in steps",
		Long: `Rollout gives a growing part of a model's requests to a new version, and compares it with the old one. If the new version
fails more often or is slower, the cell rolls it back by itself. The commands ask a running "shoal cell";
docs/how-to/run-a-cell.md describes what they need.`,
		Example: `  shoal rollout start resnet50 2
  shoal rollout start resnet50 2 --mirror --steps 20
  shoal rollout status
  shoal rollout stop resnet50`,
		Args: cobra.ArbitraryArgs,
		RunE: needsCommand,
	}
	cmd.AddCommand(newRolloutStartCommand(), newRolloutStatusCommand(), newRolloutStopCommand())
	return cmd
}

func newRolloutStartCommand() *cobra.Command {
	var flags cellFlags
	var steps []uint
	var r cell.Rollout
	cmd := &cobra.Command{
		Use:   "start MODEL VERSION",
		Short: "Start a rollout",
		Args:  arguments(2, 2, `name a model and its new version, as in "shoal rollout start resnet50 2"`),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Model, r.To = args[0], args[1]
			for _, s := range steps {
				r.Steps = append(r.Steps, uint32(min(s, 101)))
			}
			body, err := json.Marshal(r)
			if err != nil {
				return err
			}
			if err := flags.ask(cmd.Context(), http.MethodPost, "/v1/rollouts", body, &r); err != nil {
				return err
			}
			if flags.json {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: from version %s to %s; \"shoal rollout status\" shows how it goes\n", r.Model, r.From, r.To)
			return err
		},
	}
	flags.define(cmd)
	f := cmd.Flags()
	f.UintSliceVar(&steps, "steps", nil, "`percentages` of requests for the new version, ascending (default 1,10,50,100)")
	f.DurationVar(&r.Hold, "hold", 30*time.Second, "least `time` of a step; a step also needs 500 requests of the new version")
	f.BoolVar(&r.Mirror, "mirror", false, "send copies of requests to the new version, and answer all clients with the old one")
	return cmd
}

func newRolloutStatusCommand() *cobra.Command {
	var flags cellFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the rollouts of a cell",
		Args:  arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := flags.status(cmd.Context())
			if err != nil {
				return err
			}
			if flags.json {
				return writeJSON(cmd.OutOrStdout(), d.Rollouts)
			}
			return writeRollouts(cmd.OutOrStdout(), d.Rollouts)
		},
	}
	flags.define(cmd)
	return cmd
}

func writeRollouts(out io.Writer, all []cell.RolloutDescription) error {
	var text strings.Builder
	for i := range all {
		r := &all[i]
		fmt.Fprintf(&text, "%s: version %s to %s, %s", r.Model, r.From, r.To, r.State)
		switch {
		case r.State == cell.RolloutRunning && r.Mirror:
			fmt.Fprintf(&text, " with copies of %d %% of the requests", r.Steps[r.Step])
		case r.State == cell.RolloutRunning:
			fmt.Fprintf(&text, " with %d %% of the requests", r.Steps[r.Step])
		case r.Reason != "":
			fmt.Fprintf(&text, ": %s", r.Reason)
		}
		text.WriteByte('\n')
		for _, v := range []struct {
			version string
			cell.VersionFigures
		}{{r.From, r.Old}, {r.To, r.New}} {
			if v.Requests > 0 {
				fmt.Fprintf(&text, "  version %s: %d requests, %d failed, p99 %v\n", v.version, v.Requests, v.Failures, v.P99.Round(10*time.Microsecond))
			}
		}
	}
	if len(all) == 0 {
		text.WriteString("there are no rollouts\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func newRolloutStopCommand() *cobra.Command {
	var flags cellFlags
	cmd := &cobra.Command{
		Use:   "stop MODEL",
		Short: "Stop a rollout, and give all requests to the old version",
		Args:  arguments(1, 1, fmt.Sprintf(needsModel, "rollout stop")),
		RunE: func(cmd *cobra.Command, args []string) error {
			var answered struct{}
			return flags.ask(cmd.Context(), http.MethodDelete, "/v1/rollouts/"+url.PathEscape(args[0]), nil, &answered)
		},
	}
	flags.define(cmd)
	return cmd
}
