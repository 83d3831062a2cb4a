package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/explain"
)

// explainPatience is how long a server may take to answer.
const explainPatience = 10 * time.Second

// mostAnswer is how much of an answer is read.
const mostAnswer = 16 << 20

// newExplainCommand returns `shoal explain`.
func newExplainCommand() *cobra.Command {
	var address, version string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain NAME",
		Short: "Say why a model of a running server is batched as it is",
		Long: `Explain asks a running server what it knows of a model, and prints it as a page: how
long batches take, how large they are made, on how many instances and with how many
threads, what the traffic is like, what waiting for more of it has cost and brought,
and what of all that was written by somebody, and where.`,
		Example: `  shoal explain seed_auto
  shoal explain bert -u models.example.org:8000 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newAsker(address)
			if err != nil {
				return misuse{err}
			}
			body, err := a.explain(cmd.Context(), args[0], version)
			if err := errors.Join(err, a.client.Close()); err != nil {
				return err
			}
			return writeExplanation(cmd.OutOrStdout(), body, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&address, "url", "u", "localhost:8000", "`host:port` of the server, for HTTP")
	f.StringVarP(&version, "model-version", "x", "", "`version` of the model; the server chooses if it is not given")
	f.BoolVar(&asJSON, "json", false, "print JSON, for other programs")
	return cmd
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
		return fmt.Errorf("the server's answer is none that this program knows: %w", err)
	}
	return m.WriteText(w, console.Width(w))
}

// An asker asks one server.
type asker struct {
	client *client.Client
	host   string
}

func newAsker(address string) (*asker, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	c, err := client.NewHTTP(address, client.Options{MaxResponse: mostAnswer})
	if err != nil {
		return nil, fmt.Errorf("-u is %q, but has to be an address for HTTP, such as localhost:8000", address)
	}
	_, host, _ := strings.Cut(address, "://")
	host, _, _ = strings.Cut(host, "/")
	return &asker{c, host}, nil
}

// explain returns the document about a model, or what keeps it from being served.
func (a *asker) explain(ctx context.Context, model, version string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, explainPatience)
	defer cancel()
	body, err := a.client.Explain(ctx, model, version)
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case !ok:
		return body, err
	case e.Status == "" && e.Code != client.Invalid && e.Code != client.Internal:
		return nil, fmt.Errorf("no server answers at %s: is one running there? -u names another: %w", a.host, err)
	case e.Status == "":
		return nil, err
	}
	err = fmt.Errorf("the server answers %s: %s", e.Status, e.Message)
	index, listErr := a.client.Index(ctx)
	if listErr != nil {
		return nil, err
	}
	return nil, missing(index, model, version, err)
}

// missing says why a model is not served, by the server's index. Otherwise is for a
// model that the index has no fault in.
func missing(index []client.IndexEntry, model, version string, otherwise error) error {
	var names, versions []string
	for _, e := range index {
		if !slices.Contains(names, e.Model) {
			names = append(names, e.Model)
		}
		if e.Model != model {
			continue
		}
		versions = append(versions, e.Version)
		switch {
		case version != "" && e.Version != version:
		case e.State == "":
			return fmt.Errorf("model %q is not loaded: nobody has asked for it", model)
		case e.State != "READY":
			return fmt.Errorf("model %q is not loaded: version %s is %s: %s", model, e.Version, e.State, e.Reason)
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("there is no model %q: the server has none at all", model)
	case len(versions) == 0:
		return fmt.Errorf("there is no model %q: the server has %s", model, strings.Join(names, ", "))
	case version != "" && !slices.Contains(versions, version):
		return fmt.Errorf("model %q has no version %s: it has %s", model, version, strings.Join(versions, ", "))
	}
	return fmt.Errorf("model %q: %w; is it another server than Shoal, or an older one?", model, otherwise)
}
