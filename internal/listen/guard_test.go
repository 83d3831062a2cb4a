package listen

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// ask returns the status for a request through a guard of a port at 127.0.0.1, with models.example
// as an additional host.
func ask(t *testing.T, method, host string, header map[string]string) int {
	t.Helper()
	reached := false
	g := newGuard("127.0.0.1:8000", []string{"Models.Example"}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	r := httptest.NewRequest(method, "/v2/logging", strings.NewReader("{}"))
	r.Host = host
	for name, value := range header {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	if reached != (w.Code == http.StatusOK) {
		t.Errorf("%s for host %q: status %d, but the handler was reached: %v", method, host, w.Code, reached)
	}
	if w.Code != http.StatusOK && !strings.HasPrefix(w.Body.String(), `{"error":"`) {
		t.Errorf("status %d has body %q, want an error", w.Code, w.Body)
	}
	return w.Code
}

func TestRequestsOfOtherSitesAreRejected(t *testing.T) {
	const here = "127.0.0.1:8000"
	for _, c := range []struct {
		name   string
		method string
		header map[string]string
		want   int
	}{
		{"no browser", http.MethodPost, nil, http.StatusOK},
		{"cross-site", http.MethodPost, map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://attacker.example"}, http.StatusForbidden},
		{"same-site", http.MethodPost, map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		{"an older browser", http.MethodPost, map[string]string{"Origin": "http://attacker.example"}, http.StatusForbidden},
		{"another port is another origin", http.MethodPost, map[string]string{"Origin": "http://127.0.0.1:9000"}, http.StatusForbidden},
		{"a sandboxed page", http.MethodPost, map[string]string{"Origin": "null"}, http.StatusForbidden},
		{"an update", http.MethodPut, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{"a deletion", http.MethodDelete, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{"its own page", http.MethodPost, map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://" + here}, http.StatusOK},
		{"typed by the user", http.MethodPost, map[string]string{"Sec-Fetch-Site": "none"}, http.StatusOK},
		{"a read, whose answer the page cannot see", http.MethodGet, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusOK},
	} {
		if got := ask(t, c.method, here, c.header); got != c.want {
			t.Errorf("%s: got status %d, want %d", c.name, got, c.want)
		}
	}
}

func TestUnknownHostsAreRejected(t *testing.T) {
	for host, want := range map[string]int{
		"127.0.0.1:8000": http.StatusOK, "127.0.0.1": http.StatusOK, "[::1]:8000": http.StatusOK, "[::1]": http.StatusOK, "192.0.2.7:30000": http.StatusOK,
		"localhost:8000": http.StatusOK, "LocalHost": http.StatusOK, "localhost.:8000": http.StatusOK, "": http.StatusOK,
		"models.example:80": http.StatusOK, "MODELS.example": http.StatusOK,
		"attacker.example": http.StatusMisdirectedRequest, "attacker.example:8000": http.StatusMisdirectedRequest,
		"localhost.attacker.example": http.StatusMisdirectedRequest, "127.0.0.1.attacker.example": http.StatusMisdirectedRequest,
		"sub.models.example": http.StatusMisdirectedRequest, "x": http.StatusMisdirectedRequest,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if got := ask(t, method, host, nil); got != want {
				t.Errorf("%s for host %q: got status %d, want %d", method, host, got, want)
			}
		}
	}
}

func TestAnyHostCanBeAllowed(t *testing.T) {
	g := newGuard("127.0.0.1:8000", []string{"*"}, nil)
	if !g.accepts("attacker.example") {
		t.Error("--allowed-hosts=* does not accept every host")
	}
}

func TestTheNameOfTheAddressIsAccepted(t *testing.T) {
	g := newGuard("node-7:8000", nil, nil)
	if !g.accepts("node-7:8000") || g.accepts("node-8:8000") {
		t.Error("a port at node-7 accepts other names than node-7")
	}
}

func TestAGuardCostsNoAllocation(t *testing.T) {
	g := newGuard("127.0.0.1:8000", nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest(http.MethodPost, "/v2/models/m/infer", nil)
	r.Host = "127.0.0.1:8000"
	w := httptest.NewRecorder()
	if n := testing.AllocsPerRun(100, func() { g.ServeHTTP(w, r) }); n != 0 {
		t.Errorf("a request costs %v allocations, want none", n)
	}
}

func BenchmarkGuard(b *testing.B) {
	g := newGuard("127.0.0.1:8000", nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest(http.MethodPost, "/v2/models/m/infer", nil)
	r.Host = "127.0.0.1:8000"
	w := httptest.NewRecorder()
	for b.Loop() {
		g.ServeHTTP(w, r)
	}
}
