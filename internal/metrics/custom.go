package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-serving/shoal/internal/stats"
)

// customMetrics collects the metrics that models define. Their names and labels were
// validated when they were created, and do not collide with others.
type customMetrics func() []stats.Family

// Describe implements [prometheus.Collector]. It is empty, because the metrics are not
// known in advance.
func (customMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (o customMetrics) Collect(out chan<- prometheus.Metric) {
	for _, f := range o() {
		for i := range f.Metrics {
			m := &f.Metrics[i]
			names := slices.Sorted(maps.Keys(m.Labels))
			values := make([]string, len(names))
			for k, name := range names {
				values[k] = m.Labels[name]
			}
			d := desc(f.Name, f.Help, names...)
			switch f.Kind {
			case stats.Counter:
				out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, m.Value, values...)
			case stats.Gauge:
				out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, m.Value, values...)
			case stats.Histogram:
				buckets := make(map[float64]uint64, len(m.Bounds))
				for k, bound := range m.Bounds {
					buckets[bound] = m.Counts[k]
				}
				out <- prometheus.MustNewConstHistogram(d, m.Counts[len(m.Bounds)], m.Value, buckets, values...)
			}
		}
	}
}
