package kservegrpc

import (
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
)

// newCertified returns credentials with a certificate.
func newCertified(t *testing.T) credentials.TransportCredentials {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(identitytest.NewCA(t).Issue(t, "server"))
	if err != nil {
		t.Fatal(err)
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})
}

// TestAHandshakeThatDoesNotEndIsEndedWhenTheServerStops has one client that connected before the stop,
// and one that connects during it.
func TestAHandshakeThatDoesNotEndIsEndedWhenTheServerStops(t *testing.T) {
	certified := newCertified(t)
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Second
		meter := &http2meter.Meter{}
		m := newMetered(certified, meter)
		began := time.Now()
		ends := func(want time.Duration) {
			server, client := net.Pipe()
			_ = server.SetDeadline(began.Add(time.Minute)) // as grpc does
			go func() {
				defer func() { _ = client.Close() }()
				if _, _, err := m.ServerHandshake(server); err == nil || time.Since(began) != want {
					t.Errorf("the handshake ended after %v, %v, want an error after %v", time.Since(began), err, want)
				}
			}()
		}
		ends(grace)
		synctest.Wait()
		meter.Refuse(grace, true)
		time.Sleep(grace / 2)
		ends(grace/2 + grace)
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}

// TestAHandshakeThatEndedIsLeftAlone has a client that shakes hands while the server stops. Its
// connection has the grace from then on.
func TestAHandshakeThatEndedIsLeftAlone(t *testing.T) {
	certified := newCertified(t)
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Second
		meter := &http2meter.Meter{}
		meter.Refuse(grace, true)
		m := newMetered(certified, meter)
		raw, far := net.Pipe()
		began := time.Now()
		go func() {
			time.Sleep(grace / 2)
			client := tls.Client(far, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			_, _ = client.Read(make([]byte, 1)) // until the connection is closed
		}()
		server, _, err := m.ServerHandshake(raw)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 1)); err == nil || time.Since(began) != grace/2+grace {
			t.Errorf("the connection ended after %v, %v, want %v", time.Since(began), err, grace/2+grace)
		}
		_ = far.Close()
		_ = server.Close()
	})
}
