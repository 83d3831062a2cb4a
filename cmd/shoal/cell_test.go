package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/access"
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
