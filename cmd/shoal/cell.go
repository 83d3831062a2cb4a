package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/cell/control"
	"github.com/shoal-serving/shoal/internal/cell/xds"
	"github.com/shoal-serving/shoal/internal/discovery"
	"github.com/shoal-serving/shoal/internal/listen"
	"github.com/shoal-serving/shoal/internal/metrics"
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
	access         accessOptions
	allowedHosts   []string
	insecure       bool
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
	opts.defineAccess(f)
	topic(f, "Access to the cell")
	opts.credentials.define(f)
	topic(f, "Credentials of the cell for the nodes")
	f.StringVar(&opts.envoyTLS.CA, "envoy-ca", "", "`file` on Envoy's machine with the authority of the nodes' certificates, PEM; encrypts connections to nodes")
	f.StringVar(&opts.envoyTLS.Cert, "envoy-cert", "", "`file` on Envoy's machine with its certificate, PEM")
	f.StringVar(&opts.envoyTLS.Key, "envoy-cert-key", "", "`file` on Envoy's machine with the private key of --envoy-cert, PEM")
	topic(f, "Credentials of Envoy for the nodes")
	cmd.AddCommand(newCellStatusCommand(), newCellPlanCommand(), newCellWhyCommand())
	return cmd
}

// defineAccess adds the flags that protect the ports of a cell: those of servers that concern it.
func (o *cellOptions) defineAccess(f *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.access.define(all)
	for _, name := range []string{keysFlag, "access", "audit-log", "tls-cert", "tls-key", "tls-client-ca"} {
		f.AddFlag(all.Lookup(name))
	}
	f.StringSliceVar(&o.allowedHosts, "allowed-hosts", nil, "`name` by which commands and followers may call the cell, besides localhost and addresses; may be repeated; * means any")
	f.BoolVar(&o.insecure, insecureFlag, false, "allow listening on non-loopback addresses without TLS and authentication")
}

// check returns an error for flags that contradict each other, or that expose the cell.
func (o *cellOptions) check() error {
	if (o.envoyTLS.Cert == "") != (o.envoyTLS.Key == "") || o.envoyTLS.Cert != "" && o.envoyTLS.CA == "" {
		return errors.New("--envoy-cert needs --envoy-cert-key and --envoy-ca")
	}
	if u, err := url.Parse(o.follow); o.follow != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("--follow: %q is not valid: expected a URL, such as http://10.0.0.1:8090", o.follow)
	}
	if o.requestTimeout < 0 { // Envoys would refuse all routes
		return fmt.Errorf("--request-timeout: %v is not valid: expected a time that is not negative", o.requestTimeout)
	}
	if err := o.access.check(); err != nil || o.insecure {
		return err
	}
	var settings []setting
	for name, address := range map[string]string{"address": o.address, "xds-address": o.xds} {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("--%s: found %q, expected host:port", name, address)
		}
		settings = append(settings, setting{name: name, value: cmp.Or(host, anyHost)})
	}
	return checkAddresses(settings, &o.access)
}

// runCell runs a cell until ctx ends.
func runCell(ctx context.Context, file string, opts *cellOptions, stderr io.Writer) (err error) {
	if err := opts.check(); err != nil {
		return misuse{err}
	}
	ignoreBrokenPipes()
	log := newLog(opts.log, stderr)
	client, scheme, err := opts.credentials.httpClient("")
	if err != nil {
		return err
	}
	guarded, err := openSecurity(&opts.access, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guarded.close()) }()
	table := discovery.New(log)
	envoys, err := xds.New(xds.Options{Timeout: opts.requestTimeout, TLS: opts.envoyTLS, Table: table})
	if err != nil {
		return err
	}
	wanted := &control.File{Path: file}
	if _, _, err := wanted.Models(ctx); err != nil { // before ports are open
		return err
	}
	c, err := control.New(control.Options{
		Nodes: wanted, Models: wanted, Client: client, Scheme: scheme, StateFile: opts.stateFile, Follow: strings.TrimSuffix(opts.follow, "/"),
		Update: envoys.Update, Log: log,
	})
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpcOptions(guarded)...)
	table.Register(g)
	figures := metrics.NewCell(metrics.CellOptions{Version: version, Figures: c.Figures, XDS: table.Figures})
	open, err := listen.Open(stateless{}, []listen.Port{
		listen.HTTP("cell", opts.address, authorizeCell(guarded.gate, c.Handler(), figures), "choose another with --address"),
		listen.GRPC(opts.xds, g, nil, "choose another with --xds-address"),
	}, listen.Options{
		HeaderBytes: 1 << 16, HeaderTimeout: 10 * time.Second, BodyTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		Hosts: opts.allowedHosts, TLS: guarded.http, Authentication: guarded.authentication(), Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("cell is running", "follows", opts.follow)
	return serveCell(ctx, c, open)
}

// stateless is a server whose requests need not be waited for: commands and Envoys ask again.
type stateless struct{}

func (stateless) Drain()        {}
func (stateless) InFlight() int { return 0 }

// grpcOptions returns how the cell answers Envoys: as many names as they have, to those that may
// observe it.
func grpcOptions(guarded *security) []grpc.ServerOption {
	all := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(64 << 20),
		// Rights are checked when a stream begins, so that none may last: Envoys connect again, and get only what
		// has changed since.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, MaxConnectionAge: 5 * time.Minute, MaxConnectionAgeGrace: 10 * time.Second}),
		// Envoys of the template ping every ten seconds, also while they have no stream.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.StreamInterceptor(func(s any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := guarded.gate.Check(stream.Context(), access.Observe, ""); err != nil {
				return status.Error(codes.PermissionDenied, err.Error())
			}
			return next(s, stream)
		}),
	}
	if c := guarded.grpcCredentials(); c != nil {
		all = append(all, grpc.Creds(c))
	}
	if t := guarded.grpcTap(); t != nil {
		all = append(all, grpc.InTapHandle(t))
	}
	return all
}

// authorizeCell returns the API of a cell and its metrics, for callers that may observe it, and to
// change it for those that may configure it. Everyone may ask for its health.
func authorizeCell(gate *access.Gate, api, figures http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v2/health/", api)
	observed := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := gate.Check(r.Context(), access.Observe, ""); err != nil {
				refuseCaller(w, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux.Handle("/", observed(api))
	mux.Handle("GET /metrics", observed(figures))
	mux.HandleFunc("/v1/rollouts", changeCell(gate, api))
	mux.HandleFunc(rolloutsPath, changeCell(gate, api))
	return mux
}

// rolloutsPath is followed by the model of a rollout.
const rolloutsPath = "/v1/rollouts/"

func changeCell(gate *access.Gate, api http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		change := access.Change{Action: access.Configure}
		switch r.Method {
		case http.MethodPost:
			change.What = "start rollout"
			if gate.Check(r.Context(), change.Action, "") == nil { // bodies of other callers are not read
				r, change.Model, change.Detail = readRollout(w, r)
			}
		case http.MethodDelete:
			change.What, change.Model = "stop rollout", strings.TrimPrefix(r.URL.Path, rolloutsPath)
		default:
			change.What, change.Detail = "rollout", r.Method+" "+r.URL.Path
		}
		denied := true
		err := gate.Change(r.Context(), change, func() error {
			denied = false
			answer := answerWriter{ResponseWriter: w}
			api.ServeHTTP(&answer, r)
			return answer.err()
		})
		if denied {
			refuseCaller(w, err)
		}
	}
}

// maxRollout is the size of a request to start a rollout.
const maxRollout = 1 << 16

// readRollout returns the model and the version of a request to start a rollout, and the request with
// its body, for the API. What is wrong with the body the API says.
func readRollout(w http.ResponseWriter, r *http.Request) (again *http.Request, model, detail string) {
	limited := http.MaxBytesReader(w, r.Body, maxRollout)
	body, _ := io.ReadAll(limited) // a later read fails, too
	again = r.WithContext(r.Context())
	again.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), limited), limited}
	var rollout cell.Rollout
	if json.NewDecoder(bytes.NewReader(body)).Decode(&rollout) != nil {
		return again, "", ""
	}
	return again, rollout.Model, "version " + rollout.To
}

// An answerWriter notes whether a request failed, and why.
type answerWriter struct {
	http.ResponseWriter
	status int
	text   bytes.Buffer // of an error
}

// WriteHeader implements [http.ResponseWriter].
func (a *answerWriter) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (a *answerWriter) Write(p []byte) (int, error) {
	a.status = cmp.Or(a.status, http.StatusOK)
	if a.status >= http.StatusBadRequest {
		a.text.Write(p)
	}
	return a.ResponseWriter.Write(p)
}

func (a *answerWriter) err() error {
	switch {
	case a.status == 0:
		return errors.New("its client has left") // the API answers all others
	case a.status < http.StatusBadRequest:
		return nil
	}
	return errors.New(cmp.Or(errorIn(a.text.Bytes()), http.StatusText(a.status)))
}

// errorIn returns the text of an error in JSON, or "" if the answer is another one.
func errorIn(answer []byte) string {
	var doc struct{ Error string }
	if json.Unmarshal(answer, &doc) != nil {
		return ""
	}
	return doc.Error
}

func refuseCaller(w http.ResponseWriter, err error) {
	code := http.StatusForbidden
	if errors.Is(err, access.ErrUnauthenticated) {
		code = http.StatusUnauthorized
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()}) // a client that has left needs nothing
}

// serveCell runs the controller until ctx ends, or it or a port fails.
func serveCell(ctx context.Context, c *control.Controller, open *listen.Ports) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case err = <-ended:
	case err = <-open.Failed():
		cancel()
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, open.Stop(0))
}

// cellFlags are the flags of the commands that ask a running cell.
type cellFlags struct {
	address     string
	json        bool
	credentials credentialFlags
}

func (c *cellFlags) define(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&c.address, "url", "u", cellAddress, "`host:port` of the cell")
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	topic(cmd.Flags(), "Cell")
	c.credentials.define(cmd.Flags())
	topic(cmd.Flags(), "Credentials")
}

// ask sends a request to the cell, and decodes the answer.
func (c *cellFlags) ask(ctx context.Context, method, path string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	client, scheme, err := c.credentials.httpClient(c.address)
	if err != nil {
		return err
	}
	host := strings.TrimPrefix(strings.TrimPrefix(c.address, "http://"), "https://")
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+host+path, bytes.NewReader(body))
	if err != nil {
		return misuse{err}
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("the cell at %s does not answer: %w; is \"shoal cell\" running there?", c.address, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // part of a message is better than none
		return fmt.Errorf("the cell at %s answered %s: %s", c.address, resp.Status, cmp.Or(errorIn(text), strings.TrimSpace(string(text))))
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
		role = "sends no orders: " + printable(d.Superseded)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var text strings.Builder
	fmt.Fprintf(&text, "plan %d, epoch %d; this cell %s\n", d.Version, d.Epoch, role)
	if d.Frozen != "" {
		fmt.Fprintf(&text, "frozen: %s\n", printable(d.Frozen))
	}
	text.WriteString("\nNODE\tZONE\tSTATE\tMODELS\tMEMORY\n")
	for _, n := range d.Nodes {
		fmt.Fprintf(&text, "%s\t%s\t%s\t%d\t%d of %d MiB\n", n.Name, n.Zone, strings.TrimSpace(n.State+" "+printable(n.Reason)), n.Copies, n.Bytes>>20, n.Memory>>20)
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
			changes := []cell.Change{}
			if len(args) == 0 {
				d, err := flags.status(cmd.Context())
				if err != nil {
					return err
				}
				changes = d.Pending
			} else {
				text, err := os.ReadFile(args[0])
				if err != nil {
					return err
				}
				if err := flags.ask(cmd.Context(), http.MethodPost, "/v1/plan", text, &changes); err != nil {
					return err
				}
			}
			if flags.json {
				return writeJSON(cmd.OutOrStdout(), changes)
			}
			var out strings.Builder
			for _, c := range changes {
				fmt.Fprintf(&out, "%s %s on %s\n", c.Change, c.Model, c.Node)
			}
			if len(changes) == 0 {
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
