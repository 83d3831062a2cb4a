// Package otlp exports traces to OpenTelemetry's collectors, over OTLP/HTTP.
package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/shoal-serving/shoal/internal/trace"
)

// Options configure an [Exporter]. What they leave open, the variables OTEL_EXPORTER_OTLP_*,
// OTEL_BSP_*, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES decide.
type Options struct {
	// URL is where the collector receives traces; http:// and the path /v1/traces may be
	// omitted. "" means that of the environment.
	URL string
	// Version is the version of the server.
	Version string
	// Resource has attributes of the server, in addition to those of the environment.
	Resource map[string]string

	// QueueSize is how many finished spans may wait; more are dropped. BatchSize is how many
	// are sent together, and Delay how long they wait for that. Zero means what the environment
	// says.
	QueueSize, BatchSize int
	Delay                time.Duration

	Log *slog.Logger
}

// complete returns the options with what they leave open and the environment decides.
func (o Options) complete() Options {
	if o.QueueSize <= 0 {
		o.QueueSize = fromEnvironment("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
	}
	if o.BatchSize <= 0 {
		o.BatchSize = fromEnvironment("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
	}
	o.BatchSize = min(o.BatchSize, o.QueueSize)
	if o.Delay <= 0 {
		o.Delay = time.Duration(fromEnvironment("OTEL_BSP_SCHEDULE_DELAY", 5000)) * time.Millisecond
	}
	return o
}

// fromEnvironment returns the number in a variable, or what OpenTelemetry's specification says
// where there is none.
func fromEnvironment(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// Exporter collects finished spans, and sends many together to a collector.
type Exporter struct {
	client  otlptrace.Client
	options Options
	timeout time.Duration
	about   []byte // the resource, encoded
	scope   []byte

	complete chan struct{} // receives when there is a complete batch
	close    chan struct{}
	closed   chan struct{}

	mu      sync.Mutex // guards the following
	batches []batch    // complete
	open    batch
	waiting int // spans in all batches
	dropped int
}

// batch has spans that are sent together, encoded.
type batch struct {
	spans []byte
	count int
}

// New returns an exporter; Close it. It does not wait for the collector.
func New(ctx context.Context, opts Options) (*Exporter, error) {
	var to []otlptracehttp.Option
	if opts.URL != "" {
		to = append(to, otlptracehttp.WithEndpointURL(endpoint(opts.URL)))
	}
	own := []attribute.KeyValue{}
	for name, value := range opts.Resource {
		own = append(own, attribute.String(name, value))
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "shoal"), attribute.String("service.version", opts.Version)),
		resource.WithFromEnv(), resource.WithAttributes(own...), resource.WithTelemetrySDK())
	if err != nil {
		return nil, err
	}
	e := &Exporter{
		client: otlptracehttp.NewClient(to...), options: opts.complete(),
		timeout:  time.Duration(fromEnvironment("OTEL_BSP_EXPORT_TIMEOUT", 30000)) * time.Millisecond,
		about:    appendResource(nil, about),
		scope:    appendScope(nil, opts.Version),
		complete: make(chan struct{}, 1), close: make(chan struct{}), closed: make(chan struct{}),
	}
	if err := e.client.Start(ctx); err != nil {
		return nil, err
	}
	go e.run()
	return e, nil
}

// endpoint completes a URL, as Triton and OpenTelemetry's C++ library do.
func endpoint(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		scheme, rest = "http", url
	}
	if !strings.Contains(rest, "/") {
		rest += "/v1/traces"
	}
	return scheme + "://" + rest
}

// Export adds a finished span to those that are sent, or drops it if too many wait. The caller
// may use the span again.
func (e *Exporter) Export(s *trace.Span) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == e.options.QueueSize {
		e.dropped++
		return
	}
	e.waiting++
	e.open.spans = appendSpan(e.open.spans, s)
	if e.open.count++; e.open.count < e.options.BatchSize {
		return
	}
	e.batches = append(e.batches, e.open)
	e.open = batch{spans: make([]byte, 0, len(e.open.spans))}
	select {
	case e.complete <- struct{}{}:
	default: // it will see this batch, too
	}
}

// Close sends what waits, and returns when it was sent or ctx ends.
func (e *Exporter) Close(ctx context.Context) error {
	close(e.close)
	select {
	case <-e.closed:
	case <-ctx.Done():
		_ = e.client.Stop(ctx) // which ends what is being sent
		<-e.closed
		return ctx.Err()
	}
	return e.client.Stop(ctx)
}

// run sends batches when they are complete, and incomplete ones after the delay.
func (e *Exporter) run() {
	defer close(e.closed)
	ticker := time.NewTicker(e.options.Delay)
	defer ticker.Stop()
	for {
		select {
		case <-e.complete:
			e.send(false)
		case <-ticker.C:
			e.send(true)
		case <-e.close:
			e.send(true)
			return
		}
	}
}

// send sends the batches that are complete, and if all is true the one that is not. Spans that come
// meanwhile wait for the next time.
func (e *Exporter) send(all bool) {
	for last := false; !last; {
		var next batch
		var dropped int
		next, last, dropped = e.take(all)
		if dropped > 0 {
			e.options.Log.Warn("spans were dropped: the collector is too slow", "spans", dropped)
		}
		if next.count == 0 {
			return
		}
		if err := e.upload(next); err != nil {
			e.options.Log.Warn("traces were not exported", "error", err)
		}
	}
}

// take removes the oldest batch, and reports whether it is the one that was not complete, and how
// many spans were dropped since the last call.
func (e *Exporter) take(all bool) (next batch, incomplete bool, dropped int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	dropped, e.dropped = e.dropped, 0
	switch {
	case len(e.batches) > 0:
		next, e.batches = e.batches[0], e.batches[1:]
	case all:
		next, e.open, incomplete = e.open, batch{}, true
	}
	e.waiting -= next.count
	return next, incomplete, dropped
}

// upload sends a batch with OpenTelemetry's client, which knows certificates, compression and when
// to try again. It wants messages; one whose fields it does not know passes it as it is.
func (e *Exporter) upload(b batch) error {
	ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
	defer cancel()
	encoded := &tracev1.ResourceSpans{}
	encoded.ProtoReflect().SetUnknown(slices.Concat(e.about, appendScopeSpans(nil, e.scope, b.spans)))
	if err := e.client.UploadTraces(ctx, []*tracev1.ResourceSpans{encoded}); err != nil {
		return fmt.Errorf("%d spans: %w", b.count, err)
	}
	return nil
}
