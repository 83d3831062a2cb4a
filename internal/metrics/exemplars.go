package metrics

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	io_prometheus_client "github.com/prometheus/client_model/go"
)

// withExemplars returns a handler that answers in the OpenMetrics format if the client asks for
// it: only that format has exemplars. Other clients get plain.
func withExemplars(plain http.Handler, from prometheus.Gatherer, page promhttp.HandlerOpts) http.Handler {
	page.EnableOpenMetrics = true
	open := promhttp.HandlerFor(prometheus.GathererFunc(func() ([]*io_prometheus_client.MetricFamily, error) {
		all, err := from.Gather()
		for _, f := range all {
			keepName(f)
		}
		return all, err
	}), page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "application/openmetrics-text") {
			open.ServeHTTP(w, r)
			return
		}
		plain.ServeHTTP(w, r)
	})
}

// keepName makes a counter whose name does not end in _total untyped. OpenMetrics would rename
// it, and Triton's dashboards would not find it any more.
func keepName(f *io_prometheus_client.MetricFamily) {
	if f.GetType() != io_prometheus_client.MetricType_COUNTER || strings.HasSuffix(f.GetName(), "_total") {
		return
	}
	f.Type = io_prometheus_client.MetricType_UNTYPED.Enum()
	for _, m := range f.GetMetric() {
		m.Untyped, m.Counter = &io_prometheus_client.Untyped{Value: new(m.GetCounter().GetValue())}, nil
	}
}
