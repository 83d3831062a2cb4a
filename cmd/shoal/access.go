package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/tap"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/listen"
)

// accessOptions are the flags for the rights of callers, and for encrypted connections. Those of
// the gRPC port are Triton's.
type accessOptions struct {
	keys     string
	firstKey string // file
	access   string
	auditLog string
	admin    string // address

	cert, key, clientCA string

	grpcSSL, grpcMutual         bool
	grpcCert, grpcKey, grpcRoot string
}

func (o *accessOptions) define(f *pflag.FlagSet) {
	f.StringVar(&o.keys, keysFlag, "", "`file` of API keys, which \"shoal keys\" changes; clients then need a credential")
	f.StringVar(&o.firstKey, firstKeyFlag, "", "`file` of API keys to use if nothing else authenticates clients; if it has none, the server adds a key with the role admin and prints it")
	f.StringVar(&o.access, "access", "", "YAML `file` of OpenID Connect issuers, trusted proxies, and what callers may do; clients then need a credential")
	f.StringVar(&o.auditLog, "audit-log", "", "`file` to append a record to for every change that a client makes or tries to make")
	f.StringVar(&o.admin, adminFlag, "", "`address` such as 127.0.0.1:8003 of an HTTP port for changes, such as loads and log settings; other ports then refuse them")
	f.StringVar(&o.cert, "tls-cert", "", "`file` with the certificate chain of all TCP ports, PEM; followed when it changes")
	f.StringVar(&o.key, "tls-key", "", "`file` with the private key of --tls-cert, PEM")
	f.StringVar(&o.clientCA, "tls-client-ca", "", "`file` with the authorities of client certificates, PEM; clients need a certificate, or with --api-keys or --access may use one")
	falseVar(f, &o.grpcSSL, "grpc-use-ssl", "encrypt gRPC with --grpc-server-cert instead of --tls-cert")
	falseVar(f, &o.grpcMutual, "grpc-use-ssl-mutual", "the same, and gRPC clients need a certificate of --grpc-root-cert")
	f.StringVar(&o.grpcCert, "grpc-server-cert", "", "`file` with the certificate chain of the gRPC port, PEM")
	f.StringVar(&o.grpcKey, "grpc-server-key", "", "`file` with the private key of --grpc-server-cert, PEM")
	f.StringVar(&o.grpcRoot, "grpc-root-cert", "", "`file` with the authorities of gRPC client certificates, PEM")
}

const (
	keysFlag     = "api-keys"
	firstKeyFlag = "first-key"
	adminFlag    = "admin-address"
)

// check returns an error for flags that contradict each other.
func (o *accessOptions) check() error {
	var errs []error
	both := func(a, b, aFlag, bFlag string) {
		if (a == "") != (b == "") {
			errs = append(errs, fmt.Errorf("--%s and --%s need each other: set both, or none", aFlag, bFlag))
		}
	}
	if _, _, err := net.SplitHostPort(o.admin); o.admin != "" && err != nil {
		errs = append(errs, fmt.Errorf("--%s: found %q, expected an address with a port, such as 127.0.0.1:8003", adminFlag, o.admin))
	}
	both(o.cert, o.key, "tls-cert", "tls-key")
	both(o.grpcCert, o.grpcKey, "grpc-server-cert", "grpc-server-key")
	if o.clientCA != "" && o.cert == "" {
		errs = append(errs, errors.New("--tls-client-ca needs --tls-cert and --tls-key"))
	}
	encrypted := o.grpcSSL || o.grpcMutual
	if encrypted && o.grpcCert == "" {
		errs = append(errs, errors.New("--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"))
	}
	if !encrypted && (o.grpcCert != "" || o.grpcRoot != "") {
		errs = append(errs, errors.New("--grpc-server-cert and --grpc-root-cert have no effect without --grpc-use-ssl=true or --grpc-use-ssl-mutual=true"))
	}
	if o.grpcMutual && o.grpcRoot == "" {
		errs = append(errs, errors.New("--grpc-use-ssl-mutual needs --grpc-root-cert"))
	}
	return errors.Join(errs...)
}

// useFirstKey makes the file of --first-key that of the API keys, unless another setting
// authenticates clients: an image has it as a default.
func (o *accessOptions) useFirstKey() {
	if o.required() || o.clientCA != "" {
		o.firstKey = ""
	}
	if o.firstKey != "" {
		o.keys = o.firstKey
	}
}

// printFirstKey adds the first key to the file of --first-key, and prints it. It prints nothing
// without the flag, or if the file has keys.
func (o *accessOptions) printFirstKey(stdout io.Writer, now time.Time) error {
	if o.firstKey == "" {
		return nil
	}
	k := identity.Key{Name: "first", Grants: []access.Grant{{Role: access.Admin}}}
	secret, err := identity.CreateFirstKey(o.firstKey, k, now)
	if err != nil || secret == "" {
		return err
	}
	// Not a record: logs are kept and sent elsewhere.
	_, err = fmt.Fprintf(stdout, "This server has a new API key with the role admin, which is not shown again:\n%s\nClients send it as \"Authorization: Bearer KEY\", and shoal commands take it from %s.\n", secret, tokenVariable)
	return err
}

// required reports whether every caller needs a principal.
func (o *accessOptions) required() bool { return o.keys != "" || o.access != "" }

// tlsOptions returns the files of the HTTP ports, or nil if they are not encrypted.
func (o *accessOptions) tlsOptions(log *slog.Logger) *identity.TLSOptions {
	if o.cert == "" {
		return nil
	}
	return &identity.TLSOptions{Cert: o.cert, Key: o.key, ClientCA: o.clientCA, RequireClient: o.clientCA != "" && !o.required(), Log: log}
}

// grpcTLSOptions returns the files of the gRPC port, or nil if it is not encrypted.
func (o *accessOptions) grpcTLSOptions(log *slog.Logger) *identity.TLSOptions {
	if !o.grpcSSL && !o.grpcMutual {
		return o.tlsOptions(log)
	}
	t := &identity.TLSOptions{Cert: o.grpcCert, Key: o.grpcKey, Log: log}
	if o.grpcMutual {
		t.ClientCA, t.RequireClient = o.grpcRoot, true
	}
	return t
}

// secure reports whether connections of a protocol are encrypted, and all its clients
// authenticated.
func (o *accessOptions) secure(protocol string) bool {
	t := o.tlsOptions(nil)
	if protocol == "grpc" {
		t = o.grpcTLSOptions(nil)
	}
	return t != nil && (o.required() || t.RequireClient)
}

// security is what protects the ports of a server. Its zero value lets everyone do
// everything.
type security struct {
	audit         *access.Audit
	gate          *access.Gate            // nil if everyone may do everything, and nothing is recorded
	authenticator *identity.Authenticator // nil without a gate
	http, grpc    *identity.TLS           // nil if connections are not encrypted
}

// openSecurity opens what the options ask for. The caller closes it.
func openSecurity(o *accessOptions, log *slog.Logger) (s *security, err error) {
	s = &security{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if o.auditLog != "" {
		if s.audit, err = access.OpenAudit(o.auditLog, access.AuditOptions{Log: log}); err != nil {
			return s, fmt.Errorf("--audit-log: %w", err)
		}
	}
	if o.required() || s.audit != nil || o.clientCA != "" || o.admin != "" {
		s.gate = &access.Gate{Audit: s.audit, AdminPort: o.admin != "", Open: !o.required()}
		if o.required() {
			s.gate.Tenants = access.NewTenants()
		}
		if s.authenticator, err = identity.Open(identity.Options{Keys: o.keys, Access: o.access, Tenants: s.gate.Tenants, Log: log}); err != nil {
			return s, err
		}
	}
	if s.http, err = openTLS(o.tlsOptions(log), "http/1.1"); err != nil {
		return s, err
	}
	s.grpc, err = openTLS(o.grpcTLSOptions(log), "h2")
	return s, err
}

// openTLS returns nil for nil options.
func openTLS(opts *identity.TLSOptions, protocol string) (*identity.TLS, error) {
	if opts == nil {
		return nil, nil
	}
	t, err := identity.OpenTLS(*opts, protocol)
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return t, nil
}

// close closes everything.
func (s *security) close() error {
	if s.authenticator != nil {
		s.authenticator.Close()
	}
	for _, t := range []*identity.TLS{s.http, s.grpc} {
		if t != nil {
			t.Close()
		}
	}
	return s.audit.Close()
}

// authentication returns what the ports use, or nil if callers do not matter.
func (s *security) authentication() *listen.Authentication {
	if s.gate == nil {
		return nil
	}
	return &listen.Authentication{Authenticator: s.authenticator, Gate: s.gate}
}

// grpcCredentials returns the credentials of the gRPC server, or nil if it is not encrypted.
func (s *security) grpcCredentials() credentials.TransportCredentials {
	if s.grpc == nil {
		return nil
	}
	return credentials.NewTLS(s.grpc.Config())
}

// grpcTap returns what authenticates the callers of the gRPC server, or nil if nothing does.
func (s *security) grpcTap() tap.ServerInHandle {
	if a := s.authentication(); a != nil {
		return a.Tap
	}
	return nil
}
