package kservehttp_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/node"
)

func TestThePageOfANodeIsSentOnceForItsTag(t *testing.T) {
	var draining atomic.Bool
	var changed atomic.Pointer[chan struct{}]
	changed.Store(new(make(chan struct{})))
	_, server := newServer(t, kservehttp.Options{Node: node.NewReporter(node.Options{
		Read:    func() node.Page { return node.Page{Build: "1", Draining: draining.Load(), Models: []node.Model{}} },
		Changed: func() <-chan struct{} { return *changed.Load() },
	})})
	get := func(tag, query string) answer {
		t.Helper()
		header := http.Header{}
		if tag != "" {
			header.Set("If-None-Match", tag)
		}
		return do(t, server, http.MethodGet, "/v2/node"+query, header, nil)
	}
	first := get("", "?wait=1m")
	tag := first.header.Get("ETag")
	if first.status != http.StatusOK || tag == "" || !strings.Contains(first.body, `"build":"1"`) {
		t.Fatalf("tag %q, %s", tag, describe(first))
	}
	for _, query := range []string{"", "?wait=1ms"} {
		if again := get(tag, query); again.status != http.StatusNotModified || again.body != "" || again.header.Get("ETag") != tag {
			t.Errorf("%s: tag %q, %s", query, again.header.Get("ETag"), describe(again))
		}
	}
	draining.Store(true)
	changed.Store(new(make(chan struct{})))
	if now := get(tag, "?wait=1m"); now.status != http.StatusOK || now.header.Get("ETag") == tag || !strings.Contains(now.body, `"draining":true`) {
		t.Errorf("after a change: %s", describe(now))
	}
	for _, query := range []string{"?wait=x", "?wait=-1s", "?wait=61s"} {
		if bad := get(tag, query); bad.status != http.StatusBadRequest || !strings.Contains(bad.body, "expected a time up to 1m0s") {
			t.Errorf("%s: %s", query, describe(bad))
		}
	}
}

func TestFiguresOfVersionsAreSentForAModel(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{Node: node.NewReporter(node.Options{
		Figures: func(model string) []node.Figures {
			return []node.Figures{{Version: model, Requests: 3, Failures: 1, Times: []node.Bucket{{Most: 5, Count: 2}}}}
		},
	})})
	got := do(t, server, http.MethodGet, "/v2/node?model=m%2F1", nil, nil)
	if want := `{"versions":[{"version":"m/1","requests":3,"failures":1,"times":[{"most_ns":5,"count":2}]}]}`; got.status != http.StatusOK || got.body != want {
		t.Errorf("%s", describe(got))
	}
}
