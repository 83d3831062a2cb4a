// Package metrics exports the server's metrics to Prometheus: Triton's metrics under their
// names, and additional ones under Shoal's. docs/reference/metrics.md lists them.
//
// It counts nothing itself: the figures are read from their source at each scrape, so that
// the request path does not depend on Prometheus. No label value comes from a client:
// models are those that are loaded, metric_tags are those of their files, and all other
// labels have a fixed set of values.
package metrics

import (
	"context"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/cache"
	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A Source provides the figures.
type Source interface {
	// Figures returns the figures of every loaded version.
	Figures() []server.Figures
	// UnknownModel returns the number of requests for models that do not serve, by code.
	UnknownModel() [infer.NumCodes]uint64
	// Authorize returns an error if the caller of ctx may not do the action. Model "" means the
	// server as a whole.
	Authorize(ctx context.Context, action access.Action, model string) error
}

// Options configure [New].
type Options struct {
	Version      string                                 // of the program
	ModelMetrics func() []stats.Family                  // custom metrics of models; nil means none
	Budget       *budget.Budget                         // of requests; nil means none
	Cache        *cache.Cache                           // of responses; nil means none
	GRPC         *http2meter.Meter                      // of gRPC connections; nil means none
	Connections  func() (open int64, refused uint64)    // TCP connections; nil means that they are not counted
	Access       *access.Gate                           // nil if callers are not authenticated
	Demand       func() (repository.DemandCounts, bool) // of mode demand; nil means none
	Exemplars    bool                                   // requests may be traced: OpenMetrics is offered, which has their traces
	HostFiles    fs.FS                                  // files of the machine; nil omits CPU and memory metrics
	Log          *slog.Logger
}

// goCPU selects the time of garbage collection and of everything else, which the Go collector does not
// export by default. Go measures both by the clock, also while others have the core, so that one can
// only be compared with the other.
var goCPU = regexp.MustCompile(`^/cpu/classes/(gc/total|user):cpu-seconds$`)

// New returns the handler of GET /metrics, for callers that may observe the server.
func New(src Source, opts Options) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collector{src: src, build: prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, opts.Version, runtime.Version())},
		modelCollector{src},
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: goCPU})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	registry.MustRegister(limits(opts))
	if opts.HostFiles != nil {
		registry.MustRegister(newHost(opts.HostFiles))
	}
	if opts.ModelMetrics != nil {
		registry.MustRegister(customMetrics(opts.ModelMetrics))
	}
	// Metrics that a model defines may contradict each other, and all others are given nevertheless.
	page := promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
	}
	handler := promhttp.HandlerFor(registry, page)
	if opts.Exemplars {
		handler = withExemplars(handler, registry, page)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", observers(src, handler))
	return mux
}

// maxScrapes is how many pages may be under way. One has megabytes if there are a thousand models,
// for as long as its client reads it.
const maxScrapes = 64

// observers returns a handler that refuses callers that may not observe the server. Others have a
// time for the page.
func observers(src Source, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := src.Authorize(r.Context(), access.Observe, ""); err != nil {
			http.Error(w, err.Error(), kserve.HTTPStatus(infer.CodeOf(err)))
			return
		}
		client := http.NewResponseController(w)
		_ = client.SetWriteDeadline(time.Now().Add(kserve.AnswerTimeout)) // fails only if the connection is closed
		defer func() { _ = client.SetWriteDeadline(time.Time{}) }()
		next.ServeHTTP(w, r)
	})
}

// codeLabel returns the label value of a code.
func codeLabel(code infer.Code) string { return strings.ReplaceAll(code.String(), " ", "_") }
