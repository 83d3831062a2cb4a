package identitytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// An Issuer publishes keys and signs tokens, in this process.
type Issuer struct {
	*httptest.Server

	mu   sync.Mutex
	keys []jose.JSONWebKey // with private keys; the last one signs
	down bool
}

// NewIssuer starts an issuer with one key. It is closed when the test ends.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	i.Rotate(t, "1")
	return i
}

// Rotate adds a key, which signs all later tokens.
func (i *Issuer) Rotate(t testing.TB, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256", Use: "sig"})
}

// Down has the issuer answer with errors, or end that.
func (i *Issuer) Down(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// Withdraw removes all keys but the newest.
func (i *Issuer) Withdraw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = i.keys[len(i.keys)-1:]
}

// ServeHTTP implements [http.Handler].
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// Sign returns a token with the given claims.
func (i *Issuer) Sign(t testing.TB, claims map[string]any) string {
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

// Access returns an access file, which lets the user ann run models.
func (i *Issuer) Access() string {
	return "version: 1\nissuers: [{url: '" + i.URL + "', audience: shoal, algorithms: [ES256], claims: {tenant: tenant}}]\ngrants: [{to: ['user:ann'], role: infer}]"
}

// Claims returns those of a valid token, changed by others.
func (i *Issuer) Claims(others map[string]any) map[string]any {
	claims := map[string]any{"iss": i.URL, "aud": "shoal", "sub": "ann", "tenant": "blue", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, others)
	return claims
}
