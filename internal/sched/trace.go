package sched

import (
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/internal/trace"
)

// exportSpan exports the span of a run with at least one request that is traced. The span
// belongs to the trace of the last of them, and has links to all.
func (w *worker) exportSpan(calls []*call, run *stats.Run, err error) {
	times := &calls[0].times // of which the end is the same for all
	s := &trace.Span{
		Context: *times.BatchSpan, Name: "batch", Start: times.RunEnded.Add(-run.Infer - run.Input), End: times.Split,
		Attributes: []trace.Attribute{
			{Name: trace.ModelName, Value: strings.Clone(calls[0].req.Model)}, // which may be a view of the client's message
			{Name: trace.BatchRows, Value: run.Rows},
			{Name: trace.BatchRequests, Value: len(calls)},
			{Name: trace.CloseReason, Value: run.CloseReason.String()},
			{Name: trace.Instance, Value: w.number},
		},
	}
	if run.Retry {
		s.Attributes = append(s.Attributes, trace.Attribute{Name: trace.Retry, Value: true})
	}
	if err != nil {
		s.Failed = infer.CodeOf(err).String()
	}
	var of *trace.Request
	for _, c := range calls {
		if c.req.Trace != nil {
			of = c.req.Trace
			s.Links = append(s.Links, of.Compute())
		}
	}
	s.Parent = of.Compute().Span
	of.Export(s)
}
