// Package metrics exports the server's metrics to Prometheus: Triton's metrics under their
// names, and additional ones under Shoal's. docs/metrics.md lists them.
//
// It counts nothing itself: the figures are read from their source at each scrape, so that
// the request path does not depend on Prometheus. No label value comes from a client:
// models are those that are loaded, and all other labels have a fixed set of values.
package metrics

import (
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A Source provides the figures.
type Source interface {
	// Figures returns the figures of every loaded version.
	Figures() []server.Figures
	// UnknownModel returns the number of requests for models that do not serve, by code.
	UnknownModel() [infer.NumCodes]uint64
}

// Options configure [New].
type Options struct {
	Version      string                // of the program
	ModelMetrics func() []stats.Family // custom metrics of models; nil means none
	HostFiles    fs.FS                 // files of the machine; nil omits CPU and memory metrics
	Log          *slog.Logger
}

// gcCPU selects the CPU time of garbage collection, which the Go collector does not export
// by default.
var gcCPU = regexp.MustCompile(`^/cpu/classes/gc/total:cpu-seconds$`)

// New returns the handler of GET /metrics.
func New(src Source, opts Options) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collector{src: src, build: prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, opts.Version, runtime.Version())},
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: gcCPU})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	if opts.HostFiles != nil {
		registry.MustRegister(newHost(opts.HostFiles))
	}
	if opts.ModelMetrics != nil {
		registry.MustRegister(customMetrics(opts.ModelMetrics))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelWarn),
	}))
	return mux
}

// codeLabel returns the label value of a code.
func codeLabel(code infer.Code) string { return strings.ReplaceAll(code.String(), " ", "_") }
