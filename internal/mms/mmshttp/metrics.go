package mmshttp

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/stats"
)

// What TorchServe tells of a version, and what it does not: how many wait, and how
// many workers there are.
var series = []struct {
	name, kind, help string
	value            func(v *mms.Version, s *stats.Snapshot) float64
}{
	{
		"ts_inference_requests_total", "counter", "Total number of inference requests.",
		func(_ *mms.Version, s *stats.Snapshot) float64 { return float64(s.Success.Count + s.Fail.Count) },
	},
	{
		"ts_inference_latency_microseconds", "counter", "Cumulative inference duration in microseconds",
		func(_ *mms.Version, s *stats.Snapshot) float64 { return float64(s.Success.Nanos) / 1000 },
	},
	{
		"ts_queue_latency_microseconds", "counter", "Cumulative queue duration in microseconds",
		func(_ *mms.Version, s *stats.Snapshot) float64 { return float64(s.Queue.Nanos) / 1000 },
	},
	{
		"shoal_batches_total", "counter", "Batches that ran",
		func(_ *mms.Version, s *stats.Snapshot) float64 { return float64(s.Runs) },
	},
	{
		"shoal_failed_requests_total", "counter", "Requests that were answered with an error of the server or of the handler's worker",
		func(_ *mms.Version, s *stats.Snapshot) float64 { return float64(s.Fail.Count) },
	},
	{
		"shoal_pending_requests", "gauge", "Requests in the queue",
		func(v *mms.Version, _ *stats.Snapshot) float64 { return float64(v.Waiting()) },
	},
	{
		"shoal_workers", "gauge", "Workers that live",
		func(v *mms.Version, _ *stats.Snapshot) float64 { return float64(v.Living()) },
	},
}

// Metrics returns what answers Prometheus.
func Metrics(server *mms.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		all := server.All()
		snapshots := make([]stats.Snapshot, len(all))
		for i, v := range all {
			snapshots[i] = v.Snapshot()
		}
		var b strings.Builder
		for _, m := range series {
			fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", m.name, m.help, m.kind)
			for i, v := range all {
				fmt.Fprintf(&b, "%s{model_name=%q,model_version=%q} %g\n", m.name, v.Name, v.Version, m.value(v, &snapshots[i]))
			}
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte(b.String())) // the client may have left
	})
	return mux
}
