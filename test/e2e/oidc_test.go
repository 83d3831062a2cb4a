//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/servertest"
)

// An oidcIssuer is the npm package oidc-provider, run by node.
type oidcIssuer struct {
	t    *testing.T
	port int
	url  string
	keys string // file
	cmd  *exec.Cmd
}

// newOIDCIssuer skips the test if tools/get-oidc-provider was not run.
func newOIDCIssuer(t *testing.T) *oidcIssuer {
	t.Helper()
	dir := filepath.Join(servertest.Root, "bin", "oidc-provider")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		t.Skip("there is no bin/oidc-provider: run tools/get-oidc-provider")
	}
	port := servertest.FreePort(t)
	return &oidcIssuer{t: t, port: port, url: fmt.Sprintf("http://127.0.0.1:%d", port), keys: filepath.Join(t.TempDir(), "jwks.json")}
}

// start runs the issuer with the given keys, of which the first signs.
func (i *oidcIssuer) start(keys ...jose.JSONWebKey) {
	i.t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(i.keys, text, 0o600); err != nil {
		i.t.Fatal(err)
	}
	// The script is beside the package, where node looks for it.
	script := filepath.Join(servertest.Root, "bin", "oidc-provider", "issuer.mjs")
	source, err := os.ReadFile("testdata/issuer.mjs")
	if err == nil {
		err = os.WriteFile(script, source, 0o600)
	}
	if err != nil {
		i.t.Fatal(err)
	}
	cmd := exec.Command("node", script, fmt.Sprint(i.port), i.keys)
	if err := cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	i.cmd = cmd
	i.t.Cleanup(func() { servertest.Kill(cmd) })
	servertest.Eventually(i.t, "the issuer answers", func() bool {
		resp, err := (&http.Client{Timeout: time.Second}).Get(i.url + "/jwks")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (i *oidcIssuer) stop() { servertest.Kill(i.cmd) }

// token asks the issuer for an access token, as a client does.
func (i *oidcIssuer) token() string {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.url+"/token", strings.NewReader(url.Values{"grant_type": {"client_credentials"}}.Encode()))
	if err != nil {
		i.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth("web", "secret")
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	text, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(text, &answer); err != nil || answer.Token == "" {
		i.t.Fatalf("the issuer answered %s: %v", text, err)
	}
	return answer.Token
}

// sign returns a token that the issuer could have issued, with some claims changed.
func (i *oidcIssuer) sign(key jose.JSONWebKey, change map[string]any) string {
	i.t.Helper()
	claims := map[string]any{"iss": i.url, "aud": "shoal", "sub": "web", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	maps.Copy(claims, change)
	payload, err := json.Marshal(claims)
	if err != nil {
		i.t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		i.t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

func newSigningKey(t *testing.T, id string) jose.JSONWebKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: id, Use: "sig", Algorithm: "ES256"}
}

// statusFor returns the status of a request for metadata with a header.
func statusFor(t *testing.T, c *http.Client, address, name, value string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v2/models/seed_none", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(name, value)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokensOfARealIssuer(t *testing.T) {
	issuer := newOIDCIssuer(t)
	a, b := newSigningKey(t, "a"), newSigningKey(t, "b")
	issuer.start(a)
	access := writeFile(t, "access.yaml", "version: 1\nissuers: [{url: \""+issuer.url+"\", audience: shoal}]\ngrants: [{to: [\"user:web\"], role: infer}]\n")
	s := servertest.Start(t, filepath.Join(servertest.Root, "examples", "seed-device"), "--access="+access)
	plain := &http.Client{Timeout: 10 * time.Second}
	status := func(token string) int { return statusFor(t, plain, s.HTTP, "Authorization", "Bearer "+token) }

	token := issuer.token()
	servertest.Eventually(t, "a token is accepted", func() bool { return status(token) == http.StatusOK })
	if got := status(issuer.sign(a, nil)); got != http.StatusOK {
		t.Fatalf("a token of the test, which the next ones change: %d", got)
	}
	payload := strings.Split(issuer.sign(a, nil), ".")[1]
	for name, wrong := range map[string]string{
		"alg none":           base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + payload + ".",
		"another audience":   issuer.sign(a, map[string]any{"aud": "billing"}),
		"another issuer":     issuer.sign(a, map[string]any{"iss": "https://issuer.example.org"}),
		"not yet valid":      issuer.sign(a, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
		"expired":            issuer.sign(a, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}),
		"a key of nobody's":  issuer.sign(b, nil),
		"a changed payload":  strings.Replace(token, "."+strings.Split(token, ".")[1]+".", "."+payload+".", 1),
		"no token whatever":  "x",
		"an API key of none": "shoal_a_b",
	} {
		if got := status(wrong); got != http.StatusUnauthorized {
			t.Errorf("%s: %d, expected 401", name, got)
		}
	}

	issuer.stop()
	if got := status(issuer.sign(a, map[string]any{"jti": "during the outage"})); got != http.StatusOK {
		t.Errorf("while the issuer is down: %d", got)
	}

	issuer.start(b, a)
	began := time.Now()
	rotated := issuer.token()
	servertest.Eventually(t, "a token of a new key is accepted", func() bool { return status(rotated) == http.StatusOK })
	t.Logf("a new key was accepted after %v", time.Since(began).Round(100*time.Millisecond))
	if got := status(token); got != http.StatusOK {
		t.Errorf("a token of the old key, which is still published: %d", got)
	}

	issuer.stop()
	issuer.start(b)
	began = time.Now()
	for status(token) == http.StatusOK {
		if time.Since(began) > time.Minute {
			t.Fatal("a token of a withdrawn key is accepted after 60 s")
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("a withdrawn key was refused after %v", time.Since(began).Round(100*time.Millisecond))
}

// Envoy verifies the token, and names the caller in a header. Only from Envoy it counts.
func TestAProxyNamesTheCaller(t *testing.T) {
	envoy := filepath.Join(servertest.Root, "bin", "envoy")
	if _, err := os.Stat(envoy); err != nil {
		t.Skip("there is no bin/envoy: run tools/get-envoy")
	}
	issuer := newOIDCIssuer(t)
	issuer.start(newSigningKey(t, "a"))
	ca := identitytest.NewCA(t)
	cert, key := ca.Issue(t, "server")
	proxyCert, proxyKey := ca.Issue(t, "envoy")
	otherCert, otherKey := ca.Issue(t, "other")
	access := writeFile(t, "access.yaml", "version: 1\nproxies: [envoy]\ngrants: [{to: [\"user:web\"], role: infer}]\n")
	s := servertest.Listening(t, filepath.Join(servertest.Root, "examples", "seed-device"),
		"--access="+access, "--tls-cert="+cert, "--tls-key="+key, "--tls-client-ca="+ca.Path)
	address := strings.Replace(s.HTTP, "http://", "https://", 1)

	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"web"}`))
	for name, files := range map[string]identity.ClientTLS{
		"without a certificate":      {CA: ca.Path},
		"with another's certificate": {CA: ca.Path, Cert: otherCert, Key: otherKey},
	} {
		config, err := files.Config()
		if err != nil {
			t.Fatal(err)
		}
		direct := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: config}}
		if got := statusFor(t, direct, address, identity.ClaimsHeader, claims); got != http.StatusUnauthorized && got != http.StatusForbidden {
			t.Errorf("a forged header %s: %d", name, got)
		}
	}

	// Forged over gRPC, too.
	config, err := identity.ClientTLS{CA: ca.Path, Cert: otherCert, Key: otherKey}.Config()
	if err != nil {
		t.Fatal(err)
	}
	if got := codeFor(t, s.GRPC, credentials.NewTLS(config), identity.ClaimsHeader, claims); got != codes.PermissionDenied && got != codes.Unauthenticated {
		t.Errorf("a forged header over gRPC: %v", got)
	}

	ports := map[string]int{"http": servertest.FreePort(t), "grpc": servertest.FreePort(t)}
	port := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	bootstrap := "static_resources:\n  listeners:\n" +
		strings.NewReplacer("LISTEN", fmt.Sprint(ports["http"]), "SHOAL", "http", "ISSUER", issuer.url).Replace(envoyListener) +
		strings.NewReplacer("LISTEN", fmt.Sprint(ports["grpc"]), "SHOAL", "grpc", "ISSUER", issuer.url).Replace(envoyListener) +
		strings.NewReplacer("HTTP", port(address), "GRPC", port(s.GRPC), "ISSUER", fmt.Sprint(issuer.port), "CERT", proxyCert, "KEY", proxyKey, "ROOTS", ca.Path).Replace(envoyClusters)
	cmd := exec.Command(envoy, "-c", writeFile(t, "envoy.yaml", bootstrap), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { servertest.Kill(cmd) })
	web, rpc := fmt.Sprintf("http://127.0.0.1:%d", ports["http"]), fmt.Sprintf("127.0.0.1:%d", ports["grpc"])
	token := issuer.token()
	for through, connect := range map[string]func(string, client.Options) (*client.Client, error){web: client.NewHTTP, rpc: client.NewGRPC} {
		servertest.Eventually(t, "a request through Envoy to "+through+" is answered", func() bool {
			c, err := connect(through, client.Options{Token: token})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			_, err = c.Metadata(t.Context(), "seed_none", "")
			return err == nil
		})
	}
	plain := &http.Client{Timeout: 10 * time.Second}
	for name, value := range map[string]string{"Authorization": "Bearer x", identity.ClaimsHeader: claims} {
		if got := statusFor(t, plain, web, name, value); got != http.StatusUnauthorized {
			t.Errorf("through Envoy with %s %s: %d", name, value, got)
		}
		if got := codeFor(t, rpc, insecure.NewCredentials(), name, value); got != codes.Unauthenticated {
			t.Errorf("through Envoy over gRPC with %s %s: %v", name, value, got)
		}
	}
}

// codeFor asks for a model over gRPC with one header, and returns the code of the answer.
func codeFor(t *testing.T, address string, c credentials.TransportCredentials, name, value string) codes.Code {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), name, value), 10*time.Second)
	defer cancel()
	_, err = kservepb.NewGRPCInferenceServiceClient(conn).ModelMetadata(ctx, &kservepb.ModelMetadataRequest{Name: "seed_none"})
	return status.Code(err)
}

// envoyListener verifies tokens of the issuer, and calls one port of the server.
const envoyListener = `
    - name: SHOAL
      address: {socket_address: {address: 127.0.0.1, port_value: LISTEN}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: SHOAL
                route_config:
                  virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: SHOAL}}]}]
                http_filters:
                  - name: envoy.filters.http.jwt_authn
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
                      providers:
                        main:
                          issuer: ISSUER
                          audiences: [shoal]
                          remote_jwks: {http_uri: {uri: "ISSUER/jwks", cluster: issuer, timeout: 5s}}
                          forward_payload_header: Shoal-Claims
                      rules: [{match: {prefix: /}, requires: {provider_name: main}}]
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

const envoyClusters = `
  clusters:
    - name: issuer
      type: STATIC
      connect_timeout: 5s
      load_assignment:
        cluster_name: issuer
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: ISSUER}}}}]}]
    - name: http
      type: STATIC
      connect_timeout: 5s
      load_assignment:
        cluster_name: http
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: HTTP}}}}]}]
      transport_socket: &mutual
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            tls_certificates: [{certificate_chain: {filename: CERT}, private_key: {filename: KEY}}]
            validation_context: {trusted_ca: {filename: ROOTS}}
    - name: grpc
      type: STATIC
      connect_timeout: 5s
      load_assignment:
        cluster_name: grpc
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: GRPC}}}}]}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      transport_socket: *mutual
`
