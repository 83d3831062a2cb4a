package metrics

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/reference"
)

func scrapeCell(f *cell.Figures) string {
	page := httptest.NewRecorder()
	NewCell(CellOptions{
		Version: "1.2.3",
		Figures: func(context.Context) (cell.Figures, error) { return *f, nil },
		XDS:     func() (int, uint64) { return 4, 1 },
	}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return page.Body.String()
}

func TestACellHasItsStateInNumbers(t *testing.T) {
	text := scrapeCell(&cell.Figures{
		Routed: true, Frozen: true, PlanAge: 1500 * time.Millisecond, Epoch: 3, Version: 7,
		Nodes: map[string]int{"ready": 2, "not ready": 1}, Models: 5, Copies: 12, Missing: 2, Unplaced: 3, Orders: map[string]uint64{"load": 14}, Failures: 1, StateFailures: 6,
	})
	for _, want := range []string{
		"shoal_cell_plan_age_seconds 1.5", "shoal_cell_epoch 3", "shoal_cell_plan_version 7", "shoal_cell_frozen 1", "shoal_cell_superseded 0", "shoal_cell_ready 1",
		`shoal_cell_nodes{state="ready"} 2`, `shoal_cell_nodes{state="not_ready"} 1`, `shoal_cell_nodes{state="gone"} 0`,
		"shoal_cell_models 5", "shoal_cell_copies 12", "shoal_cell_copies_missing 2", "shoal_cell_copies_unplaced 3", `shoal_cell_orders_total{order="load"} 14`, `shoal_cell_orders_total{order="unload"} 0`,
		"shoal_cell_order_failures_total 1", "shoal_cell_state_failures_total 6", "shoal_cell_xds_streams 4", "shoal_cell_xds_rejected_total 1", `version="1.2.3"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestTheReferenceOfACellsMetricsIsCurrent(t *testing.T) {
	reference.Section(t, "metrics.md", "cell", describe(scrapeCell(&cell.Figures{}))["shoal"])
}
