// Package metrics tells Prometheus what the models do: the metrics that Triton has,
// under its names, and those that it lacks, under ours. docs/metrics.md lists them.
//
// Nothing is counted here. When somebody asks, the figures are read from where they
// are, so that requests know nothing of Prometheus. No label's value comes from a
// client: models are those that are loaded, and the rest are closed sets.
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

// A Source has the figures.
type Source interface {
	// Figures returns those of every loaded version.
	Figures() []server.Figures
	// UnknownModel returns the number of requests for models that do not serve, by code.
	UnknownModel() [infer.Codes]uint64
}

// Options configure [New].
type Options struct {
	Version string                // of the program
	Own     func() []stats.Family // that models have; nil means none
	Machine fs.FS                 // the machine's files; nil means that nothing is told of its cores and memory
	Log     *slog.Logger
}

// collecting is what garbage collection takes of the processors, which is not among
// what the library tells by itself.
var collecting = regexp.MustCompile(`^/cpu/classes/gc/total:cpu-seconds$`)

// New returns what answers GET /metrics.
func New(src Source, opts Options) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collector{src: src, build: prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, opts.Version, runtime.Version())},
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: collecting})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	if opts.Machine != nil {
		registry.MustRegister(newHost(opts.Machine))
	}
	if opts.Own != nil {
		registry.MustRegister(own(opts.Own))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelWarn),
	}))
	return mux
}

// codeLabel is how a code is called in a label.
func codeLabel(code infer.Code) string { return strings.ReplaceAll(code.String(), " ", "_") }
