//go:build e2e && linux

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/test/servertest"
)

// With the filters of tenants.yaml, Envoy refuses requests without a token of the issuer, and
// counts those of each tenant by the token's claim, whatever a client says that it is.
func TestEnvoyLimitsTenants(t *testing.T) {
	issuer := newOIDCIssuer(t)
	key := newSigningKey(t, "a")
	issuer.start(key)
	c := newCell(t, 2, 1)
	filters, err := os.ReadFile(filepath.Join(servertest.Root, "deploy", "envoy", "tenants.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.adapt = func(template string) string {
		const place = "                  # Tokens and limits of tenants: the filters of tenants.yaml go here.\n"
		indented := ""
		for line := range strings.Lines(strings.ReplaceAll(string(filters), "https://issuer.example.org", issuer.url)) {
			indented += strings.Repeat(" ", 18) + line
		}
		cluster := fmt.Sprintf("  clusters:\n    - {name: issuer, load_assignment: {cluster_name: issuer, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]}}\n", issuer.port)
		return strings.NewReplacer(place, indented, "  clusters:\n", cluster).Replace(template)
	}
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.startEnvoy(xds)
	c.awaitPlaced(api)
	ask := func(token string, headers ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.proxy+"/v2/models/m0/ready", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		status, _, _, err := servertest.Fetch(req)
		if err != nil {
			return 0
		}
		return status
	}
	tenant := func(name string) string { return issuer.sign(key, map[string]any{"tenant": name}) }
	documents, small, other := tenant("documents"), tenant("small"), tenant("other")
	servertest.Eventually(t, "Envoy answers", func() bool { return ask(documents) == http.StatusOK })
	for _, refused := range []struct {
		what, token string
		want        int
	}{
		{"no token", "", http.StatusUnauthorized},
		{"a token of another key", issuer.sign(newSigningKey(t, "b"), map[string]any{"tenant": "documents"}), http.StatusUnauthorized},
		{"a token for another audience", issuer.sign(key, map[string]any{"aud": "billing"}), http.StatusForbidden},
	} {
		if got := ask(refused.token); got != refused.want {
			t.Errorf("%s: status %d, want %d", refused.what, got, refused.want)
		}
	}
	// The tenant may send 200 at once, and 100 a second. It claims to be another one in a header.
	statuses := map[int]int{}
	for range 600 {
		statuses[ask(small, "x-shoal-tenant", "documents")]++
	}
	t.Logf("figures: 600 requests of a tenant with 200 at once and 100 a second: %v", statuses)
	if statuses[http.StatusOK] < 200 || statuses[http.StatusTooManyRequests] < 100 || statuses[http.StatusOK]+statuses[http.StatusTooManyRequests] != 600 {
		t.Errorf("statuses %v", statuses)
	}
	for name, token := range map[string]string{"documents": documents, "other": other} {
		if got := ask(token); got != http.StatusOK {
			t.Errorf("tenant %s, which has sent little: status %d", name, got)
		}
	}
}
