// Package identity authenticates callers: by API key, by a token of an OpenID Connect issuer,
// by client certificate, or by what a trusted proxy says. What the caller may do is decided
// by package access.
package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
)

// Options say what is accepted. Without Keys and Access no credentials are.
type Options struct {
	// Keys is the file of API keys; "" means none. It need not exist.
	Keys string
	// Access is the access file; "" means none.
	Access string
	// Tenants gets the limits of the access file. Nil means that they do not matter.
	Tenants *access.Tenants
	// Log receives what goes wrong. Nil means [slog.Default].
	Log *slog.Logger
}

// reloadInterval is how often the files are checked for a change.
const reloadInterval = time.Second / 2

// An Authenticator determines the caller of a request. Its methods may be called concurrently.
type Authenticator struct {
	opts Options
	log  *slog.Logger
	now  func() time.Time

	state atomic.Pointer[state]

	stop context.CancelFunc
	work sync.WaitGroup
}

// A state is what the files say. It is replaced as a whole, with the tokens that its
// issuers have verified.
type state struct {
	keys     map[string]keyPrincipal
	settings *Settings
	issuers  map[string]*issuer
	digest   [sha256.Size]byte  // of the files
	stop     context.CancelFunc // ends the work of the issuers
}

type keyPrincipal struct {
	key       Key
	principal *access.Principal
}

// Open reads the files, and follows their changes until Close.
func Open(opts Options) (*Authenticator, error) {
	a := &Authenticator{opts: opts, log: cmp.Or(opts.Log, slog.Default()), now: time.Now}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	if err := a.load(ctx); err != nil {
		a.Close()
		return nil, err
	}
	a.work.Go(func() {
		follow(ctx, func() error { return a.load(ctx) }, func(err error) {
			a.log.Error("access settings were not reloaded; the previous ones stay", "error", err)
		})
	})
	return a, nil
}

// Close ends the work in the background.
func (a *Authenticator) Close() {
	a.stop()
	a.work.Wait()
}

// follow calls load every reloadInterval until ctx ends. It reports an error of load once, and
// not again while it stays the same.
func follow(ctx context.Context, load func() error, report func(error)) {
	failure := ""
	for await(ctx, reloadInterval, nil) {
		err := load()
		switch {
		case err == nil:
			failure = ""
		case err.Error() != failure:
			failure = err.Error()
			report(err)
		}
	}
}

// await waits for d, or until wake receives. It returns false if ctx ends.
func await(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// load reads the files. It keeps the state if they have not changed.
func (a *Authenticator) load(ctx context.Context) error {
	keyText, err := readIfNamed(a.opts.Keys, true)
	if err != nil {
		return fmt.Errorf("cannot read the API keys: %w", err)
	}
	accessText, err := readIfNamed(a.opts.Access, false)
	if err != nil {
		return fmt.Errorf("cannot read the access file: %w", err)
	}
	digest := sha256.Sum256(append(append(slices.Clone(keyText), 0), accessText...))
	before := a.state.Load()
	if before != nil && before.digest == digest && before.current() {
		return nil
	}
	next, issuers, err := a.parse(keyText, accessText)
	if err != nil {
		return err
	}
	next.digest = digest
	running, stop := context.WithCancel(ctx)
	next.stop = stop
	for _, i := range issuers {
		next.issuers[i.opts.URL] = i
		if before != nil && before.issuers[i.opts.URL] != nil {
			i.keys.Store(before.issuers[i.opts.URL].keys.Load()) // until they are fetched
		}
		a.work.Go(func() { i.run(running) })
	}
	a.opts.Tenants.Configure(next.settings.Tenants)
	a.state.Store(next)
	if before != nil {
		before.stop()
		a.log.Info("access settings reloaded", "keys", len(next.keys), "issuers", len(next.issuers))
	}
	return nil
}

// current reports whether the files that the access file names have not changed.
func (s *state) current() bool {
	for _, i := range s.issuers {
		if !i.current() {
			return false
		}
	}
	return true
}

func readIfNamed(path string, mayMiss bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if mayMiss && errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

func (a *Authenticator) parse(keyText, accessText []byte) (*state, []*issuer, error) {
	s := &state{keys: map[string]keyPrincipal{}, settings: &Settings{}, issuers: map[string]*issuer{}}
	if len(keyText) > 0 {
		keys, err := parseKeys(a.opts.Keys, keyText)
		if err != nil {
			return nil, nil, err
		}
		for _, k := range keys {
			name := "key:" + cmp.Or(k.Name, k.ID)
			s.keys[k.ID] = keyPrincipal{k, &access.Principal{Name: name, Tenant: k.Tenant, Grants: k.Grants}}
		}
	}
	var issuers []*issuer
	if a.opts.Access != "" {
		settings, err := ParseSettings(a.opts.Access, accessText)
		if err != nil {
			return nil, nil, err
		}
		s.settings = settings
		for n, opts := range settings.Issuers {
			i, err := newIssuer(settings, opts, a.log, a.now)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: issuers[%d]: %w", a.opts.Access, n, err)
			}
			issuers = append(issuers, i)
		}
	}
	return s, issuers, nil
}

// Credentials are what a request says about its caller.
type Credentials struct {
	Authorization string            // the header
	Claims        string            // the header [ClaimsHeader]
	Certificate   *x509.Certificate // of the client, verified; nil if it sent none
	Address       string            // of the client
}

// A RefusedError is the error of credentials that are not accepted. It is an
// [access.ErrUnauthenticated].
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Is reports whether target is [access.ErrUnauthenticated].
func (e *RefusedError) Is(target error) bool { return target == access.ErrUnauthenticated }

func refuse(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// Authenticate returns the caller. Only the Authorization header counts if a request has
// one. Without it, the certificate of the client names the caller, or, if that is a
// trusted proxy's, what the proxy says. The error is [access.ErrUnauthenticated].
func (a *Authenticator) Authenticate(ctx context.Context, c Credentials) (*access.Caller, error) {
	s := a.state.Load()
	p, err := s.principal(ctx, a.now(), c)
	if err != nil {
		return nil, err
	}
	return &access.Caller{Principals: []*access.Principal{p}, Address: c.Address}, nil
}

func (s *state) principal(ctx context.Context, now time.Time, c Credentials) (*access.Principal, error) {
	proxy := c.Certificate != nil && slices.ContainsFunc(names(c.Certificate), func(name string) bool { return slices.Contains(s.settings.Proxies, name) })
	switch {
	case proxy && c.Claims != "":
		claims, err := decodeClaims(c.Claims)
		if err != nil {
			return nil, refuse("%v", err)
		}
		p, err := s.settings.claimsPrincipal(s.settings.ProxyClaims, claims)
		if err != nil {
			return nil, refuse("%v", err)
		}
		return p, nil
	case c.Authorization != "":
		return s.bearer(ctx, now, c.Authorization)
	case c.Certificate != nil:
		return s.certificate(c.Certificate), nil
	}
	return nil, access.ErrUnauthenticated
}

// bearer returns the principal of an Authorization header: a token or an API key.
func (s *state) bearer(ctx context.Context, now time.Time, header string) (*access.Principal, error) {
	scheme, token, _ := strings.Cut(header, " ")
	if strings.EqualFold(scheme, "Basic") {
		scheme, token = "Bearer", password(token)
	}
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, refuse("the Authorization header must be 'Bearer' and an API key or a token")
	}
	if id, ok := keyID(token); ok {
		k, known := s.keys[id]
		if !known || !k.key.matches(token) || !k.key.Usable(now) {
			return nil, refuse("the API key is unknown, expired or revoked")
		}
		return k.principal, nil
	}
	i := s.issuers[issuerOf(token)]
	if i == nil {
		return nil, refuse("the token is not from an issuer that this server accepts")
	}
	p, err := i.verify(ctx, token)
	if err != nil {
		return nil, refuse("%v", err)
	}
	return p, nil
}

// password returns the password of Basic authentication, "" if there is none. Browsers ask their
// users for it, and it is an API key; the name does not matter.
func password(credentials string) string {
	text, err := base64.StdEncoding.DecodeString(credentials)
	if err != nil {
		return ""
	}
	_, secret, _ := strings.Cut(string(text), ":")
	return secret
}

// issuerOf returns what a token says about its issuer, which is not verified; "" if it is
// not a token.
func issuerOf(token string) string {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, ok := strings.Cut(rest, ".")
	if !ok || len(payload) > maxClaims {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(text, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// certificate returns the principal of a client certificate.
func (s *state) certificate(c *x509.Certificate) *access.Principal {
	all := names(c)
	subjects := make([]string, len(all))
	for i, name := range all {
		subjects[i] = subjectCertificate + ":" + name
	}
	return s.settings.principal(subjectCertificate+":"+cmp.Or(append(all, c.SerialNumber.String())...), "", subjects...)
}

// names returns the identities of a certificate: its URIs, such as SPIFFE ids, its DNS names
// and its common name.
func names(c *x509.Certificate) (all []string) {
	for _, u := range c.URIs {
		all = append(all, u.String())
	}
	all = append(all, c.DNSNames...)
	if c.Subject.CommonName != "" {
		all = append(all, c.Subject.CommonName)
	}
	return all
}

// IsLoopback reports whether only this machine can connect to an address. Of names, only
// localhost is known to be one.
func IsLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return address == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
