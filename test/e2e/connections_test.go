//go:build e2e

package e2e

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// connect opens a connection to the server, which ends with the test. What is sent on it is
// half of a request, which no client would send.
func connect(t *testing.T, s *servertest.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

const live = "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"

// TestSilentClientsAreNotWaitedFor holds connections open in four ways. The server
// closes each, and answers others meanwhile.
func TestSilentClientsAreNotWaitedFor(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device", "--header-timeout-secs=1", "--body-timeout-secs=1", "--idle-timeout-secs=1")
	var wg sync.WaitGroup
	for name, says := range map[string]string{
		"nothing":         "",
		"half a header":   "GET /v2/health/live HTTP/1.1\r\nHost",
		"no body":         "POST /v2/models/seed_none/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
		"no more request": live,
	} {
		conn := connect(t, s)
		wg.Go(func() {
			if _, err := io.WriteString(conn, says); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil { // until the server closes
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	if got, _ := s.Get("/v2/health/live"); got != http.StatusOK {
		t.Errorf("another client gets %d", got)
	}
	wg.Wait()
}
