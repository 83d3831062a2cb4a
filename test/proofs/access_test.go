//go:build e2e && proofs

package proofs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofAccessCosts compares the CPU time of a request over kept connections, 12.8 KB to a
// model that takes no time, with and without what protects a server: encryption, tokens that were
// verified before, and the shares of tenants.
func TestProofAccessCosts(t *testing.T) {
	ca, issuer := identitytest.NewCA(t), identitytest.NewIssuer(t)
	cert, key := ca.Issue(t, "server")
	file := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(file, []byte(issuer.Access()+"\ntenants: {blue: {requests_per_second: 1000000, concurrency: 1000, bytes: 1073741824}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := identity.ClientTLS{CA: ca.Path}.Config()
	if err != nil {
		t.Fatal(err)
	}
	token := issuer.Sign(t, issuer.Claims(nil))
	repository := servertest.Repository(t, instants)

	encrypted := []string{"--tls-cert=" + cert, "--tls-key=" + key}
	authenticated := []string{"--access=" + file}
	type way struct {
		flags []string
		opts  client.Options
	}
	ways := map[string]way{
		"plain":         {},
		"TLS":           {encrypted, client.Options{TLS: config}},
		"JWT, a tenant": {authenticated, client.Options{Token: token}},
		"all":           {append(encrypted, authenticated...), client.Options{TLS: config, Token: token}},
	}
	servers := map[string]*servertest.Server{}
	for name, w := range ways {
		s := servertest.Listening(t, repository, w.flags...)
		s.AwaitLog("msg=ready")
		servers[name] = s
	}
	samples := servertest.Samples(t, "access")
	d := servertest.StrictOr(4*time.Second, 300*time.Millisecond)
	for _, protocol := range []string{"HTTP", "gRPC"} {
		callers := map[string]bench.Caller{}
		for name, w := range ways {
			address := servers[name].At(protocol)
			if w.opts.TLS != nil {
				address = strings.Replace(address, "http://", "https://", 1)
			}
			callers[name] = askWith(t, protocol, address, "small", rowOf(1, 32, 100), w.opts)
		}
		for _, name := range []string{"TLS", "JWT, a tenant", "all"} {
			gate := fmt.Sprintf("%s: CPU of a request with %s, times plain", protocol, name)
			for round := len(samples.Of(gate)); round < servertest.Rounds(); round++ {
				plain, protected := measure.Pair(round,
					func() pull { return pullAt(t, servers["plain"], callers["plain"], 1, d) },
					func() pull { return pullAt(t, servers[name], callers[name], 1, d) })
				t.Logf("%s: %.1f µs plain, %.1f µs with %s", protocol, plain.cpu, protected.cpu, name)
				servertest.Add(t, samples, gate, protected.cpu/plain.cpu)
			}
			servertest.Judge(t, gate, measure.AtMost(1.5), samples.Of(gate))
		}
	}
}
