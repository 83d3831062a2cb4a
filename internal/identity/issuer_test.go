package identity

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
)

// openIssuer returns an authenticator whose issuer's keys are fetched, and that issuer. more are
// other fields that the access file has for it.
func openIssuer(t *testing.T, i *identitytest.Issuer, more string) (*Authenticator, *issuer) {
	t.Helper()
	a, _ := openFiles(t, strings.Replace(i.Access(), "{url:", "{"+more+"url:", 1))
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
	i := identitytest.NewIssuer(t)
	a, _ := openIssuer(t, i, "")
	caller, err := authorize(a, t, i.Sign(t, i.Claims(nil)))
	if err != nil || caller.Name() != "user:ann" || caller.Tenant() != "blue" || !caller.May(access.Run, "m") || caller.May(access.Manage, "m") {
		t.Errorf("caller %+v, %v", caller, err)
	}
}

func TestTokensThatMustNotBeAcceptedAreNot(t *testing.T) {
	i := identitytest.NewIssuer(t)
	a, _ := openIssuer(t, i, "")
	other := identitytest.NewIssuer(t)
	valid := i.Sign(t, i.Claims(nil))
	parts := strings.Split(valid, ".")
	hour := time.Now().Add(time.Hour).Unix()
	for name, token := range map[string]string{
		"alg none":           encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg HS256":          encode(`{"alg":"HS256"}`) + "." + parts[1] + "." + parts[2],
		"another audience":   i.Sign(t, i.Claims(map[string]any{"aud": "other"})),
		"no audience":        i.Sign(t, i.Claims(map[string]any{"aud": nil})),
		"another issuer":     other.Sign(t, other.Claims(nil)),
		"a forged issuer":    other.Sign(t, i.Claims(nil)),
		"expired":            i.Sign(t, i.Claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})),
		"not valid yet":      i.Sign(t, i.Claims(map[string]any{"nbf": time.Now().Add(time.Minute).Unix()})),
		"far in the future":  i.Sign(t, i.Claims(map[string]any{"nbf": hour})),
		"without a name":     i.Sign(t, i.Claims(map[string]any{"sub": nil})),
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
	i := identitytest.NewIssuer(t)
	a, inner := openIssuer(t, i, "")
	token := i.Sign(t, i.Claims(map[string]any{"exp": time.Now().Add(5 * time.Hour).Unix()}))
	i.Down(true)
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

// The authority of an issuer is renewed in its file, and the access file stays as it is.
func TestKeysAreFetchedWithTheAuthorityThatIsInItsFileNow(t *testing.T) {
	var config atomic.Pointer[tls.Config]
	certify := func(ca *identitytest.CA) {
		pair, err := tls.LoadX509KeyPair(ca.Issue(t, "issuer"))
		if err != nil {
			t.Fatal(err)
		}
		config.Store(&tls.Config{Certificates: []tls.Certificate{pair}})
	}
	first, second := identitytest.NewCA(t), identitytest.NewCA(t)
	i := identitytest.NewIssuer(t)
	server := httptest.NewUnstartedServer(i)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config.Load(), nil }}
	certify(first)
	server.StartTLS()
	defer server.Close()
	i.URL = server.URL

	a, inner := openIssuer(t, i, "ca: "+first.Path+", ")
	certify(second)
	inner.client.CloseIdleConnections()
	if _, err := inner.fetch(t.Context()); err == nil {
		t.Fatal("an authority is trusted that is not in the file")
	}
	if err := os.Rename(second.Path, first.Path); err != nil {
		t.Fatal(err)
	}
	reload(t, a)
	if _, err := a.state.Load().issuers[i.URL].fetch(t.Context()); err != nil {
		t.Error(err)
	}
	now := a.state.Load()
	if reload(t, a); a.state.Load() != now {
		t.Error("the settings were read again although no file has changed")
	}
}

func TestARotatedKeyIsAcceptedAndAWithdrawnOneIsRefusedWithinAMinute(t *testing.T) {
	i := identitytest.NewIssuer(t)
	a, inner := openIssuer(t, i, "")
	old := i.Sign(t, i.Claims(nil))
	if _, err := authorize(a, t, old); err != nil {
		t.Fatal(err)
	}
	i.Rotate(t, "2")
	rotated := i.Sign(t, i.Claims(nil))
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
	i.Withdraw()
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
	i := identitytest.NewIssuer(t)
	a, inner := openIssuer(t, i, "")
	token := i.Sign(t, i.Claims(map[string]any{"exp": time.Now().Add(10 * time.Second).Unix()}))
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
	if _, err := authorize(a, t, i.Sign(t, i.Claims(nil))); err != nil || len(inner.tokens) > maxTokens {
		t.Errorf("%d tokens are cached, %v", len(inner.tokens), err)
	}
}

func TestKeysOfOtherKindsArePassedOver(t *testing.T) {
	const good = `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	keys, err := publicKeys([]byte(`{"keys":[{"kty":"OKP","crv":"Ed448","x":"AA"},{"kty":"oct","k":"AAAA"},{"kty":"new"},` + good + `]}`))
	if err != nil || len(keys) != 1 {
		t.Errorf("%d keys and %v, want the one that can be used", len(keys), err)
	}
	if _, err := publicKeys([]byte(`{"keys":[{"kty":"new"}]}`)); err == nil {
		t.Error("a set without a key that can be used is accepted")
	}
}

func TestATokenOfAKnownKeyIsNotBlamedOnItsKey(t *testing.T) {
	i := identitytest.NewIssuer(t)
	a, inner := openIssuer(t, i, "")
	if _, err := authorize(a, t, i.Sign(t, i.Claims(map[string]any{"aud": "other"}))); err == nil || strings.Contains(err.Error(), "known key") || !strings.Contains(err.Error(), "audience") {
		t.Errorf("a token for another audience: %v", err)
	}
	if len(inner.refresh) != 0 {
		t.Error("its issuer is asked for new keys")
	}
}
