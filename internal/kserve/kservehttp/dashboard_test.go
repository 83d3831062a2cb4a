package kservehttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// A board is a dashboard that says what it is asked for.
type board struct{}

func (board) ServePage(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") }

func (board) ServeFile(w http.ResponseWriter, _ *http.Request, name string) bool {
	if name != "app.js" {
		return false
	}
	_, _ = io.WriteString(w, "the script")
	return true
}

func (board) ServeEvents(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Query().Has("full") {
		return infer.Errorf(infer.Unavailable, "too many")
	}
	_, err := io.WriteString(w, "the events")
	return err
}

// A private catalog allows no caller to observe the server.
type private struct{ kserve.Catalog }

func (private) Authorize(_ context.Context, action access.Action, _ string) error {
	if action == access.Observe {
		return infer.Errorf(infer.Forbidden, "%w", errors.New("not you"))
	}
	return nil
}

func TestTheDashboardIsForBrowsersOfCallersThatMayObserveTheServer(t *testing.T) {
	backend := kservetest.New(t)
	open := kservehttp.New(backend, backend, backend, kservehttp.Options{Dashboard: board{}})
	closed := kservehttp.New(backend, private{backend}, backend, kservehttp.Options{Dashboard: board{}})
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"
	for _, c := range []struct {
		name         string
		handler      http.Handler
		path, accept string
		status       int
		body         string
	}{
		{"a browser", open, "/", browser, 200, "the page"},
		{"a program", open, "/", "*/*", 200, `"name": "shoal"`},
		{"a file", open, "/dashboard/app.js", "*/*", 200, "the script"},
		{"no file", open, "/dashboard/x", "*/*", 404, "Not Found"},
		{"events", open, "/dashboard/events", "text/event-stream", 200, "the events"},
		{"no room for events", open, "/dashboard/events?full", "text/event-stream", 503, "too many"},
		{"a browser that may not observe", closed, "/", browser, 200, "<h1>Shoal"},
		{"a file for it", closed, "/dashboard/app.js", "*/*", 403, "not you"},
		{"events for it", closed, "/dashboard/events", "*/*", 403, "not you"},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
		if c.path == "/" && w.Header().Get("Vary") != "Accept" {
			t.Errorf("%s: a cache may give it to others", c.name)
		}
	}
}

func TestAnExplanationIsTextForClientsThatWantText(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	h := kservehttp.New(backend, backend, backend, kservehttp.Options{})
	get := func(query, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/v2/models/identity/explain"+query, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	longest := func(text string) (n int) {
		for line := range strings.Lines(text) {
			n = max(n, len(line)-1)
		}
		return n
	}
	narrow, wide := get("?width=40", "text/plain"), get("", "text/plain")
	if narrow.Code != 200 || wide.Code != 200 || !strings.HasPrefix(narrow.Body.String(), "identity, version 1, run by ") || longest(narrow.Body.String()) > 40 || longest(wide.Body.String()) <= 40 {
		t.Errorf("%d and %d columns:\n%s", longest(narrow.Body.String()), longest(wide.Body.String()), narrow.Body)
	}
	if w := get("", "*/*"); w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("other clients get %s", w.Header().Get("Content-Type"))
	}
	for _, width := range []string{"x", "39", "10001", "-1"} {
		if w := get("?width="+width, "text/plain"); w.Code != 400 {
			t.Errorf("width %s: %d", width, w.Code)
		}
	}
}
