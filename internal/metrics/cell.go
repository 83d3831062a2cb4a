package metrics

import (
	"context"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shoal-serving/shoal/internal/cell"
)

// cellMetrics are the metrics of a cell with a single value.
var cellMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*cell.Figures) float64
}{
	{desc("shoal_cell_models", "Models that the cell's file asks for"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return float64(f.Models) }},
	{desc("shoal_cell_copies", "Copies of models that the plan has"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return float64(f.Copies) }},
	{desc("shoal_cell_copies_missing", "Copies of the plan that are not ready"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return float64(f.Missing) }},
	{desc("shoal_cell_copies_unplaced", "Copies that models in use need, and that have no place in the plan: no node has the memory, or there are too few nodes"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return float64(f.Unplaced) }},
	{desc("shoal_cell_plan_age_seconds", "Time since the plan was last made, which happens every ten seconds at least, or since the start if none was; 0 for followers"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return f.PlanAge.Seconds() }},
	{desc("shoal_cell_plan_version", "Version of the plan, which rises when a copy moves"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return float64(f.Version) }},
	{desc("shoal_cell_epoch", "Epoch of the cell's orders; nodes refuse lower ones than they have seen"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return float64(f.Epoch) }},
	{desc("shoal_cell_ready", "1 if the cell has given routes to Envoys since its start, otherwise 0"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return flag(f.Routed) }},
	{desc("shoal_cell_frozen", "1 while the plan does not change, because many nodes vanished at once, otherwise 0"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return flag(f.Frozen) }},
	{desc("shoal_cell_follower", "1 if the cell follows another one, otherwise 0"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return flag(f.Follower) }},
	{desc("shoal_cell_superseded", "1 if another cell has taken over, and this one sends no orders any more, otherwise 0"), prometheus.GaugeValue, func(f *cell.Figures) float64 { return flag(f.Superseded) }},
	{desc("shoal_cell_order_failures_total", "Orders that a node did not carry out, or that were not sent because their epoch was not on disk"), prometheus.CounterValue, func(f *cell.Figures) float64 { return float64(f.Failures) }},
	{desc("shoal_cell_state_failures_total", "Times that the state could not be written, which is repeated every second"), prometheus.CounterValue, func(f *cell.Figures) float64 { return float64(f.StateFailures) }},
}

var (
	cellNodes    = desc("shoal_cell_nodes", "Nodes of the cell's file, by state: ready, not_ready, draining, gone, or unknown before the first answer", "state")
	cellOrders   = desc("shoal_cell_orders_total", "Loads and unloads that the cell has ordered", "order")
	cellStreams  = desc("shoal_cell_xds_streams", "Open xDS streams; an Envoy has two")
	cellRejected = desc("shoal_cell_xds_rejected_total", "Configurations that an Envoy refused")
)

// nodeStates are the states of nodes by the value of their label.
var nodeStates = map[string]string{"ready": "ready", "not_ready": "not ready", "draining": "draining", "gone": "gone", "unknown": "unknown"}

// CellOptions configure [NewCell].
type CellOptions struct {
	Version string // of the program
	Figures func(ctx context.Context) (cell.Figures, error)
	XDS     func() (streams int, rejected uint64)
}

// NewCell returns the handler of GET /metrics of a cell.
func NewCell(opts CellOptions) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := opts.Figures(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(cellCollector{&f, &opts}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
}

// cellCollector collects the figures of one scrape.
type cellCollector struct {
	figures *cell.Figures
	opts    *CellOptions
}

// Describe implements [prometheus.Collector].
func (c cellCollector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements [prometheus.Collector].
func (c cellCollector) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, c.opts.Version, runtime.Version())
	for _, m := range cellMetrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(c.figures))
	}
	for label, state := range nodeStates {
		out <- prometheus.MustNewConstMetric(cellNodes, prometheus.GaugeValue, float64(c.figures.Nodes[state]), label)
	}
	for _, order := range []string{"load", "unload"} {
		out <- counter(cellOrders, c.figures.Orders[order], order)
	}
	streams, rejected := c.opts.XDS()
	out <- prometheus.MustNewConstMetric(cellStreams, prometheus.GaugeValue, float64(streams))
	out <- counter(cellRejected, rejected)
}
