package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/cell"
)

func TestCallersOfACellNeedTheRight(t *testing.T) {
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answered") })
	handler := authorizeCell(&access.Gate{}, answers, answers)
	reader := &access.Caller{Principals: []*access.Principal{{Name: "r", Grants: []access.Grant{{Role: access.Read}}}}}
	infers := &access.Caller{Principals: []*access.Principal{{Name: "i", Grants: []access.Grant{{Role: access.Infer}}}}}
	for _, c := range []struct {
		request                         string
		anonymous, infer, reader, admin int
	}{
		{"GET /v2/health/live", 200, 200, 200, 200},
		{"GET /v2/health/ready", 200, 200, 200, 200},
		{"GET /metrics", 401, 403, 200, 200},
		{"GET /v1/status", 401, 403, 200, 200},
		{"GET /v1/state", 401, 403, 200, 200},
		{"POST /v1/plan", 401, 403, 200, 200},
		{"POST /v1/rollouts", 401, 403, 403, 200},
		{"DELETE /v1/rollouts/m", 401, 403, 403, 200},
	} {
		for caller, want := range map[*access.Caller]int{nil: c.anonymous, infers: c.infer, reader: c.reader, access.Self: c.admin} {
			method, path, _ := strings.Cut(c.request, " ")
			r := httptest.NewRequest(method, path, nil)
			if caller != nil {
				r = r.WithContext(access.WithCaller(r.Context(), caller))
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != want || (want == 200) != (w.Body.String() == "answered") {
				t.Errorf("%s by %v: %d %s, want %d", c.request, caller, w.Code, w.Body, want)
			}
		}
	}
}

func TestTheAuditLogOfACellHasWhichRolloutsWereRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := access.OpenAudit(path, access.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	started := false
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var rollout cell.Rollout
		switch err := json.NewDecoder(r.Body).Decode(&rollout); {
		case r.Method == http.MethodDelete:
			_, _ = io.WriteString(w, "{}")
		case err != nil || rollout.Model != "m" || rollout.To != "2":
			t.Errorf("the API got %+v, %v", rollout, err)
		case started:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"it is under way"}`)
		case r.Header.Get("Gone") != "": // the API does not answer
		default:
			started = true
			_, _ = io.WriteString(w, "{}")
		}
	})
	handler := authorizeCell(&access.Gate{Audit: audit}, api, api)
	for _, c := range []struct {
		method, path string
		caller       *access.Caller
		gone         string
		status       int
	}{
		{http.MethodPost, "/v1/rollouts", access.Self, "yes", http.StatusOK},
		{http.MethodPost, "/v1/rollouts", access.Self, "", http.StatusOK},
		{http.MethodPost, "/v1/rollouts", access.Self, "", http.StatusBadRequest},
		{http.MethodPost, "/v1/rollouts", nil, "", http.StatusUnauthorized},
		{http.MethodDelete, "/v1/rollouts/m", access.Self, "", http.StatusOK},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(`{"model":"m","to":"2"}`))
		r.Header.Set("Gone", c.gone)
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), c.caller))); w.Code != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, w.Code, w.Body, c.status)
		}
	}
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range auditRecords(t, path) {
		got = append(got, fmt.Sprint(r["what"], " ", r["model"], " ", r["detail"], ": ", r["outcome"], " ", r["error"]))
	}
	want := []string{
		"start rollout m version 2: failed its client has left",
		"start rollout m version 2: ok <nil>",
		"start rollout m version 2: failed it is under way",
		"start rollout <nil> <nil>: denied " + access.ErrUnauthenticated.Error(),
		"stop rollout m <nil>: ok <nil>",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestACellIsNotExposedByMistake(t *testing.T) {
	for _, c := range []struct {
		opts cellOptions
		want string
	}{
		{cellOptions{address: "127.0.0.1:8090", xds: "[::1]:18000"}, ""},
		{cellOptions{address: "0.0.0.0:8090", xds: "127.0.0.1:18000"}, `address: "0.0.0.0" can be reached from other machines`},
		{cellOptions{address: "127.0.0.1:8090", xds: ":18000"}, "xds-address: "},
		{cellOptions{address: ":8090", xds: ":18000", insecure: true}, ""},
		{cellOptions{address: ":8090", xds: ":18000", access: accessOptions{keys: "keys", cert: "c", key: "k"}}, ""},
		{cellOptions{address: ":8090", xds: ":18000", access: accessOptions{keys: "keys"}}, "can be reached"},
	} {
		err := c.opts.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q and %q: error %v, want %q", c.opts.address, c.opts.xds, err, c.want)
		}
	}
}

// The signal is for pipes at stdout and stderr, which those of a test are not: it looks at what is
// done with the signal.
func TestACellOutlivesTheReaderOfItsLog(t *testing.T) {
	signal.Reset(syscall.SIGPIPE) // a test of the server may have had it ignored
	text, status := shoal(t, "cell", filepath.Join(t.TempDir(), "none.yaml"), "--address=127.0.0.1:0", "--xds-address=127.0.0.1:0")
	if status != exitFailed || !strings.Contains(text, "none.yaml: no such file") || strings.Contains(text, "cell is running") {
		t.Fatalf("status %d:\n%s", status, text)
	}
	if !signal.Ignored(syscall.SIGPIPE) {
		t.Error("the cell ends when nothing reads its log any more")
	}
}

func TestACellReadsItsFileBeforeItOpensPorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	dir := directory(t, map[string]string{"typo.yaml": "node: []\n"})
	for file, want := range map[string]string{"none.yaml": "none.yaml: no such file", "typo.yaml": "field node not found"} {
		text, status := shoal(t, "cell", filepath.Join(dir, file), "--address="+taken.Addr().String(), "--xds-address=127.0.0.1:0")
		if status != exitFailed || !strings.Contains(text, want) {
			t.Errorf("status %d: %swant %s", status, text, want)
		}
	}
}

func TestWhatACellAnswersFitsItsLine(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"frozen": "one\ntwo", "nodes": [{"name": "a", "zone": "z", "state": "down", "reason": "no\n\tanswer"}]}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error": "there is no rollout of nope"}`+"\n")
	})
	s := httptest.NewServer(answer)
	defer s.Close()
	at := strings.TrimPrefix(s.URL, "http://")
	if text, status := shoal(t, "rollout", "stop", "nope", "-u", at); status != exitFailed || text != "shoal: the cell at "+at+" answered 404 Not Found: there is no rollout of nope\n" {
		t.Errorf("an error: status %d: %s", status, text)
	}
	text, status := shoal(t, "cell", "status", "-u", at)
	if status != exitOK || !strings.Contains(text, "frozen: one two\n") || !regexp.MustCompile(`(?m)^a +z +down no  answer +0 +0 of 0 MiB$`).MatchString(text) {
		t.Errorf("status %d:\n%s", status, text)
	}
}

func TestACellRefusesFlagsThatCannotWork(t *testing.T) {
	for _, c := range []struct {
		opts cellOptions
		want string
	}{
		{cellOptions{follow: "http://10.0.0.1:8090"}, ""},
		{cellOptions{follow: "https://cell.example.org/"}, ""},
		{cellOptions{follow: "10.0.0.1:8090"}, `--follow: "10.0.0.1:8090" is not valid: expected a URL, such as http://10.0.0.1:8090`},
		{cellOptions{follow: "cell.example.org:8090"}, `--follow: "cell.example.org:8090" is not valid`},
		{cellOptions{follow: "http://"}, `--follow: "http://" is not valid`},
		{cellOptions{requestTimeout: time.Minute}, ""},
		{cellOptions{requestTimeout: -time.Minute}, "--request-timeout: -1m0s is not valid: expected a time that is not negative"},
	} {
		c.opts.address, c.opts.xds = cellAddress, "127.0.0.1:18000"
		err := c.opts.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%q and %v: error %v, want %q", c.opts.follow, c.opts.requestTimeout, err, c.want)
		}
	}
}
