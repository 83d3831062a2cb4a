package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
)

// An encrypted server requires keys or certificates, and has TLS on all ports.
type encrypted struct {
	ca   *identitytest.CA
	at   map[string]string
	keys keyring
}

const certificateGrants = `version: 1
grants:
  - {to: ["certificate:scheduler"], role: infer}
`

func newEncrypted(t *testing.T, args ...string) *encrypted {
	t.Helper()
	s := &encrypted{ca: identitytest.NewCA(t)}
	cert, key := s.ca.Issue(t, "server")
	file, keys := newKeyring(t)
	s.keys = keys
	grants := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(grants, []byte(certificateGrants), 0o600); err != nil {
		t.Fatal(err)
	}
	s.at = running(t, 3, slog.DiscardHandler, append(args, "--tls-cert="+cert, "--tls-key="+key, "--tls-client-ca="+s.ca.Path, "--api-keys="+file, "--access="+grants)...)
	c := s.client(t, "http", "admin", "")
	for {
		ready, err := c.Ready(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ready {
			return s
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// client returns a client with a key of the keyring, and a certificate with the given name,
// unless they are "".
func (s *encrypted) client(t *testing.T, protocol, caller, certificate string) *client.Client {
	t.Helper()
	files := identity.ClientTLS{CA: s.ca.Path}
	if certificate != "" {
		files.Cert, files.Key = s.ca.Issue(t, certificate)
	}
	config, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	connect := map[string]func(string, client.Options) (*client.Client, error){"http": client.NewHTTP, "grpc": client.NewGRPC}[protocol]
	c, err := connect(s.at[protocol], client.Options{TLS: config, Token: strings.TrimPrefix(s.keys[caller], "Bearer ")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func seedRequest() *client.Request {
	return &client.Request{Model: "seed_none", Inputs: []client.Tensor{client.NewTensor("input.1", make([]float32, 3200), 1, 1, 32, 100)}}
}

func TestAKeyOrACertificateIsAcceptedOverTLS(t *testing.T) {
	s := newEncrypted(t)
	for _, protocol := range []string{"http", "grpc"} {
		for _, test := range []struct {
			caller, certificate string
			allowed             bool
		}{
			{"infer", "", true},
			{"", "scheduler", true},
			{"", "somebody", false}, // it has no grants
			{"", "", false},
			{"wrong", "scheduler", false}, // a credential that is sent counts, and no other
		} {
			_, err := s.client(t, protocol, test.caller, test.certificate).Infer(t.Context(), seedRequest())
			if (err == nil) != test.allowed || err != nil && !errors.Is(err, client.Denied) {
				t.Errorf("%s with key %q and certificate %q: %v, allowed %v", protocol, test.caller, test.certificate, err, test.allowed)
			}
		}
	}
	// A certificate of another authority is not accepted, whatever its name.
	other := identitytest.NewCA(t)
	cert, key := other.Issue(t, "scheduler")
	config, err := identity.ClientTLS{CA: s.ca.Path, Cert: cert, Key: key}.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &config.Certificates[0], nil }
	for protocol, connect := range map[string]func(string, client.Options) (*client.Client, error){"http": client.NewHTTP, "grpc": client.NewGRPC} {
		c, err := connect(s.at[protocol], client.Options{TLS: config})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Live(t.Context()); err == nil {
			t.Errorf("%s: a certificate of another authority is accepted", protocol)
		}
		_ = c.Close()
	}
}

func TestCommandsSendCredentials(t *testing.T) {
	s := newEncrypted(t)
	token := strings.TrimPrefix(s.keys["infer"], "Bearer ")
	cert, key := s.ca.Issue(t, "scheduler")
	for _, protocol := range []string{"http", "grpc"} {
		server := []string{"-i", protocol, "-u", s.at[protocol], "--ca", s.ca.Path}
		for _, credentials := range [][]string{{"--token", token}, {"--cert", cert, "--cert-key", key}} {
			for _, command := range [][]string{{"infer", "seed_none", "--random"}, {"ls"}, {"bench", "seed_none", "--request-count=20"}} {
				args := append(append(command, server...), credentials...)
				if text, status := shoal(t, args...); status != exitOK {
					t.Errorf("shoal %s: %d %s", strings.Join(args, " "), status, text)
				}
			}
		}
		if text, status := shoal(t, append([]string{"infer", "seed_none", "--random"}, server...)...); status != exitFailed || !strings.Contains(text, "SHOAL_TOKEN") {
			t.Errorf("without a credential: %d %s", status, text)
		}
		t.Setenv("SHOAL_TOKEN", token)
		if text, status := shoal(t, append([]string{"infer", "seed_none", "--random"}, server...)...); status != exitOK {
			t.Errorf("with SHOAL_TOKEN: %d %s", status, text)
		}
		t.Setenv("SHOAL_TOKEN", "")
	}
	if text, status := shoal(t, "infer", "seed_none", "--random", "-u", s.at["http"]); status != exitFailed || !strings.Contains(text, "--tls") {
		t.Errorf("without TLS: %d %s", status, text)
	}
}

// Each client closes its connection after a few requests, so that handshakes happen all the
// time, also while files are replaced.
func TestATokenIsNotSentOnByARedirect(t *testing.T) {
	asked := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("Authorization") }))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	}))
	defer first.Close()
	cell := cellFlags{address: first.URL, credentials: credentialFlags{token: "secret"}}
	if _, err := cell.status(t.Context()); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("status of a cell: %v", err)
	}
	top, err := newTopStream(first.URL, &cell.credentials)
	if err != nil {
		t.Fatal(err)
	}
	if err := top.read(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("top: %v", err)
	}
	select {
	case got := <-asked:
		t.Errorf("the other server was asked with %q", got)
	default:
	}
}

func TestCertificatesAreReplacedUnderLoadWithoutAFailedRequest(t *testing.T) {
	const replacements = 20
	s := newEncrypted(t)
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var answered, connections atomic.Int64
	defer load.Wait()
	defer stop()
	for _, protocol := range []string{"http", "grpc"} {
		for range 2 {
			load.Go(func() {
				for ctx.Err() == nil {
					c := s.client(t, protocol, "infer", "")
					connections.Add(1)
					for range 5 {
						if _, err := c.Infer(t.Context(), seedRequest()); err != nil {
							t.Errorf("%s: %v", protocol, err)
							stop()
							return
						}
						answered.Add(1)
					}
					_ = c.Close()
				}
			})
		}
	}
	seen := map[string]bool{}
	for range replacements {
		before := s.serial(t)
		seen[before] = true
		s.ca.Issue(t, "server")
		for s.serial(t) == before && ctx.Err() == nil { // the test's own timeout ends it
			time.Sleep(20 * time.Millisecond)
		}
	}
	seen[s.serial(t)] = true
	stop()
	load.Wait()
	if len(seen) != replacements+1 && !t.Failed() {
		t.Errorf("the server showed %d certificates, expected %d", len(seen), replacements+1)
	}
	t.Logf("%d certificates, %d connections, %d requests", len(seen), connections.Load(), answered.Load())
}

// serial returns the serial number of the certificate that the HTTP port shows now.
func (s *encrypted) serial(t *testing.T) string {
	t.Helper()
	config, err := identity.ClientTLS{CA: s.ca.Path}.Config()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", s.at["http"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// Certificates of a cell and of its nodes are renewed while it runs.
func TestACellConnectsToNodesWithTheFilesAsTheyAreNow(t *testing.T) {
	first, second := identitytest.NewCA(t), identitytest.NewCA(t)
	var config atomic.Pointer[tls.Config]
	certify := func(ca *identitytest.CA) {
		pair, err := tls.LoadX509KeyPair(ca.Issue(t, "node"))
		if err != nil {
			t.Fatal(err)
		}
		trusted, err := identity.ClientTLS{CA: ca.Path}.Config()
		if err != nil {
			t.Fatal(err)
		}
		config.Store(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: trusted.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert})
	}
	certify(first)
	node := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	node.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	node.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config.Load(), nil }}
	node.StartTLS()
	defer node.Close()

	flags := credentialFlags{ca: first.Path}
	flags.cert, flags.key = first.Issue(t, "cell")
	h, scheme, err := flags.httpClient("")
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		node.CloseClientConnections() // as if it had restarted
		resp, err := h.Get(scheme + "://" + node.Listener.Addr().String())
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	certify(second)
	if err := ask(); err == nil {
		t.Fatal("an authority is trusted that is not in the file")
	}
	cert, key := second.Issue(t, "cell")
	if err := errors.Join(os.Rename(second.Path, first.Path), os.Rename(cert, flags.cert), os.Rename(key, flags.key)); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	if err := os.WriteFile(flags.key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("while the files are being replaced: %v", err)
	}
}
