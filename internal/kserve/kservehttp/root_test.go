package kservehttp

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

func TestTheRootDescribesTheServer(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Entries = kservetest.RecordedIndex
	h := New(backend, backend, backend, Options{Name: "node-1", Version: "1.2.3"})
	get := func(accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	w := get("*/*")
	var d description
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || w.Code != http.StatusOK || d.Name != "node-1" || d.Version != "1.2.3" || len(d.Models) != len(backend.Entries) {
		t.Errorf("%d, %v: %s", w.Code, err, w.Body)
	}
	for _, m := range d.Models {
		if (m.State == "READY") != (m.URL != "") && m.Name != "recorder" {
			t.Errorf("model %+v", m)
		}
	}
	w = get("text/html,application/xhtml+xml,*/*;q=0.8")
	if body := w.Body.String(); w.Header().Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(body, "<h1>Shoal 1.2.3</h1>") ||
		!strings.Contains(body, `<a href="/v2/models/identity">identity</a>`) || !strings.Contains(body, "cannot start") {
		t.Errorf("%v:\n%s", w.Header(), body)
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST / is answered with %d", w.Code)
	}
}
