package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/cell/control"
	"github.com/shoal-serving/shoal/internal/cell/xds"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// cellAddress is where a cell answers its commands.
const cellAddress = "127.0.0.1:8090"

// cellOptions are the flags of `shoal cell`.
type cellOptions struct {
	address, xds   string
	stateFile      string
	follow         string
	requestTimeout time.Duration
	log            logOptions
	envoyTLS       xds.TLS
	credentials    credentialFlags
}

// newCellCommand returns `shoal cell`.
func newCellCommand() *cobra.Command {
	opts := cellOptions{log: logOptions{info: true, warning: true, err: true}}
	cmd := &cobra.Command{
		Use:   "cell FILE",
		Short: "Run many servers as one: place models on nodes, and configure Envoys",
		Long: `Cell reads which nodes and models should exist from a YAML file, and reads it again when it changes. It watches the
nodes, decides which of them load which models, and reports to Envoys by xDS where each model is. Requests never pass through it: if
it stops, everything keeps serving as it is.

The file, Envoy's configuration and what to expect of failures are described in docs/how-to/run-a-cell.md.`,
		Example: `  shoal cell cell.yaml
  shoal cell cell.yaml --state /var/lib/shoal/cell.json
  shoal cell cell.yaml --follow http://10.0.0.1:8090
  shoal cell status`,
		Args: arguments(1, 1, `name a file with nodes and models, as in "shoal cell cell.yaml"; docs/how-to/run-a-cell.md describes it`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err != nil && suggest.Nearest(args[0], []string{"status", "plan", "why"}) != "" {
				return unknownCommand(cmd, args[0])
			}
			return runCell(cmd.Context(), args[0], &opts, cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.xds, "xds-address", "127.0.0.1:18000", "`host:port` for Envoys")
	f.StringVar(&opts.address, "address", cellAddress, "`host:port` for the commands status, plan and why, and for followers")
	f.StringVar(&opts.stateFile, "state", "", "`file` that keeps the plan; without it the plan is rebuilt from the nodes at every start")
	f.StringVar(&opts.follow, "follow", "", "`URL` of another cell: serve its plan to Envoys, and decide nothing")
	f.DurationVar(&opts.requestTimeout, "request-timeout", time.Minute, "time limit of requests through Envoy; longer than a model takes to load")
	choiceVarP(f, &opts.log.format, "log-format", "", []string{formatAuto, "text", "json"}, "format of the log")
	topic(f, "Cell")
	opts.credentials.define(f)
	topic(f, "Credentials of the cell for the nodes")
	f.StringVar(&opts.envoyTLS.CA, "envoy-ca", "", "`file` on Envoy's machine with the authority of the nodes' certificates, PEM; encrypts connections to nodes")
	f.StringVar(&opts.envoyTLS.Cert, "envoy-cert", "", "`file` on Envoy's machine with its certificate, PEM")
	f.StringVar(&opts.envoyTLS.Key, "envoy-cert-key", "", "`file` on Envoy's machine with the private key of --envoy-cert, PEM")
	topic(f, "Credentials of Envoy for the nodes")
	cmd.AddCommand(newCellStatusCommand(), newCellPlanCommand(), newCellWhyCommand())
	return cmd
}

// runCell runs a cell until ctx ends.
func runCell(ctx context.Context, file string, opts *cellOptions, stderr io.Writer) error {
	log := newLog(opts.log, stderr)
	client, scheme, err := opts.credentials.httpClient("")
	if err != nil {
		return err
	}
	if (opts.envoyTLS.Cert == "") != (opts.envoyTLS.Key == "") || opts.envoyTLS.Cert != "" && opts.envoyTLS.CA == "" {
		return misuse{errors.New("--envoy-cert needs --envoy-cert-key and --envoy-ca")}
	}
	envoys, err := xds.New(opts.requestTimeout, opts.envoyTLS)
	if err != nil {
		return err
	}
	wanted := control.File{Path: file}
	c, err := control.New(control.Options{
		Nodes: wanted, Models: wanted, Client: client, Scheme: scheme, StateFile: opts.stateFile, Follow: strings.TrimSuffix(opts.follow, "/"),
		Update: envoys.Update, Log: log,
	})
	if err != nil {
		return err
	}
	api, err := net.Listen("tcp", opts.address)
	if err != nil {
		return err
	}
	discovery, err := net.Listen("tcp", opts.xds)
	if err != nil {
		return errors.Join(err, api.Close())
	}
	log.Info("cell is running", "api", api.Addr().String(), "xds", discovery.Addr().String(), "follows", opts.follow)
	return serveCell(ctx, c, envoys, api, discovery, log)
}

// serveCell runs the controller and its two servers until ctx ends or one of them fails.
func serveCell(ctx context.Context, c *control.Controller, envoys *xds.Server, api, discovery net.Listener, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second}))
	envoys.Register(ctx, g)
	web := &http.Server{Handler: c.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	ended := make(chan error, 3)
	go func() { ended <- c.Run(ctx) }()
	go func() { ended <- web.Serve(api) }()
	go func() { ended <- g.Serve(discovery) }()
	err := <-ended
	cancel()
	g.Stop()
	_ = web.Close() // nothing is lost: its clients only ask
	for range 2 {
		if next := <-ended; !errors.Is(next, http.ErrServerClosed) {
			err = cmp.Or(err, next)
		}
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// cellFlags are the flags of the commands that ask a running cell.
type cellFlags struct {
	address string
	json    bool
}

func (c *cellFlags) define(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&c.address, "url", "u", cellAddress, "`host:port` of the cell")
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
}

// ask sends a request to the cell, and decodes the answer.
func (c *cellFlags) ask(ctx context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+strings.TrimPrefix(c.address, "http://")+path, bytes.NewReader(body))
	if err != nil {
		return misuse{err}
	}
	resp, err := (&http.Client{Timeout: shortTimeout}).Do(req)
	if err != nil {
		return fmt.Errorf("the cell at %s does not answer: %w; is \"shoal cell\" running there?", c.address, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // part of a message is better than none
		return fmt.Errorf("the cell at %s answered %s: %s", c.address, resp.Status, strings.TrimSpace(string(text)))
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// status asks for the description of the cell.
func (c *cellFlags) status(ctx context.Context) (d cell.Description, err error) {
	return d, c.ask(ctx, http.MethodGet, "/v1/status", nil, &d)
}

func newCellStatusCommand() *cobra.Command {
	var flags cellFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the nodes of a cell, and where each model is",
		Args:  arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := flags.status(cmd.Context())
			if err != nil {
				return err
			}
			if flags.json {
				return writeJSON(cmd.OutOrStdout(), d)
			}
			return writeCell(cmd.OutOrStdout(), &d)
		},
	}
	flags.define(cmd)
	return cmd
}

// writeCell writes a cell as two tables.
func writeCell(out io.Writer, d *cell.Description) error {
	role := "decides"
	switch {
	case d.Follower:
		role = "follows another cell"
	case d.Superseded != "":
		role = "sends no orders: " + d.Superseded
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var text strings.Builder
	fmt.Fprintf(&text, "plan %d, epoch %d; this cell %s\n", d.Version, d.Epoch, role)
	if d.Frozen != "" {
		fmt.Fprintf(&text, "frozen: %s\n", d.Frozen)
	}
	text.WriteString("\nNODE\tZONE\tSTATE\tMODELS\tMEMORY\n")
	for _, n := range d.Nodes {
		fmt.Fprintf(&text, "%s\t%s\t%s\t%d\t%d of %d MiB\n", n.Name, n.Zone, strings.TrimSpace(n.State+" "+n.Reason), n.Copies, n.Bytes>>20, n.Memory>>20)
	}
	text.WriteString("\nMODEL\tROWS/S\tACTIVE\tSPARE\tLOADED ON DEMAND BY\n")
	for _, m := range d.Models {
		fmt.Fprintf(&text, "%s\t%.1f\t%s\t%s\t%s\n", m.Name, m.Rate, strings.Join(m.Active, " "), strings.Join(m.Spare, " "), m.Home)
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return err
	}
	return w.Flush()
}

func newCellPlanCommand() *cobra.Command {
	var flags cellFlags
	cmd := &cobra.Command{
		Use:   "plan [FILE]",
		Short: "Show what a cell will change next, or what it would change for another file",
		Args:  arguments(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p cell.Preview
			if len(args) == 0 {
				d, err := flags.status(cmd.Context())
				if err != nil {
					return err
				}
				p.Changes = d.Pending
			} else {
				text, err := os.ReadFile(args[0])
				if err != nil {
					return err
				}
				if err := flags.ask(cmd.Context(), http.MethodPost, "/v1/plan", text, &p); err != nil {
					return err
				}
			}
			if flags.json {
				return writeJSON(cmd.OutOrStdout(), p)
			}
			var out strings.Builder
			for _, c := range p.Changes {
				fmt.Fprintf(&out, "%s %s on %s\n", c.Change, c.Model, c.Node)
			}
			if len(p.Changes) == 0 {
				out.WriteString("nothing changes\n")
			}
			_, err := io.WriteString(cmd.OutOrStdout(), out.String())
			return err
		},
	}
	flags.define(cmd)
	return cmd
}

func newCellWhyCommand() *cobra.Command {
	var flags cellFlags
	cmd := &cobra.Command{
		Use:   "why MODEL",
		Short: "Explain where a model of a cell is, and why",
		Args:  arguments(1, 1, fmt.Sprintf(needsModel, "cell why")),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := flags.status(cmd.Context())
			if err != nil {
				return err
			}
			var names []string
			for _, m := range d.Models {
				names = append(names, m.Name)
				if m.Name != args[0] {
					continue
				}
				if flags.json {
					return writeJSON(cmd.OutOrStdout(), m)
				}
				return writeWhy(cmd.OutOrStdout(), &m)
			}
			if near := suggest.Nearest(args[0], names); near != "" {
				return fmt.Errorf("the cell has no model %q; did you mean %q?", args[0], near)
			}
			return fmt.Errorf("the cell has no model %q; \"shoal cell status\" lists all", args[0])
		},
	}
	flags.define(cmd)
	return cmd
}

func writeWhy(out io.Writer, m *cell.ModelDescription) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %.1f rows/s\n", m.Name, m.Rate)
	for _, group := range []struct{ role, nodes string }{{"active on", strings.Join(m.Active, ", ")}, {"spare on", strings.Join(m.Spare, ", ")}, {"loaded on demand by", m.Home}} {
		if group.nodes != "" {
			fmt.Fprintf(&text, "  %s %s\n", group.role, group.nodes)
		}
	}
	for _, line := range m.Why {
		fmt.Fprintf(&text, "- %s\n", line)
	}
	_, err := io.WriteString(out, text.String())
	return err
}
