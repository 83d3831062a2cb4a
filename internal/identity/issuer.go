package identity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/shoal-serving/shoal/internal/access"
)

const (
	// refreshInterval is how often the keys of an issuer are fetched. A key that the issuer has
	// withdrawn is refused after at most this and the life of a cached token: 55 s.
	refreshInterval = 25 * time.Second

	// tokenLife is how long a verified token is not verified again.
	tokenLife = 30 * time.Second

	// keysLife is how long keys are used while the issuer cannot be reached.
	keysLife = time.Hour

	// clockSkew is how far the clocks of an issuer and of this machine may differ.
	clockSkew = 10 * time.Second

	// minRefresh is the least time between two fetches because of tokens with unknown keys.
	minRefresh = time.Second

	maxTokens   = 10_000  // tokens that are cached
	maxDocument = 1 << 20 // size of a document of the issuer
)

// An issuer verifies the tokens of one OpenID Connect issuer.
type issuer struct {
	settings *Settings
	opts     Issuer
	ca       []byte // what the file opts.CA had
	client   *http.Client
	log      *slog.Logger
	now      func() time.Time

	keys    atomic.Pointer[keySet]
	refresh chan struct{} // size 1: asks for a fetch before its time

	mu     sync.Mutex // guards the following
	tokens map[[sha256.Size]byte]verified
}

// A keySet is what an issuer published. It is replaced, never changed.
type keySet struct {
	keys    []crypto.PublicKey
	fetched time.Time
}

// A verified token is valid until its time, or until its keys are no longer the issuer's.
type verified struct {
	principal *access.Principal
	until     time.Time
}

func newIssuer(s *Settings, opts Issuer, log *slog.Logger, now func() time.Time) (*issuer, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	pem, err := readIfNamed(opts.CA, false)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	if opts.CA != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s has no certificates", opts.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &issuer{
		settings: s, opts: opts, ca: pem, log: log, now: now, refresh: make(chan struct{}, 1), tokens: map[[sha256.Size]byte]verified{},
		client: &http.Client{Transport: transport, Timeout: 10 * time.Second},
	}, nil
}

// current reports whether its file has the authorities with which the issuer was opened. A file that
// cannot be read has not, so that it is opened again, and the error is reported.
func (i *issuer) current() bool {
	pem, err := readIfNamed(i.opts.CA, false)
	return err == nil && bytes.Equal(pem, i.ca)
}

// run fetches the issuer's keys now and then, until ctx ends.
func (i *issuer) run(ctx context.Context) {
	defer i.client.CloseIdleConnections()
	failing := false
	for {
		wait := refreshInterval
		keys, err := i.fetch(ctx)
		switch {
		case err == nil:
			i.keys.Store(&keySet{keys: keys, fetched: i.now()})
			if failing {
				i.log.Info("issuer can be reached again", "issuer", i.opts.URL)
			}
		case ctx.Err() != nil:
			return
		default:
			wait = time.Second + refreshInterval/10
			if !failing {
				i.log.Error("cannot fetch the keys of an issuer; the known ones are used for an hour", "issuer", i.opts.URL, "error", err)
			}
		}
		failing = err != nil
		if !await(ctx, minRefresh, nil) || !await(ctx, wait-minRefresh, i.refresh) { // a token with an unknown key ends the wait
			return
		}
	}
}

// fetch returns the public keys that the issuer publishes now.
func (i *issuer) fetch(ctx context.Context) ([]crypto.PublicKey, error) {
	ctx = oidc.ClientContext(ctx, i.client)
	provider, err := oidc.NewProvider(ctx, i.opts.URL)
	if err != nil {
		return nil, err
	}
	var discovered struct {
		JWKS string `json:"jwks_uri"`
	}
	if err := provider.Claims(&discovered); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, discovered.JWKS, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", discovered.JWKS, resp.Status)
	}
	keys, err := publicKeys(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", discovered.JWKS, err)
	}
	return keys, nil
}

// publicKeys returns the keys of a set that can have signed a token. Keys of other kinds are passed
// over (RFC 7517, section 5).
func publicKeys(set []byte) (keys []crypto.PublicKey, err error) {
	var all struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(set, &all); err != nil {
		return nil, err
	}
	for _, text := range all.Keys {
		var k jose.JSONWebKey
		if json.Unmarshal(text, &k) != nil || k.Use != "" && k.Use != "sig" {
			continue
		}
		switch k.Key.(type) {
		case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
			keys = append(keys, k.Key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("none of %d keys can be used", len(all.Keys))
	}
	return keys, nil
}

// verify returns the principal of a token.
func (i *issuer) verify(ctx context.Context, token string) (*access.Principal, error) {
	sum := sha256.Sum256([]byte(token))
	i.mu.Lock()
	cached, ok := i.tokens[sum]
	i.mu.Unlock()
	if ok && i.now().Before(cached.until) {
		return cached.principal, nil
	}
	p, expires, err := i.verifyNow(ctx, token)
	if err != nil {
		return nil, err
	}
	until := i.now().Add(tokenLife)
	if expires.Before(until) {
		until = expires
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.tokens) >= maxTokens {
		clear(i.tokens) // rare, and cheaper than to keep an order
	}
	i.tokens[sum] = verified{p, until}
	return p, nil
}

// errUnknownKey is the error of a token whose key the issuer may have published since its
// keys were fetched.
var errUnknownKey = errors.New("the token is not signed with a known key of its issuer")

// knownKeys notes whether no key fits a token.
type knownKeys struct {
	oidc.StaticKeySet
	failed bool
}

// VerifySignature implements [oidc.KeySet].
func (k *knownKeys) VerifySignature(ctx context.Context, jwt string) (payload []byte, err error) {
	payload, err = k.StaticKeySet.VerifySignature(ctx, jwt)
	k.failed = err != nil
	return payload, err
}

func (i *issuer) verifyNow(ctx context.Context, token string) (p *access.Principal, expires time.Time, err error) {
	set := i.keys.Load()
	if set == nil || i.now().Sub(set.fetched) > keysLife {
		return nil, time.Time{}, fmt.Errorf("the keys of issuer %s could not be fetched yet", i.opts.URL)
	}
	keys := &knownKeys{StaticKeySet: oidc.StaticKeySet{PublicKeys: set.keys}}
	verifier := oidc.NewVerifier(i.opts.URL, keys, &oidc.Config{
		ClientID: i.opts.Audience, SupportedSigningAlgs: i.opts.Algorithms, Now: i.now,
	})
	t, err := verifier.Verify(ctx, token)
	if err != nil {
		if expired, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
			return nil, time.Time{}, fmt.Errorf("the token expired at %s", expired.Expiry.UTC().Format(time.RFC3339))
		}
		if !keys.failed {
			return nil, time.Time{}, fmt.Errorf("the token is not accepted: %w", err)
		}
		select {
		case i.refresh <- struct{}{}: // the next token may find a new key
		default:
		}
		return nil, time.Time{}, fmt.Errorf("%w: %w", errUnknownKey, err)
	}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return nil, time.Time{}, err
	}
	if nbf, ok := claims["nbf"].(float64); ok && i.now().Add(clockSkew).Before(time.Unix(int64(nbf), 0)) {
		return nil, time.Time{}, errors.New("the token is not valid yet")
	}
	p, err = i.settings.claimsPrincipal(i.opts.Claims, claims)
	return p, t.Expiry, err
}
