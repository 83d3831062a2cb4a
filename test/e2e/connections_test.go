//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// connect opens a connection to the server, which ends with the test.
func connect(t *testing.T, s *server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.http, "http://"))
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
	s := start(t, root+"/examples/seed-device", "--header-timeout-secs=1", "--body-timeout-secs=1", "--idle-timeout-secs=1")
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
	if got, _ := s.get("/v2/health/live"); got != http.StatusOK {
		t.Errorf("another client gets %d", got)
	}
	wg.Wait()
}

// TestIdleConnectionsAreCheap keeps connections open that have been used once.
func TestIdleConnectionsAreCheap(t *testing.T) {
	connections := choose(10_000, 500)
	for _, p := range []struct {
		protocol string
		most     float64 // KB
		use      func(t *testing.T, s *server)
	}{
		{"HTTP", 50, useHTTP},
		{"gRPC", 50, useGRPC},
	} {
		t.Run(p.protocol, func(t *testing.T) {
			s := start(t, root+"/examples/seed-device")
			before := s.resident()
			for range connections {
				p.use(t, s)
			}
			each := float64(s.resident()-before) / float64(connections)
			t.Logf("each of %d idle connections: %.1f KB, want at most %.0f", connections, each, p.most)
			if each > p.most {
				t.Errorf("each of %d idle connections takes %.1f KB, want at most %.0f", connections, each, p.most)
			}
		})
	}
}

// useHTTP opens a connection, and asks once.
func useHTTP(t *testing.T, s *server) {
	conn := connect(t, s)
	if _, err := io.WriteString(conn, live); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 256), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
}

// useGRPC opens a connection, and asks once.
func useGRPC(t *testing.T, s *server) {
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(1<<10), grpc.WithWriteBufferSize(1<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := kservepb.NewGRPCInferenceServiceClient(conn).ServerLive(t.Context(), &kservepb.ServerLiveRequest{}); err != nil {
		t.Fatal(err)
	}
}

var residentSize = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// resident returns the memory of the process, in KB.
func (s *server) resident() int {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Skip(err)
	}
	n, err := strconv.Atoi(residentSize.FindStringSubmatch(string(text))[1])
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}
