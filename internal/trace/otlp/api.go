package otlp

import "go.opentelemetry.io/otel/trace"

// Types of OpenTelemetry's API, whose package has the same name as two others.
type (
	spanContext = trace.SpanContext
	spanKind    = trace.SpanKind
)

const (
	serverKind   = trace.SpanKindServer
	internalKind = trace.SpanKindInternal
)

// newSpanContext returns a context for the SDK. A state that is invalid is left out.
func newSpanContext(id [16]byte, span [8]byte, state string, remote bool) spanContext {
	passed, _ := trace.ParseTraceState(state)
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled, TraceState: passed, Remote: remote})
}
