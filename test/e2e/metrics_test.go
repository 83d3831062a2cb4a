//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

func TestMetricsTellWhatWasAsked(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "")}))
	for range 3 {
		if err := oneRow(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	page := s.MetricsPage()
	for _, want := range []string{
		`nv_inference_request_success{model="m",version="1"} 3`,
		`nv_inference_exec_count{model="m",version="1"} 3`,
		`shoal_batch_close_total{model="m",reason="alone",version="1"} 3`,
		`shoal_build_info{`,
		`process_cpu_seconds_total`,
		`nv_cpu_utilization`,
	} {
		if !strings.Contains(page, "\n"+want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", page)
	}
}
