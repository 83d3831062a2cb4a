package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/explain"
)

// newExplainCommand returns `shoal explain`.
func newExplainCommand() *cobra.Command {
	var conn serverFlags
	var version string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain MODEL",
		Short: "Explain how a model is batched, and why",
		Long: `Explain asks a running Shoal server about a model, and prints a page: how long batches take, how large they are, how
many instances and threads the model has, what the traffic is like, what waiting for more requests has cost and gained, and
which of these settings are configured, and where.`,
		Example: `  shoal explain seed_auto
  shoal explain bert -u models.example.org:8000 --json`,
		Args: arguments(1, 1, fmt.Sprintf(needsModel, "explain")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.call(cmd.Context(), args[0], version, func(ctx context.Context, r *remote) error {
				if r.protocol == "grpc" {
					return misuse{errors.New("explain needs HTTP: leave out -i grpc, and name the HTTP port with -u")}
				}
				body, err := r.Explain(ctx, args[0], version)
				if err != nil {
					return r.notShoal(ctx, args[0], version, err)
				}
				return writeExplanation(cmd.OutOrStdout(), body, asJSON)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&version, "model-version", "x", "", "`version` of the model; by default the server chooses")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	conn.define(f, shortTimeout)
	cmd.ValidArgsFunction = conn.completeModels
	return cmd
}

// notShoal returns an error if a model is ready on a server that cannot explain it, and err
// otherwise.
func (r *remote) notShoal(ctx context.Context, model, modelVersion string, err error) error {
	if ready, readyErr := r.ModelReady(ctx, model, modelVersion); readyErr != nil || !ready {
		return err
	}
	meta, metaErr := r.ServerMetadata(ctx)
	if metaErr != nil {
		return err
	}
	if meta.Name != "shoal" || client.CodeOf(err) == client.NotFound {
		return fmt.Errorf("the server at %s is %s %s, which cannot explain its models; Shoal %s can", r.address, meta.Name, meta.Version, version)
	}
	return err
}

func writeExplanation(w io.Writer, body []byte, asJSON bool) error {
	if asJSON {
		var out bytes.Buffer
		if err := json.Indent(&out, body, "", "  "); err != nil {
			return err
		}
		out.WriteByte('\n')
		_, err := w.Write(out.Bytes())
		return err
	}
	var m explain.Model
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("the server answered something that this version of shoal cannot read: %w", err)
	}
	return m.WriteText(w, console.Width(w))
}
