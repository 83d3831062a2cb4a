package metrics

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/stats"
)

func TestMetricsThatContradictEachOtherDoNotHideTheRest(t *testing.T) {
	page := New(busy(), Options{Log: slog.New(slog.DiscardHandler), ModelMetrics: func() []stats.Family {
		one := []stats.Metric{{Bounds: []float64{1}, Counts: []uint64{1, 0}}}
		return []stats.Family{{Name: "h", Kind: stats.Histogram, Metrics: one}, {Name: "h_count", Kind: stats.Gauge, Metrics: one}}
	}})
	resp := httptest.NewRecorder()
	page.ServeHTTP(resp, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if resp.Code != http.StatusOK || !strings.Contains(resp.Body.String(), "nv_inference_count") {
		t.Errorf("%d %.300s", resp.Code, resp.Body)
	}
}

func TestMetricsOfModelsAreOnThePage(t *testing.T) {
	page := New(&fake{}, Options{Log: slog.New(slog.DiscardHandler), ModelMetrics: func() []stats.Family {
		return []stats.Family{
			{Name: "seen_total", Help: "Requests", Metrics: []stats.Metric{{Labels: map[string]string{"b": "2", "a": "1"}, Value: 3}, {Labels: map[string]string{"a": "2"}, Value: 4}}},
			{Name: "sizes", Help: "Sizes", Kind: stats.Histogram, Metrics: []stats.Metric{{Value: 12.5, Bounds: []float64{1, 2.5}, Counts: []uint64{2, 3, 4}}}},
		}
	}})
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		"# TYPE seen_total counter\n", `seen_total{a="1",b="2"} 3`, `seen_total{a="2"} 4`,
		`sizes_bucket{le="2.5"} 3`, `sizes_bucket{le="+Inf"} 4`, "sizes_sum 12.5\n", "sizes_count 4\n",
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the page has no %s", want)
		}
	}
}
