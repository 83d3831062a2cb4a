package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// serverFlags are the flags that say which server a command calls, and how.
type serverFlags struct {
	address  string
	protocol string
	timeout  time.Duration

	credentials credentialFlags
}

// credentialFlags are the flags with which a command proves who it is, and checks who the
// server is.
type credentialFlags struct {
	token         string
	tls           bool
	ca, cert, key string
}

// tokenVariable has the token if no flag does: other users can see the flags of a process.
const tokenVariable = prefix + "TOKEN"

func (c *credentialFlags) define(f *pflag.FlagSet) {
	f.StringVar(&c.token, "token", "", "API `key`, or a token of an issuer that the server accepts; defaults to "+tokenVariable)
	f.BoolVar(&c.tls, "tls", false, "encrypt the connection; set by https:// in -u, --ca and --cert")
	f.StringVar(&c.ca, "ca", "", "`file` with the authorities to trust instead of the system's, PEM")
	f.StringVar(&c.cert, "cert", "", "`file` with the client's certificate, PEM")
	f.StringVar(&c.key, "cert-key", "", "`file` with the private key of --cert, PEM")
}

func (c *credentialFlags) files() identity.ClientTLS {
	return identity.ClientTLS{CA: c.ca, Cert: c.cert, Key: c.key}
}

// options returns the options of a client of the server at address.
func (c *credentialFlags) options(address string) (client.Options, error) {
	opts := client.Options{Token: cmp.Or(c.token, os.Getenv(tokenVariable))}
	if !c.tls && c.ca == "" && c.cert == "" && c.key == "" && !strings.HasPrefix(address, "https://") {
		return opts, nil
	}
	if strings.HasPrefix(address, "http://") {
		return opts, misuse{fmt.Errorf("-u: connections to %s are not encrypted; write https://, or leave out --tls, --ca and --cert", address)}
	}
	t, err := c.files().Config()
	if err != nil {
		return opts, misuse{fmt.Errorf("--ca, --cert: %w", err)}
	}
	opts.TLS = t
	return opts, nil
}

// httpClient returns a client of the HTTP ports of servers, and the scheme of their addresses. It
// is for commands that read what package client does not have. Some run for long: each connection has
// the certificates that are in the files at that time.
func (c *credentialFlags) httpClient(address string) (h *http.Client, scheme string, err error) {
	opts, err := c.options(address)
	if err != nil {
		return nil, "", err
	}
	scheme = "http"
	dialer := &net.Dialer{Timeout: 2 * time.Second}
	transport := &http.Transport{MaxIdleConnsPerHost: 4, DialContext: dialer.DialContext}
	if opts.TLS != nil {
		scheme = "https"
		encrypted := &tlsDialer{dialer: dialer, files: c.files()}
		encrypted.last.Store(opts.TLS)
		transport.DialTLSContext = encrypted.dial
	}
	// None of these servers redirects. What claims to be one must not send the token on.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: withToken{transport, opts.Token}, CheckRedirect: stay}, scheme, nil
}

// A tlsDialer opens connections with the certificates that are in the files now. While those cannot be
// used, for example because only one of two has been replaced, it uses the last ones.
type tlsDialer struct {
	dialer *net.Dialer
	files  identity.ClientTLS
	last   atomic.Pointer[tls.Config]
}

func (d *tlsDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	config, unusable := d.files.Config()
	if unusable == nil {
		d.last.Store(config)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	plain, err := d.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config = d.last.Load().Clone()
	config.ServerName = host
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, unusable, plain.Close())
	}
	return conn, nil
}

// withToken adds a token to requests.
type withToken struct {
	http.RoundTripper
	token string
}

// RoundTrip implements [http.RoundTripper].
func (t withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	return t.RoundTripper.RoundTrip(r)
}

// writeJSON writes a value for programs, with indents for readers.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// define adds the flags. timeout is the default time limit of the command.
func (c *serverFlags) define(f *pflag.FlagSet, timeout time.Duration) {
	f.StringVarP(&c.address, "url", "u", "", "`host:port` of the server (default localhost:8000, and with -i grpc localhost:8001)")
	choiceVarP(f, &c.protocol, "protocol", "i", []string{"http", "grpc"}, "protocol to use")
	f.DurationVar(&c.timeout, "timeout", timeout, "time limit, such as 500ms or 1m")
	topic(f, "Server")
	c.credentials.define(f)
	topic(f, "Credentials")
}

// A remote is a server that a command calls.
type remote struct {
	*client.Client
	address  string
	protocol string
}

// open returns the server that the flags name. It does not connect.
func (c *serverFlags) open() (*remote, error) {
	r := &remote{address: c.address, protocol: c.protocol}
	if r.address == "" {
		r.address = map[string]string{"http": "localhost:8000", "grpc": "localhost:8001"}[c.protocol]
	}
	connect := client.NewHTTP
	if c.protocol == "grpc" {
		connect = client.NewGRPC
	}
	opts, err := c.credentials.options(r.address)
	if err != nil {
		return nil, err
	}
	if c.protocol == "grpc" {
		r.address = grpcTarget(r.address)
	}
	if r.Client, err = connect(r.address, opts); err != nil {
		return nil, misuse{fmt.Errorf("-u: %q is not an address: expected host:port, such as localhost:8000", c.address)}
	}
	return r, nil
}

// grpcTarget returns an address as gRPC takes it. Whether the connection is encrypted, the credentials
// have said.
func grpcTarget(address string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"), "/")
}

// call opens the server, and calls do with it and a context that ends with the time limit.
// An error of do is explained; model and version are those that it was about, or "".
func (c *serverFlags) call(ctx context.Context, model, version string, do func(context.Context, *remote) error) error {
	r, err := c.open()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err = do(limited, r)
	if e, ok := errors.AsType[*client.Error](err); ok {
		err = r.explainError(ctx, e, model, version, c.timeout)
	}
	return errors.Join(err, r.Close())
}

// probeTimeout is the time limit of the calls that check why another one failed.
const probeTimeout = 2 * time.Second

// explainError returns an error that says why a call failed, and what to do.
func (r *remote) explainError(ctx context.Context, e *client.Error, model, version string, timeout time.Duration) error {
	if errors.Is(e, client.Canceled) {
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if e.Status == "" || r.protocol == "grpc" && e.Code == client.Unavailable {
		// A server that does not understand a request may close the connection while the
		// client still writes. A request without a body receives its answer.
		if _, err := r.Live(ctx); errors.Is(e, client.Unavailable) && err != nil {
			e, _ = errors.AsType[*client.Error](err)
		}
		return r.notAnswered(e, timeout)
	}
	if wrongTLS(e) {
		return r.notAnswered(e, timeout)
	}
	if errors.Is(e, client.Denied) {
		return fmt.Errorf("the server answered: %w; set --token or %s to an API key or a token that may do this", e, tokenVariable)
	}
	if _, err := r.ServerMetadata(ctx); err != nil {
		return fmt.Errorf("%s does not speak KServe v2 over %s: it answered %q; -u must name the %s port of an inference server, by default %s",
			r.address, protocolNames[r.protocol], e.Status, protocolNames[r.protocol], defaultPorts[r.protocol])
	}
	said := fmt.Errorf("the server answered: %w", e)
	if model == "" {
		return said
	}
	index, err := r.Index(ctx)
	if err != nil {
		return said
	}
	return missing(index, model, version, said)
}

var (
	protocolNames = map[string]string{"http": "HTTP", "grpc": "gRPC"}
	defaultPorts  = map[string]string{"http": "8000", "grpc": "8001"}
)

// spokeFirst is in the error of Go's HTTP client about a server that sends something before
// it is asked, as gRPC servers do. A client that is faster to ask gets "malformed HTTP".
const spokeFirst = "readLoopPeekFailLocked: %!w(<nil>)"

// wrongTLS reports whether one side has TLS and the other has not, or the client does not
// trust the server's certificate.
func wrongTLS(e *client.Error) bool {
	text := e.Error()
	return strings.Contains(text, "HTTP request to an HTTPS server") || strings.Contains(text, "first record does not look like a TLS handshake") ||
		strings.Contains(text, "HTTP response to HTTPS client") || strings.Contains(text, "x509: ")
}

// notAnswered explains an error of a call that got no answer in its protocol.
func (r *remote) notAnswered(e *client.Error, timeout time.Duration) error {
	text := e.Error()
	switch {
	case wrongTLS(e):
		return fmt.Errorf("%s: the connection could not be encrypted as the server expects it: use --tls for a server with TLS, and --ca for authorities that the system does not know (%w)", r.address, e)
	case errors.Is(e, client.Invalid) || errors.Is(e, client.TooLarge) || errors.Is(e, client.Unsupported):
		return e
	case strings.Contains(text, "malformed HTTP") || strings.Contains(text, spokeFirst):
		return fmt.Errorf("%s is not an HTTP port, but probably a gRPC port: use -i grpc, or name the HTTP port with -u, by default 8000", r.address)
	case strings.Contains(text, "server preface") || strings.Contains(text, "frame too large") || strings.Contains(text, "HTTP/1.1 header"):
		return fmt.Errorf("%s is not a gRPC port, but probably an HTTP port: use -i http, or name the gRPC port with -u, by default 8001", r.address)
	case errors.Is(e, client.Deadline):
		return fmt.Errorf("the server at %s did not answer within %v; raise --timeout to wait longer", r.address, timeout)
	case errors.Is(e, client.Unavailable) && !strings.Contains(r.address, ":"):
		return fmt.Errorf(`no server answers at %s; name its port, too, as in -u %s:%s (%w)`, r.address, r.address, defaultPorts[r.protocol], e)
	case errors.Is(e, client.Unavailable):
		return fmt.Errorf(`no server answers at %s; start one with "shoal serve", or name its address with -u (%w)`, r.address, e)
	}
	return fmt.Errorf("%s: %w", r.address, e)
}

// missing returns why a model is not served, from the server's index: the named version, or all of
// them if version is "". otherwise is the error of a model that the index reports as ready.
func missing(index []client.IndexEntry, model, version string, otherwise error) error {
	if _, err := strconv.ParseInt(version, 10, 64); err != nil && !slices.ContainsFunc(index, func(e client.IndexEntry) bool { return e.Model == model && e.Version == version }) {
		version = "" // a label, of which the index says nothing
	}
	var names, versions []string
	var why error
	gone := false // why is that of a version that is not loaded: another one may say more
	for i := range index {
		e := &index[i]
		if !slices.Contains(names, e.Model) {
			names = append(names, e.Model)
		}
		if e.Model != model {
			continue
		}
		versions = append(versions, e.Version)
		switch {
		case version != "" && e.Version != version && e.Version != "": // that of a model that was never loaded
		case e.State == "READY":
			return otherwise
		case why == nil || gone:
			why, gone = notReady(e, version), notLoaded(e)
		}
	}
	switch {
	case why != nil:
		return why
	case len(names) == 0:
		return fmt.Errorf("there is no model %q: the server has no models", model)
	case len(versions) == 0:
		hint := "the server has " + strings.Join(names, ", ")
		if name := suggest.Nearest(model, names); name != "" {
			hint = fmt.Sprintf("did you mean %q?", name)
		}
		return fmt.Errorf("there is no model %q; %s", model, hint)
	}
	return fmt.Errorf("model %q has no version %s; it has %s", model, version, strings.Join(versions, ", "))
}

// notLoaded reports whether a version was never loaded, or was unloaded, in which case servers say so
// in the reason.
func notLoaded(e *client.IndexEntry) bool {
	return e.State == "" || e.State == "UNAVAILABLE" && e.Reason == "unloaded"
}

// notReady returns why a version is not ready. version is "" if any other would do.
func notReady(e *client.IndexEntry, version string) error {
	switch {
	case notLoaded(e) && version != "" && e.Version != "":
		return fmt.Errorf(`version %s of model %q is not loaded; "shoal ls" lists the versions that are`, version, e.Model)
	case notLoaded(e):
		return fmt.Errorf(`model %q is not loaded; load it with "shoal load %s"`, e.Model, e.Model)
	case e.State == "LOADING":
		return fmt.Errorf(`model %q is still loading; wait until "shoal health %s" succeeds, and try again`, e.Model, e.Model)
	case e.State == "UNLOADING":
		return fmt.Errorf(`model %q is being unloaded; load it again with "shoal load %s" if the server allows it`, e.Model, e.Model)
	}
	return fmt.Errorf(`model %q is not ready: version %s is %s: %s; fix it, and load it again, with "shoal load %s" if the server allows it`, e.Model, e.Version, e.State, strings.TrimRight(e.Reason, "; \n"), e.Model)
}

// completeModels completes the names of the models of the server that the flags name.
func (c *serverFlags) completeModels(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	r, err := c.open()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), probeTimeout)
	defer cancel()
	index, err := r.Index(ctx)
	if errors.Join(err, r.Close()) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, e := range index {
		names = append(names, e.Model)
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

const needsModel = `name a model, as in "shoal %s resnet50"; "shoal ls" lists the models of a server`
