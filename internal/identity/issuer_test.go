package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/shoal-serving/shoal/internal/access"
)

// A testIssuer publishes keys and signs tokens, in this process.
type testIssuer struct {
	*httptest.Server

	mu   sync.Mutex
	keys []jose.JSONWebKey // with private keys; the last one signs
	down bool
}

func newTestIssuer(t *testing.T) *testIssuer {
	t.Helper()
	i := &testIssuer{}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	i.rotate(t, "1")
	return i
}

// rotate adds a key that signs from now on.
func (i *testIssuer) rotate(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256", Use: "sig"})
}

func (i *testIssuer) set(down bool, keys ...jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
	if keys != nil {
		i.keys = keys
	}
}

func (i *testIssuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/jwks", "authorization_endpoint": i.URL, "token_endpoint": i.URL})
	default:
		var public []jose.JSONWebKey
		for _, k := range i.keys {
			public = append(public, k.Public())
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: public})
	}
}

// sign returns a token with the given claims.
func (i *testIssuer) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	i.mu.Lock()
	key := i.keys[len(i.keys)-1]
	i.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (i *testIssuer) access() string {
	return "version: 1\nissuers: [{url: '" + i.URL + "', audience: shoal, algorithms: [ES256], claims: {tenant: tenant}}]\ngrants: [{to: ['user:ann'], role: infer}]"
}

// claims returns those of a valid token, changed by others.
func (i *testIssuer) claims(others map[string]any) map[string]any {
	claims := map[string]any{"iss": i.URL, "aud": "shoal", "sub": "ann", "tenant": "blue", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, others)
	return claims
}

// openIssuer returns an authenticator whose issuer's keys are fetched, and that issuer.
func openIssuer(t *testing.T, i *testIssuer) (*Authenticator, *issuer) {
	t.Helper()
	a, _ := openFiles(t, i.access())
	inner := a.state.Load().issuers[i.URL]
	for deadline := time.Now().Add(10 * time.Second); inner.keys.Load() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("no keys were fetched")
		}
		time.Sleep(time.Millisecond)
	}
	return a, inner
}

func fetchNow(t *testing.T, i *issuer) {
	t.Helper()
	keys, err := i.fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i.keys.Store(&keySet{keys: keys, fetched: i.now()})
}

func authorize(a *Authenticator, t *testing.T, token string) (*access.Caller, error) {
	t.Helper()
	return a.Authenticate(t.Context(), Credentials{Authorization: "Bearer " + token})
}

func TestATokenSaysWhoCalls(t *testing.T) {
	i := newTestIssuer(t)
	a, _ := openIssuer(t, i)
	caller, err := authorize(a, t, i.sign(t, i.claims(nil)))
	if err != nil || caller.Name() != "user:ann" || caller.Tenant() != "blue" || !caller.May(access.Run, "m") || caller.May(access.Manage, "m") {
		t.Errorf("caller %+v, %v", caller, err)
	}
}

func TestTokensThatMustNotBeAcceptedAreNot(t *testing.T) {
	i := newTestIssuer(t)
	a, _ := openIssuer(t, i)
	other := newTestIssuer(t)
	valid := i.sign(t, i.claims(nil))
	parts := strings.Split(valid, ".")
	hour := time.Now().Add(time.Hour).Unix()
	for name, token := range map[string]string{
		"alg none":           encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg HS256":          encode(`{"alg":"HS256"}`) + "." + parts[1] + "." + parts[2],
		"another audience":   i.sign(t, i.claims(map[string]any{"aud": "other"})),
		"no audience":        i.sign(t, i.claims(map[string]any{"aud": nil})),
		"another issuer":     other.sign(t, other.claims(nil)),
		"a forged issuer":    other.sign(t, i.claims(nil)),
		"expired":            i.sign(t, i.claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})),
		"not valid yet":      i.sign(t, i.claims(map[string]any{"nbf": time.Now().Add(time.Minute).Unix()})),
		"far in the future":  i.sign(t, i.claims(map[string]any{"nbf": hour})),
		"without a name":     i.sign(t, i.claims(map[string]any{"sub": nil})),
		"a changed payload":  parts[0] + "." + encode(`{"iss":"`+i.URL+`","aud":"shoal","sub":"root","exp":9999999999}`) + "." + parts[2],
		"without signature":  parts[0] + "." + parts[1] + ".",
		"half of it":         valid[:len(valid)/2],
		"not JSON":           "a.b.c",
		"only two parts":     parts[0] + "." + parts[1],
		"a very long middle": parts[0] + "." + strings.Repeat("a", maxClaims+1) + "." + parts[2],
	} {
		if _, err := authorize(a, t, token); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := authorize(a, t, valid); err != nil {
		t.Errorf("a valid token: %v", err)
	}
}

func TestKnownKeysAreUsedForAnHourWhileTheIssuerIsDown(t *testing.T) {
	i := newTestIssuer(t)
	a, inner := openIssuer(t, i)
	token := i.sign(t, i.claims(map[string]any{"exp": time.Now().Add(5 * time.Hour).Unix()}))
	i.set(true)
	start := time.Now()
	for _, test := range []struct {
		after time.Duration
		ok    bool
	}{{0, true}, {keysLife - time.Minute, true}, {keysLife + time.Minute, false}} {
		inner.now = func() time.Time { return start.Add(test.after) }
		if _, err := authorize(a, t, token); (err == nil) != test.ok {
			t.Errorf("after %v: %v", test.after, err)
		}
	}
}

func TestARotatedKeyIsAcceptedAndAWithdrawnOneIsRefusedWithinAMinute(t *testing.T) {
	i := newTestIssuer(t)
	a, inner := openIssuer(t, i)
	old := i.sign(t, i.claims(nil))
	if _, err := authorize(a, t, old); err != nil {
		t.Fatal(err)
	}
	i.rotate(t, "2")
	rotated := i.sign(t, i.claims(nil))
	if _, err := authorize(a, t, rotated); err == nil {
		t.Error("a key that was not fetched yet is accepted")
	}
	for deadline := time.Now().Add(10 * time.Second); ; { // the unknown key makes the issuer be asked
		if _, err := authorize(a, t, rotated); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the rotated key was not fetched")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if refreshInterval+tokenLife >= time.Minute {
		t.Errorf("a withdrawn key is refused after %v", refreshInterval+tokenLife)
	}
	i.mu.Lock()
	newest := i.keys[1]
	i.mu.Unlock()
	i.set(false, newest)
	fetchNow(t, inner)
	start := time.Now()
	inner.now = func() time.Time { return start.Add(tokenLife) }
	if _, err := authorize(a, t, old); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("a token of a withdrawn key: %v", err)
	}
	if _, err := authorize(a, t, rotated); err != nil {
		t.Errorf("a token of the other key: %v", err)
	}
}

func TestVerifiedTokensAreCachedUntilTheyExpire(t *testing.T) {
	i := newTestIssuer(t)
	a, inner := openIssuer(t, i)
	token := i.sign(t, i.claims(map[string]any{"exp": time.Now().Add(10 * time.Second).Unix()}))
	first, err := authorize(a, t, token)
	if err != nil {
		t.Fatal(err)
	}
	second, err := authorize(a, t, token)
	if err != nil || first.Principals[0] != second.Principals[0] {
		t.Errorf("the second time the token was verified again: %v", err)
	}
	start := time.Now()
	inner.now = func() time.Time { return start.Add(11 * time.Second) }
	if _, err := authorize(a, t, token); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("a cached token that has expired: %v", err)
	}
	inner.now = time.Now
	for n := range maxTokens {
		inner.tokens[[32]byte{byte(n), byte(n >> 8), 1}] = verified{}
	}
	if _, err := authorize(a, t, i.sign(t, i.claims(nil))); err != nil || len(inner.tokens) > maxTokens {
		t.Errorf("%d tokens are cached, %v", len(inner.tokens), err)
	}
}
