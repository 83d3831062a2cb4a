package bench

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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
	c, err := NewHTTP(strings.TrimPrefix(s.URL, "http://"), "two", "")
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
	if err := c.Prepare(inputs); err != nil {
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
	if err := c.Infer(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOverHTTPAnErrorIsItsSentence(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":"the queue is full"}`: "the queue is full (503 Service Unavailable)",
		`<html>`:                        "answered with 503 Service Unavailable",
	} {
		c := serveModel(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, http.StatusServiceUnavailable) })
		if err := c.Infer(t.Context()); err == nil || err.Error() != want {
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
	b := Bench{Caller: c, Pacer: p, Rows: 3, Interval: 3 * stall, MaxTrials: 1}
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
}
