package server

import (
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/trace"
)

// exportSpans exports the spans of a request that is traced and was answered: its own, and those
// of its times in the queue and in the model. The times were recorded for the statistics.
func exportSpans(in *inference, resp *infer.Response, took time.Duration, err error) {
	of, times := in.req.Trace, &resp.Times
	// Strings of the request may be views of the client's message.
	name := strings.Clone(in.req.Model)
	all := &trace.Span{Name: name, Start: in.began, End: in.began.Add(took), Attributes: []trace.Attribute{
		{Name: trace.ModelName, Value: name}, {Name: trace.ModelVersion, Value: strings.Clone(resp.Version)}, {Name: trace.Rows, Value: in.req.Rows},
	}}
	if in.req.ID != "" {
		all.Attributes = append(all.Attributes, trace.Attribute{Name: trace.RequestID, Value: strings.Clone(in.req.ID)})
	}
	if in.lookup.hit {
		all.Attributes = append(all.Attributes, trace.Attribute{Name: trace.CacheHit, Value: true})
	}
	if err != nil {
		all.Failed = infer.CodeOf(err).String()
	}
	if err == nil && !in.lookup.hit {
		in.version.Stats.Exemplify(took, times, of.Trace)
	}
	if !times.RunEnded.IsZero() && !in.lookup.hit {
		of.ExportQueue(&trace.Span{Name: "queue", Start: times.Queued, End: times.Taken})
		compute := &trace.Span{Name: "compute", Start: times.Taken, End: times.Split, Failed: all.Failed, Events: []trace.Event{
			{Name: "COMPUTE_INPUT_END", Time: times.RunStarted}, {Name: "COMPUTE_OUTPUT_START", Time: times.RunEnded},
		}}
		if times.BatchSpan != nil {
			compute.Links = []trace.Context{*times.BatchSpan}
		}
		of.ExportCompute(compute)
	}
	of.ExportRequest(all)
}
