//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestMetricsTellWhatWasAsked(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{"m": config(time.Millisecond, "1", "")}))
	for range 3 {
		if status, err := oneRow(t.Context(), s); err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.metrics+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	status, _, body, err := fetch(req)
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	for _, want := range []string{
		`nv_inference_request_success{model="m",version="1"} 3`,
		`nv_inference_exec_count{model="m",version="1"} 3`,
		`shoal_batch_close_total{model="m",reason="alone",version="1"} 3`,
		`shoal_build_info{`,
		`process_cpu_seconds_total`,
		`nv_cpu_utilization`,
	} {
		if !strings.Contains(string(body), "\n"+want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", body)
	}
}
