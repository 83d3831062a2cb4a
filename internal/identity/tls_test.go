package identity

import (
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/shoal-serving/shoal/internal/identity/identitytest"
)

// handshake connects to a server with the given configuration, and returns the certificates
// that each side saw.
func handshake(t *testing.T, server, client *tls.Config) (seenByClient, seenByServer string, err error) {
	t.Helper()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	s, c := tls.Server(a, server), tls.Client(b, client)
	failed := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1}) // in TLS 1.3 the client learns only now whether its certificate is accepted
		}
		failed <- err
		_ = a.Close()
	}()
	if err := c.Handshake(); err != nil {
		_ = b.Close()
		<-failed
		return "", "", err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		<-failed
		return "", "", err
	}
	if err := <-failed; err != nil {
		return "", "", err
	}
	if peers := s.ConnectionState().PeerCertificates; len(peers) > 0 {
		seenByServer = peers[0].Subject.CommonName
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), seenByServer, nil
}

func TestCertificatesAreReplacedWithoutARestart(t *testing.T) {
	ca := identitytest.NewCA(t)
	cert, key := ca.Issue(t, "server")
	tlsServer, err := OpenTLS(TLSOptions{Cert: cert, Key: key, Log: slog.New(slog.DiscardHandler)}, "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	defer tlsServer.Close()
	client, err := ClientTLS{CA: ca.Path, ServerName: "localhost"}.Config()
	if err != nil {
		t.Fatal(err)
	}
	config := tlsServer.Config()
	before, _, err := handshake(t, config, client)
	if err != nil {
		t.Fatal(err)
	}
	ca.Issue(t, "server")
	if err := tlsServer.load([]string{"http/1.1"}); err != nil {
		t.Fatal(err)
	}
	after, _, err := handshake(t, config, client)
	if err != nil || after == before {
		t.Errorf("after the renewal: %v, the same certificate: %v", err, after == before)
	}
	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tlsServer.load([]string{"http/1.1"}); err == nil {
		t.Error("an unreadable key is accepted")
	}
	if still, _, err := handshake(t, config, client); err != nil || still != after {
		t.Errorf("while the files are being replaced: %v", err)
	}
}

func TestClientsMayOrMustHaveACertificate(t *testing.T) {
	ca, other := identitytest.NewCA(t), identitytest.NewCA(t)
	cert, key := ca.Issue(t, "server")
	clientCert, clientKey := ca.Issue(t, "ann")
	strangerCert, strangerKey := other.Issue(t, "stranger")
	for _, test := range []struct {
		required  bool
		cert, key string
		ok        bool
		who       string
	}{
		{false, "", "", true, ""},
		{true, "", "", false, ""},
		{false, clientCert, clientKey, true, "ann"},
		{true, clientCert, clientKey, true, "ann"},
		{false, strangerCert, strangerKey, false, ""},
	} {
		server, err := OpenTLS(TLSOptions{Cert: cert, Key: key, ClientCA: ca.Path, RequireClient: test.required})
		if err != nil {
			t.Fatal(err)
		}
		client, err := ClientTLS{CA: ca.Path, Cert: test.cert, Key: test.key, ServerName: "localhost"}.Config()
		if err != nil {
			t.Fatal(err)
		}
		if test.cert == strangerCert { // a client sends only certificates that the server asks for, unless it is made to
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client.Certificates[0], nil }
		}
		_, who, err := handshake(t, server.Config(), client)
		if (err == nil) != test.ok || who != test.who {
			t.Errorf("required %v, %q: got %q, %v", test.required, test.who, who, err)
		}
		old := client.Clone()
		old.MinVersion, old.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
		if _, _, err := handshake(t, server.Config(), old); err == nil {
			t.Error("TLS 1.1 is accepted")
		}
		server.Close()
	}
}
