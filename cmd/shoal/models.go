package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/repository"
)

// shortTimeout is the time limit of commands that only ask.
const shortTimeout = 10 * time.Second

// newListCommand returns `shoal ls`.
func newListCommand() *cobra.Command {
	var conn serverFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [PATH...]",
		Short: "List the models of a running server, or of directories and files",
		Long: `Ls lists the models of a running server, with their state, inputs and outputs. With paths, it lists the models that
"shoal serve" would load from them, with the inputs and outputs that their files declare, without a server.`,
		Example: `  shoal ls
  shoal ls -u models.example.org:8000
  shoal ls models`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			if len(paths) > 0 {
				return listPaths(cmd.OutOrStdout(), paths, asJSON)
			}
			return conn.call(cmd.Context(), "", "", func(ctx context.Context, r *remote) error {
				all, err := listServer(ctx, r.Client)
				if err != nil {
					return err
				}
				return writeModels(cmd.OutOrStdout(), all, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	conn.define(cmd.Flags(), shortTimeout)
	return cmd
}

// A modelLine is a line of `shoal ls`.
type modelLine struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state"`
	Detail  string `json:"detail,omitempty"` // inputs and outputs, or why it is not ready
}

// listServer returns the models of a server.
func listServer(ctx context.Context, c *client.Client) ([]modelLine, error) {
	index, err := c.Index(ctx)
	if err != nil {
		return nil, err
	}
	var all []modelLine
	for _, e := range index {
		l := modelLine{Name: e.Model, Version: e.Version, State: cmp.Or(e.State, "not loaded"), Detail: strings.TrimRight(e.Reason, "; \n")}
		if e.State == "READY" {
			m, err := c.Metadata(ctx, e.Model, e.Version)
			if err != nil {
				l.Detail = err.Error() // it may have been unloaded since
			} else {
				l.Detail = signature(m.Inputs, m.Outputs)
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// listPaths lists the models of paths.
func listPaths(w io.Writer, paths []string, asJSON bool) error {
	var errs []error
	for _, path := range paths {
		errs = append(errs, checkPath(path))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	found, err := repository.Inspect(paths, repository.InspectOptions{Backends: backends()})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return noModels(paths)
	}
	var all []modelLine
	for _, m := range found {
		l := modelLine{Name: m.Name, State: m.Backend}
		for _, v := range m.Versions {
			l.Version = strings.TrimPrefix(l.Version+","+strconv.FormatInt(v, 10), ",")
		}
		var err error
		if l.Detail, err = declared(&m); err != nil {
			l.State, l.Detail = "INVALID", err.Error()
		}
		all = append(all, l)
	}
	return writeModels(w, all, asJSON)
}

// declared returns the inputs and outputs that the configuration of a model declares, or
// else its ONNX file; "" if only the model's code knows them. It returns an error if the
// model cannot be loaded.
func declared(m *repository.Inspection) (string, error) {
	switch {
	case m.Err != nil:
		return "", m.Err
	case len(m.Config.Inputs) > 0 && len(m.Config.Outputs) > 0:
		var rows []int64
		if m.Config.MaxBatchSize > 0 {
			rows = []int64{-1}
		}
		return signature(declaredTensors(m.Config.Inputs, rows), declaredTensors(m.Config.Outputs, rows)), nil
	case m.Backend != onnx.Name:
		return "", nil
	}
	inputs, outputs, err := onnx.Signature(m.File)
	if err != nil {
		return "", err
	}
	return signature(declaredTensors(inputs, nil), declaredTensors(outputs, nil)), nil
}

// declaredTensors converts tensors of a model whose dimensions follow those of rows.
func declaredTensors(tensors []modelconfig.Tensor, rows []int64) []client.TensorMetadata {
	var all []client.TensorMetadata
	for _, t := range tensors {
		all = append(all, client.TensorMetadata{Name: t.Name, Type: t.Type, Shape: slices.Concat(rows, t.Dims)})
	}
	return all
}

// writeModels writes a table, whose last column wraps to the width of the terminal.
func writeModels(w io.Writer, all []modelLine, asJSON bool) error {
	if asJSON {
		return writeJSON(w, slices.Concat([]modelLine{}, all)) // a list, also if it is empty
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "The server has no models.")
		return err
	}
	paint := console.PaletteOf(w)
	widths := [3]int{len("MODEL"), len("VERSION"), len("STATE")}
	for _, l := range all {
		widths = [3]int{max(widths[0], len(l.Name)), max(widths[1], len(l.Version)), max(widths[2], len(l.State))}
	}
	var out strings.Builder
	row := func(name, version, state, detail string, style console.Style) {
		prefix := fmt.Sprintf("%-*s  %-*s  %s%s  ", widths[0], name, widths[1], version, paint.Paint(style, state), strings.Repeat(" ", widths[2]-len(state)))
		for _, line := range console.Wrap(prefix, detail, console.Width(w), console.Columns(prefix)) {
			out.WriteString(line + "\n")
		}
	}
	row("MODEL", "VERSION", "STATE", "", console.Bold)
	for _, l := range all {
		row(l.Name, l.Version, l.State, l.Detail, stateStyles[l.State])
	}
	_, err := io.WriteString(w, out.String())
	return err
}

var stateStyles = map[string]console.Style{"READY": console.Green, "UNAVAILABLE": console.Red, "INVALID": console.Red, "LOADING": console.Yellow, "UNLOADING": console.Yellow}

// signature describes inputs and outputs, such as "x FP32[n,3] → y FP32[n]".
func signature(inputs, outputs []client.TensorMetadata) string {
	side := func(all []client.TensorMetadata) string {
		var texts []string
		for _, t := range all {
			texts = append(texts, t.Name+" "+t.Type.String()+shapeText(t.Shape))
		}
		return strings.Join(texts, ", ")
	}
	return side(inputs) + " → " + side(outputs)
}

// shapeText returns a shape in which a first dimension of any size, the rows, is n, and
// others are ?.
func shapeText(shape []int64) string {
	var dims []string
	for i, d := range shape {
		switch {
		case d >= 0:
			dims = append(dims, strconv.FormatInt(d, 10))
		case i == 0:
			dims = append(dims, "n")
		default:
			dims = append(dims, "?")
		}
	}
	return "[" + strings.Join(dims, ",") + "]"
}

// loadTimeout is the time limit of commands that load models.
const loadTimeout = 10 * time.Minute

// newLoadCommand returns `shoal load`.
func newLoadCommand() *cobra.Command {
	var conn serverFlags
	cmd := &cobra.Command{
		Use:   "load MODEL...",
		Short: "Load models of a running server, or load them again",
		Long: `Load loads models from the model repository of a running server, or loads them again if their files have changed. The
server must run with --model-control-mode=explicit, or Shoal with demand.`,
		Example: `  shoal load resnet50`,
		Args:    arguments(1, -1, fmt.Sprintf(needsModel, "load")),
		RunE: func(cmd *cobra.Command, models []string) error {
			return conn.each(cmd, models, func(ctx context.Context, c *client.Client, model string) (string, error) {
				if err := c.Load(ctx, model, client.LoadOptions{}); err != nil {
					return "", err
				}
				m, err := c.Metadata(ctx, model, "")
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("loaded %s, version %s: %s", model, strings.Join(m.Versions, ", "), signature(m.Inputs, m.Outputs)), nil
			})
		},
	}
	conn.define(cmd.Flags(), loadTimeout)
	cmd.ValidArgsFunction = conn.completeModels
	return cmd
}

// newUnloadCommand returns `shoal unload`.
func newUnloadCommand() *cobra.Command {
	var conn serverFlags
	cmd := &cobra.Command{
		Use:   "unload MODEL...",
		Short: "Unload models of a running server",
		Long: `Unload unloads all versions of models of a running server, which finishes their requests first. The server must run
with --model-control-mode=explicit, or Shoal with demand.`,
		Example: `  shoal unload resnet50`,
		Args:    arguments(1, -1, fmt.Sprintf(needsModel, "unload")),
		RunE: func(cmd *cobra.Command, models []string) error {
			return conn.each(cmd, models, func(ctx context.Context, c *client.Client, model string) (string, error) {
				index, err := c.Index(ctx) // servers accept names that do not exist
				if err != nil {
					return "", err
				}
				if !slices.ContainsFunc(index, func(e client.IndexEntry) bool { return e.Model == model }) {
					return "", missing(index, model, "", nil)
				}
				return "unloaded " + model, c.Unload(ctx, model)
			})
		},
	}
	conn.define(cmd.Flags(), loadTimeout)
	cmd.ValidArgsFunction = conn.completeModels
	return cmd
}

// each calls do for each model, and prints what it returns.
func (c *serverFlags) each(cmd *cobra.Command, models []string, do func(context.Context, *client.Client, string) (string, error)) error {
	var errs []error
	for _, model := range models {
		errs = append(errs, c.call(cmd.Context(), model, "", func(ctx context.Context, r *remote) error {
			text, err := do(ctx, r.Client, model)
			if e, ok := errors.AsType[*client.Error](err); ok && strings.Contains(e.Message, "not allowed") {
				return fmt.Errorf("the server answered: %w; start it with --model-control-mode=explicit, or Shoal with demand, to load and unload models", errors.New(e.Error()))
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		}))
	}
	return errors.Join(errs...)
}

// newHealthCommand returns `shoal health`.
func newHealthCommand() *cobra.Command {
	var conn serverFlags
	var live bool
	cmd := &cobra.Command{
		Use:   "health [MODEL]",
		Short: "Check whether a server or a model is ready, for probes",
		Long: `Health exits with status 0 if the server is ready, or if the model is, and with status 1 otherwise. Use it for probes of
containers.`,
		Example: `  shoal health
  shoal health resnet50 -u localhost:8001 -i grpc`,
		Args: arguments(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			model := strings.Join(args, "")
			return conn.call(cmd.Context(), model, "", func(ctx context.Context, r *remote) error {
				text, err := health(ctx, r.Client, model, live)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "check only that the server runs, and not that it is ready")
	conn.define(cmd.Flags(), 5*time.Second)
	cmd.ValidArgsFunction = conn.completeModels
	return cmd
}

// health returns what is healthy, or an error.
func health(ctx context.Context, c *client.Client, model string, live bool) (string, error) {
	what, check := "the server is ready", c.Ready
	switch {
	case live:
		what, check = "the server is live", c.Live
	case model != "":
		what = fmt.Sprintf("model %q is ready", model)
		check = func(ctx context.Context) (bool, error) { return c.ModelReady(ctx, model, "") }
	}
	yes, err := check(ctx)
	if err != nil || yes {
		return what, err
	}
	// A server that is not KServe's answers with some error, which is not an answer.
	if _, err := c.ServerMetadata(ctx); err != nil {
		return "", err
	}
	index, err := c.Index(ctx)
	if err != nil {
		return "", err
	}
	if model != "" {
		return "", missing(index, model, "", fmt.Errorf("model %q is not ready", model))
	}
	for _, e := range index {
		if e.State != "READY" && !notLoaded(&e) {
			return "", fmt.Errorf(`the server is not ready: model %q is %s: %s; "shoal ls" lists all models`, e.Model, e.State, strings.TrimRight(e.Reason, "; \n"))
		}
	}
	return "", errors.New("the server is not ready: it is starting or stopping; try again")
}
