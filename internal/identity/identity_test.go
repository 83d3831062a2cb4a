package identity

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
)

var infers = []access.Grant{{Role: access.Infer}}

// openFiles returns an authenticator for an access file and a file of keys.
func openFiles(t *testing.T, accessText string) (a *Authenticator, keys string) {
	t.Helper()
	dir := t.TempDir()
	opts := Options{Keys: filepath.Join(dir, "keys.json"), Log: slog.New(slog.DiscardHandler)}
	if accessText != "" {
		opts.Access = filepath.Join(dir, "access.yaml")
		if err := os.WriteFile(opts.Access, []byte(accessText), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, opts.Keys
}

// reload makes the authenticator read its files now.
func reload(t *testing.T, a *Authenticator) {
	t.Helper()
	if err := a.load(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAKeyIsAcceptedUntilItExpiresOrIsRevoked(t *testing.T) {
	a, path := openFiles(t, "")
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	a.now = func() time.Time { return now }
	key, secret, err := CreateKey(path, Key{Name: "ci", Tenant: "blue", Grants: infers, Expires: now.Add(time.Hour)}, now)
	if err != nil {
		t.Fatal(err)
	}
	_, forever, err := CreateKey(path, Key{Name: "ops", Grants: []access.Grant{{Role: access.Admin}}}, now)
	if err != nil {
		t.Fatal(err)
	}
	reload(t, a)
	caller, err := a.Authenticate(t.Context(), Credentials{Authorization: "Bearer " + secret, Address: "192.0.2.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if caller.Name() != "key:ci" || caller.Tenant() != "blue" || caller.Address != "192.0.2.1:1" || !caller.May(access.Run, "m") || caller.May(access.Manage, "m") {
		t.Errorf("caller %+v", caller)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), secret[len(KeyPrefix)+len(key.ID):]) {
		t.Errorf("the file has the secret: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is readable for others: %v, %v", info, err)
	}
	for _, wrong := range []string{"", "Bearer", "Bearer ", "Basic " + secret, "Bearer x", "Bearer " + secret + "x", "Bearer " + secret[:len(secret)-1], "Bearer " + KeyPrefix + key.ID + "_", secret} {
		if _, err := a.Authenticate(t.Context(), Credentials{Authorization: wrong}); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	// Browsers send a name and a password, which is the key.
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for _, name := range []string{"", "ann"} {
		if caller, err := a.Authenticate(t.Context(), Credentials{Authorization: basic(name + ":" + secret)}); err != nil || caller.Name() != "key:"+key.Name {
			t.Errorf("as a password: %v", err)
		}
	}
	for _, wrong := range []string{"", "ann", "ann:", secret, secret + ":", "ann:" + secret + "x", ":ann:" + secret} {
		if _, err := a.Authenticate(t.Context(), Credentials{Authorization: basic(wrong)}); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%q as a name and a password: %v", wrong, err)
		}
	}
	now = now.Add(time.Hour)
	if _, err := a.Authenticate(t.Context(), Credentials{Authorization: "Bearer " + secret}); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("an expired key: %v", err)
	}
	if _, err := a.Authenticate(t.Context(), Credentials{Authorization: "bearer " + forever}); err != nil {
		t.Errorf("a key without an end: %v", err)
	}
	id, _ := keyID(forever)
	if _, err := RevokeKey(path, id, now); err != nil {
		t.Fatal(err)
	}
	reload(t, a)
	if _, err := a.Authenticate(t.Context(), Credentials{Authorization: "Bearer " + forever}); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("a revoked key: %v", err)
	}
	if _, err := RevokeKey(path, "nobody", now); err == nil {
		t.Error("an unknown key was revoked")
	}
}

// The server mostly runs as another user than those that change its keys.
func TestAServerCanReadItsKeysAfterOneWasRevoked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	key, _, err := CreateKey(path, Key{Grants: infers}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	owner := os.Getuid()
	if owner == 0 {
		owner = 65534
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := RevokeKey(path, key.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{path: 0o640, path + ".lock": 0o600} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if as, ok := info.Sys().(*syscall.Stat_t); info.Mode() != mode || !ok || int(as.Uid) != owner {
			t.Errorf("%s: mode %v, %+v, want %v of user %d", name, info.Mode(), info.Sys(), mode, owner)
		}
	}
}

func TestKeysThatAreCreatedAtOnceAreAllKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, _, err := CreateKey(path, Key{Grants: infers}, time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if keys, err := ReadKeys(path); err != nil || len(keys) != 20 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

func TestOfFirstKeysThatAreCreatedAtOnceOneIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	secrets := make(chan string, 20)
	var all sync.WaitGroup
	for range cap(secrets) {
		all.Go(func() {
			secret, err := CreateFirstKey(path, Key{Grants: infers}, time.Now())
			if err != nil {
				t.Error(err)
			}
			secrets <- secret
		})
	}
	all.Wait()
	close(secrets)
	keys, err := ReadKeys(path)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	shown := 0
	for secret := range secrets {
		if secret != "" {
			shown++
			if !keys[0].matches(secret) {
				t.Error("a key was shown that is not kept")
			}
		}
	}
	if shown != 1 {
		t.Errorf("%d keys were shown", shown)
	}
	if _, err := RevokeKey(path, keys[0].ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if secret, err := CreateFirstKey(path, Key{Grants: infers}, time.Now()); secret != "" || err != nil {
		t.Errorf("after the first key was revoked: another one, %v", err)
	}
}

func TestFilesOfOtherReleasesAreNotMisread(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	for _, text := range []string{`{"version": 2, "keys": []}`, `{"keys": []}`, `[]`, `{"version": 1, "keys": [{"id": "a"}]}`, "\x00"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKeys(path); err == nil {
			t.Errorf("%q was read", text)
		}
		if _, _, err := CreateKey(path, Key{Grants: infers}, time.Now()); err == nil {
			t.Errorf("%q was overwritten", text)
		}
	}
}

func TestInvalidFilesKeepWhatWasReadBefore(t *testing.T) {
	a, path := openFiles(t, "version: 1")
	_, secret, err := CreateKey(path, Key{Grants: infers}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	reload(t, a)
	if err := os.WriteFile(a.opts.Access, []byte("version: 1\ngrant: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.load(t.Context()); err == nil {
		t.Error("a misspelt field is accepted")
	}
	if _, err := a.Authenticate(t.Context(), Credentials{Authorization: "Bearer " + secret}); err != nil {
		t.Errorf("after a failed reload: %v", err)
	}
}

func TestAccessFilesSayWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":           "expected version: 1",
		"version: 2": "expected version: 1",
		"version: 1\nissuers: [{url: 'http://example.com', audience: a}]":                         "expected an https address",
		"version: 1\nissuers: [{url: 'https://example.com'}]":                                     "audience is missing",
		"version: 1\nissuers: [{url: 'https://a', audience: a, algorithms: [none]}]":              `found "none"`,
		"version: 1\nissuers: [{url: 'https://a', audience: a, algorithms: [HS256]}]":             `found "HS256"`,
		"version: 1\nissuers: [{url: 'https://a', audience: a}, {url: 'https://a', audience: b}]": "listed twice",
		"version: 1\ngrants: [{role: infer}]":                                                     "to is missing",
		"version: 1\ngrants: [{to: ['*']}]":                                                       "has no role",
		"version: 1\ngrants: [{to: [ann], role: infer}]":                                          "expected user:NAME",
		"version: 1\ngrants: [{to: ['user:'], role: infer}]":                                      "expected user:NAME",
		"version: 1\ngrants: [{to: ['*'], role: root}]":                                           "expected infer, read or admin",
		"version: 1\ngrants: [{to: ['*'], role: infer, models: ['[']}]":                           "malformed",
		"version: 1\nproxy: [a]":                                                                  "not found",
	} {
		_, err := ParseSettings("access.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "access.yaml") {
			t.Errorf("%q: got %v, expected %q", text, err, want)
		}
	}
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".example"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "example", Path: "/" + name}}}
}

const proxied = `
version: 1
proxies: [envoy.example]
proxy_claims: {name: email, tenant: org.id, groups: realm.roles}
grants:
  - {to: ['certificate:node'], role: read, tenant: ops}
  - {to: ['group:ml'], role: infer, models: ['a*']}
  - {to: ['user:ann@example.com'], role: infer, models: [b], tenant: green}
`

func encode(claims string) string { return base64.RawURLEncoding.EncodeToString([]byte(claims)) }

func TestACertificateSaysWhoCalls(t *testing.T) {
	a, _ := openFiles(t, proxied)
	caller, err := a.Authenticate(t.Context(), Credentials{Certificate: certificate("node")})
	if err != nil || caller.Name() != "certificate:spiffe://example/node" || caller.Tenant() != "ops" || !caller.May(access.Observe, "") || caller.May(access.Run, "a") {
		t.Errorf("caller %+v, %v", caller, err)
	}
	caller, err = a.Authenticate(t.Context(), Credentials{Certificate: certificate("other")})
	if err != nil || caller.May(access.Describe, "a") {
		t.Errorf("a certificate without a grant: %+v, %v", caller, err)
	}
}

func TestOnlyATrustedProxySaysForWhomItCalls(t *testing.T) {
	a, _ := openFiles(t, proxied)
	claims := encode(`{"email": "ann@example.com", "org": {"id": "blue"}, "realm": {"roles": ["ml", 1]}}`)
	caller, err := a.Authenticate(t.Context(), Credentials{Certificate: certificate("envoy"), Claims: claims, Authorization: "Bearer forwarded"})
	if err != nil || caller.Name() != "user:ann@example.com" || caller.Tenant() != "blue" || !caller.May(access.Run, "a1") || !caller.May(access.Run, "b") || caller.May(access.Run, "c") {
		t.Errorf("through the proxy: %+v, %v", caller, err)
	}
	caller, err = a.Authenticate(t.Context(), Credentials{Certificate: certificate("node"), Claims: claims})
	if err != nil || caller.Name() != "certificate:spiffe://example/node" {
		t.Errorf("from a certificate that is not a proxy's: %+v, %v", caller, err)
	}
	if _, err := a.Authenticate(t.Context(), Credentials{Claims: claims}); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("without a certificate: %v", err)
	}
	for _, wrong := range []string{"!", encode("[]"), encode("{}"), encode(`{"email": 1}`), strings.Repeat("a", maxClaims+1)} {
		if _, err := a.Authenticate(t.Context(), Credentials{Certificate: certificate("envoy"), Claims: wrong}); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("claims %.20q: %v", wrong, err)
		}
	}
	if _, err := a.Authenticate(context.Background(), Credentials{}); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("nothing: %v", err)
	}
}

func FuzzAuthorization(f *testing.F) {
	a, err := Open(Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(a.Close)
	f.Add("Bearer shoal_a_b", encode("{}"))
	f.Add("Bearer a.e30.b", "")
	f.Add("Bearer eyJhbGciOiJub25lIn0.eyJpc3MiOiJhIn0.", "e30")
	f.Fuzz(func(t *testing.T, authorization, claims string) {
		if _, err := a.Authenticate(t.Context(), Credentials{Authorization: authorization, Claims: claims}); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%q, %q: %v", authorization, claims, err)
		}
		_, _ = decodeClaims(claims) // must not panic
	})
}
