package kservehttp_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// TestABodyThatHasNotArrivedWhenTheServerStopsIsRefused has one request that runs, and others whose
// bodies are not complete.
func TestABodyThatHasNotArrivedWhenTheServerStopsIsRefused(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){"plain": (*httptest.Server).Start, "TLS": (*httptest.Server).StartTLS} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(name, timeout), func(t *testing.T) {
				backend := kservetest.New(t, kservetest.Recorded...)
				running, refused := make(chan struct{}), make(chan struct{})
				backend.Before = func(ctx context.Context, _ *infer.Request) error {
					close(running)
					<-refused
					return ctx.Err()
				}
				all, drain := budget.New(1<<30), &kservehttp.Drain{}
				server := httptest.NewUnstartedServer(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all, BodyTimeout: timeout}))
				server.Config.ReadTimeout, server.Config.IdleTimeout = 2*time.Hour, time.Hour
				server.Listener = kservehttp.Listener(server.Config, server.Listener, drain)
				start(server)
				defer server.Close()
				send := func(request string) *bufio.Reader {
					conn, err := net.Dial("tcp", server.Listener.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					if server.TLS != nil {
						conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
					}
					t.Cleanup(func() { _ = conn.Close() })
					_ = conn.SetDeadline(time.Now().Add(time.Minute))
					if _, err := io.WriteString(conn, "POST /v2/models/failing/infer HTTP/1.1\r\nHost: x\r\n"+request); err != nil {
						t.Fatal(err)
					}
					return bufio.NewReader(conn)
				}
				first := send(fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(inferBody), inferBody))
				<-running
				used := all.State().Used
				var halves []*bufio.Reader
				for _, half := range []string{"Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "Content-Length: 100\r\nContent-Encoding: gzip\r\n\r\n"} {
					halves = append(halves, send(half))
				}
				awaitUsed(t, all, "two bodies", func(now int64) bool { return now > used+64<<10 })
				drain.Begin(10 * time.Millisecond)
				halves = append(halves, send("Content-Length: 100\r\n\r\nlate"))
				for i, half := range halves {
					checkRefused(t, fmt.Sprint("body ", i), half)
				}
				close(refused)
				a, err := http.ReadResponse(first, nil)
				if err != nil {
					t.Fatal(err)
				}
				if a.Body.Close(); a.StatusCode != http.StatusOK {
					t.Errorf("the request that ran: %s, want 200", a.Status)
				}
			})
		}
	}
}

func checkRefused(t *testing.T, what string, from *bufio.Reader) {
	t.Helper()
	a, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusServiceUnavailable || !a.Close || !strings.Contains(string(text), "shutting down") {
		t.Errorf("%s: status %d, closes %t, %s, %v, want 503 that closes the connection", what, a.StatusCode, a.Close, text, err)
	}
	_ = a.Body.Close()
}
