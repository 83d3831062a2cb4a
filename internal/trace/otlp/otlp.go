// Package otlp exports traces with OpenTelemetry's SDK, over OTLP/HTTP. It is the only package
// that imports the SDK.
package otlp

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"

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

// An Exporter exports spans to a collector. It implements [trace.Exporter].
type Exporter struct {
	processor spanProcessor
	resource  *resource.Resource
	scope     instrumentation.Scope
}

// New returns an exporter, which the caller must close. It does not wait for the collector:
// spans that cannot be sent are dropped, and the log says so.
func New(ctx context.Context, opts Options) (*Exporter, error) {
	var to []otlptracehttp.Option
	if opts.URL != "" {
		to = append(to, otlptracehttp.WithEndpointURL(endpoint(opts.URL)))
	}
	client, err := otlptracehttp.New(ctx, to...)
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { opts.Log.Warn("traces were not exported", "error", err) }))
	return newExporter(ctx, client, opts)
}

// newExporter returns an exporter that sends spans with client.
func newExporter(ctx context.Context, client spanExporter, opts Options) (*Exporter, error) {
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
	return &Exporter{
		processor: newProcessor(client, opts), resource: about,
		scope: instrumentation.Scope{Name: "github.com/shoal-serving/shoal", Version: opts.Version},
	}, nil
}

// endpoint completes a URL as Triton's users write it, such as localhost:4318/v1/traces.
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

// Export implements [trace.Exporter].
func (e *Exporter) Export(s *trace.Span) { e.processor.OnEnd(&span{from: s, exporter: e}) }

// Close sends what is left, until ctx ends.
func (e *Exporter) Close(ctx context.Context) error { return e.processor.Shutdown(ctx) }

// A span shows a span to the SDK. The SDK reads it on its own goroutine, so that a request
// does not wait for the conversion.
type span struct {
	readOnlySpan // nil: it has a method that only the SDK can implement, and does not call

	from     *trace.Span
	exporter *Exporter
}

func contextOf(c trace.Context, remote bool) spanContext {
	return newSpanContext(c.Trace, c.Span, c.State, remote)
}

func (s *span) Name() string             { return s.from.Name }
func (s *span) SpanContext() spanContext { return contextOf(s.from.Context, false) }
func (s *span) StartTime() time.Time     { return s.from.Start }
func (s *span) EndTime() time.Time       { return s.from.End }

func (s *span) Parent() spanContext {
	if s.from.Parent == (trace.SpanID{}) {
		return spanContext{}
	}
	return contextOf(trace.Context{Trace: s.from.Trace, Span: s.from.Parent, State: s.from.State}, s.from.Remote)
}

func (s *span) SpanKind() spanKind {
	if s.from.Server {
		return serverKind
	}
	return internalKind
}

func (s *span) Attributes() []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, len(s.from.Attributes)+1)
	for _, a := range s.from.Attributes {
		switch v := a.Value.(type) {
		case string:
			all = append(all, attribute.String(a.Name, strings.ToValidUTF8(v, "\uFFFD")))
		case int:
			all = append(all, attribute.Int(a.Name, v))
		case bool:
			all = append(all, attribute.Bool(a.Name, v))
		}
	}
	if s.from.Failed != "" {
		all = append(all, attribute.String("error.type", s.from.Failed))
	}
	return all
}

func (s *span) Links() (all []link) {
	for _, c := range s.from.Links {
		all = append(all, link{SpanContext: contextOf(c, false)})
	}
	return all
}

func (s *span) Events() (all []event) {
	for _, e := range s.from.Events {
		all = append(all, event{Name: e.Name, Time: e.Time})
	}
	return all
}

func (s *span) Status() status {
	if s.from.Failed != "" {
		return status{Code: codes.Error, Description: s.from.Failed}
	}
	return status{}
}

func (s *span) InstrumentationScope() instrumentation.Scope { return s.exporter.scope }
func (s *span) Resource() *resource.Resource                { return s.exporter.resource }
func (*span) DroppedAttributes() int                        { return 0 }
func (*span) DroppedLinks() int                             { return 0 }
func (*span) DroppedEvents() int                            { return 0 }
func (*span) ChildSpanCount() int                           { return 0 }
