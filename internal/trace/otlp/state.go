package otlp

import "go.opentelemetry.io/otel/trace"

// isState reports whether a client's tracestate is valid. It is in a file of its own, because the
// package has the name of ours.
func isState(text string) bool {
	_, err := trace.ParseTraceState(text)
	return err == nil
}
