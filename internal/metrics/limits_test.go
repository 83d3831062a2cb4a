package metrics

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/http2meter"
)

func TestTheUseOfLimitsIsExported(t *testing.T) {
	all := budget.New(1000)
	charge := all.Open("m")
	if !charge.Grow(300) || charge.Grow(300) {
		t.Fatal("one key does not get half of the budget")
	}
	rec := httptest.NewRecorder()
	New(&fake{}, Options{
		Budget: all, GRPC: &http2meter.Meter{}, Connections: func() (int64, uint64) { return 7, 8 }, Log: slog.New(slog.DiscardHandler),
	}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		"shoal_memory_budget_bytes 1000", "shoal_memory_budget_used_bytes 300", "shoal_memory_budget_rejections_total 1",
		`shoal_grpc_streams_reset_total{reason="memory_budget"} 0`, `shoal_grpc_streams_reset_total{reason="stalled"} 0`, `shoal_grpc_streams_reset_total{reason="stopping"} 0`,
		"shoal_connections 7", "shoal_connections_refused_total 8",
	} {
		if !strings.Contains(rec.Body.String(), line+"\n") {
			t.Errorf("%q is not on the page", line)
		}
	}
}
