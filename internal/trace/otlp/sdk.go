package otlp

import "go.opentelemetry.io/otel/sdk/trace"

// Types of the SDK, whose package has the same name as two others.
type (
	spanExporter  = trace.SpanExporter
	spanProcessor = trace.SpanProcessor
	readOnlySpan  = trace.ReadOnlySpan
	link          = trace.Link
	event         = trace.Event
	status        = trace.Status
)

// newProcessor returns what collects spans and sends many together.
func newProcessor(client spanExporter, opts Options) spanProcessor {
	var batches []trace.BatchSpanProcessorOption
	if opts.QueueSize > 0 {
		batches = append(batches, trace.WithMaxQueueSize(opts.QueueSize))
	}
	if opts.BatchSize > 0 {
		batches = append(batches, trace.WithMaxExportBatchSize(opts.BatchSize))
	}
	if opts.Delay > 0 {
		batches = append(batches, trace.WithBatchTimeout(opts.Delay))
	}
	return trace.NewBatchSpanProcessor(client, batches...)
}
