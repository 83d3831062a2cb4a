package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/pacer"
)

// serveModel serves a model of two numbers over HTTP, with no more of KServe v2
// than it takes: no configuration, and no statistics.
func serveModel(t *testing.T, infer http.HandlerFunc) Caller {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/models/two", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"name":"two","more":true,"inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[]}`)
	})
	mux.HandleFunc("POST /v2/models/two/infer", infer)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	c, err := NewHTTP(strings.TrimPrefix(s.URL, "http://"), "two", "", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // before the server, which waits for its connections
	m, err := c.Model(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := m.Fill(Data{Rows: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Prepare([]Request{{inputs, 0}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOverHTTPTensorsAreBinary(t *testing.T) {
	c := serveModel(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		n, _ := strconv.Atoi(r.Header.Get("Inference-Header-Content-Length"))
		const head = `{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP32","shape":[3,2],"parameters":{"binary_data_size":24}}]}`
		if err != nil || n > len(body) || string(body[:n]) != head || !bytes.Equal(body[n:], make([]byte, 24)) {
			http.Error(w, fmt.Sprintf(`{"error":"%d %q"}`, n, body), http.StatusBadRequest)
		}
	})
	if err := c.Infer(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

func TestOverHTTPAnErrorIsItsSentence(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":"the queue is full"}`: "the queue is full (503 Service Unavailable)",
		`<html>`:                        "answered with 503 Service Unavailable",
	} {
		c := serveModel(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, http.StatusServiceUnavailable) })
		if err := c.Infer(t.Context(), 0); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestAServerThatStallsIsSeenByThoseWhoWouldHaveCome holds a server's lock for a
// while. A loop that waits for answers before it sends would see one slow request;
// here, a third of those that are due in the window come while it stalls.
func TestAServerThatStallsIsSeenByThoseWhoWouldHaveCome(t *testing.T) {
	const stall = 400 * time.Millisecond
	var mu sync.Mutex
	var n int // guarded by mu
	c := serveModel(t, func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == 40 {
			time.Sleep(stall)
		}
	})
	p := pacer.New()
	defer p.Close()
	b := Bench{Targets: []Target{{Caller: c, Rows: []int{3}}}, Pacer: p, Interval: 3 * stall, MaxTrials: 1}
	var got []Level
	if err := b.Run(t.Context(), []Load{{Rate: 200}}, func(l Level) { got = append(got, l) }); err != nil {
		t.Fatal(err)
	}
	if p90 := got[0].Client.latency(90); p90 < stall/2 {
		t.Errorf("p90 is %v, want at least %v: %+v", p90, stall/2, got[0].Client)
	}
	if got[0].Server != nil {
		t.Errorf("the server told nothing, but the report says %+v", got[0].Server)
	}
	if want := "404 page not found (404 Not Found)"; got[0].ServerError != want {
		t.Errorf("the server told nothing because %q, want %s", got[0].ServerError, want)
	}
}

func TestOverHTTPConnectionsAreUsedAgain(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"of known length": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") },
		"in chunks": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "After")
			for range 3 {
				_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
				w.(http.Flusher).Flush()
			}
			w.Header().Set("After", "all")
		},
		"of errors": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":"busy"}`, http.StatusServiceUnavailable)
		},
	}
	for name, answer := range answers {
		from := map[string]int{}
		c := serveModel(t, func(w http.ResponseWriter, r *http.Request) {
			from[r.RemoteAddr]++
			answer(w, r)
		})
		for range 5 {
			_ = c.Infer(t.Context(), 0)
		}
		if len(from) != 1 {
			t.Errorf("five answers %s came over %d connections", name, len(from))
		}
	}
}

func TestOverHTTPAConnectionThatWasClosedIsReplaced(t *testing.T) {
	c := serveModel(t, func(w http.ResponseWriter, _ *http.Request) {
		// It says nothing of it in the header.
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_ = conn.Close()
	})
	for range 3 {
		if err := c.Infer(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}

func TestOverHTTPARequestIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	c := serveModel(t, func(http.ResponseWriter, *http.Request) { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := c.Infer(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(release)
	if err := c.Infer(t.Context(), 0); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

func TestOverHTTPSendingAllocatesLittle(t *testing.T) {
	c := serveModel(t, func(http.ResponseWriter, *http.Request) {})
	w := c.(*httpCaller)
	if err := c.Infer(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	// Against a peer that does not allocate in this process.
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	go func() { // ended by the end of the pipe
		buf := make([]byte, 4096)
		for {
			if _, err := far.Read(buf); err != nil {
				return
			}
			if _, err := io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"); err != nil {
				return
			}
		}
	}()
	own := &wire{Conn: near, in: bufio.NewReaderSize(near, wireBuffer), used: true}
	defer func() { _ = near.Close() }()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := own.exchange(w.requests[0]); err != nil {
			t.Fatal(err)
		}
	}); n > 12 {
		t.Errorf("a request allocates %v times", n)
	}
}
