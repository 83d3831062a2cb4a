// Package trace decides which requests are traced, and describes what happens to those as
// spans. It knows neither protocols nor OpenTelemetry: an [Exporter] gets the finished spans.
//
// A request that is not traced has a nil [Request], and costs the check for that. The
// decision is made once, where the request enters the server.
package trace

import (
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"time"
)

// An ID identifies a trace. Zero is invalid.
type ID [16]byte

// A SpanID identifies a span of a trace. Zero is invalid.
type SpanID [8]byte

func (id ID) String() string     { return hex.EncodeToString(id[:]) }
func (id SpanID) String() string { return hex.EncodeToString(id[:]) }

func newID() (id ID) {
	for id == (ID{}) {
		putRandom(id[:8])
		putRandom(id[8:])
	}
	return id
}

func newSpanID() (id SpanID) {
	for id == (SpanID{}) {
		putRandom(id[:])
	}
	return id
}

// putRandom fills eight bytes. Go's generator is seeded by the system, and IDs need not be
// secret.
func putRandom(b []byte) {
	n := rand.Uint64()
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
}

// A Context identifies a span to other processes, as W3C's Trace Context does.
type Context struct {
	Trace ID
	Span  SpanID
	State string // tracestate, passed on as it is
}

const traceparentLength = 55

// ParseTraceparent reads the header traceparent. sampled is whether the caller records the
// trace.
func ParseTraceparent(text string) (c Context, sampled, ok bool) {
	const version, id, span, flags = 0, 3, 36, 53 // offsets
	if len(text) < traceparentLength || text[id-1] != '-' || text[span-1] != '-' || text[flags-1] != '-' {
		return Context{}, false, false
	}
	// Later versions may append fields; the first ones stay.
	later := text[version:id-1] != "00"
	if text[version:id-1] == "ff" || later && len(text) > traceparentLength && text[traceparentLength] != '-' || !later && len(text) > traceparentLength {
		return Context{}, false, false
	}
	var parts [2]byte
	if text != strings.ToLower(text) ||
		!decode(parts[:1], text[version:id-1]) || !decode(c.Trace[:], text[id:span-1]) || !decode(c.Span[:], text[span:flags-1]) || !decode(parts[1:], text[flags:traceparentLength]) ||
		c.Trace == (ID{}) || c.Span == (SpanID{}) {
		return Context{}, false, false
	}
	return c, parts[1]&1 != 0, true
}

func decode(dst []byte, text string) bool {
	n, err := hex.Decode(dst, []byte(text))
	return err == nil && n == len(dst)
}

// Traceparent returns the header traceparent of a context whose trace is recorded.
func (c Context) Traceparent() string {
	b := make([]byte, 0, traceparentLength)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, c.Trace[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, c.Span[:])
	return string(append(b, "-01"...))
}

// A Span is a finished part of a trace.
type Span struct {
	Context

	Parent SpanID // zero if the span has none
	Remote bool   // the parent is in another process
	Server bool   // the span is that of a client's request
	Name   string

	Start, End time.Time
	Attributes []Attribute
	Links      []Context
	Events     []Event
	Failed     string // class of the error; "" if there was none
}

// An Attribute is a named property of a span: a string, an int or a bool.
type Attribute struct {
	Name  string
	Value any
}

// Names of attributes. Those that Triton has are Triton's.
const (
	ModelName    = "triton.model_name"
	ModelVersion = "triton.model_version"
	RequestID    = "triton.request_id"

	Protocol      = "shoal.protocol"
	Rows          = "shoal.rows"
	CacheHit      = "shoal.cache.hit"
	BatchRows     = "shoal.batch.rows"
	BatchRequests = "shoal.batch.requests"
	CloseReason   = "shoal.batch.close_reason"
	Instance      = "shoal.instance"
	Retry         = "shoal.batch.retry"
	ProcessID     = "process.pid"
)

// An Event is a moment of a span.
type Event struct {
	Name string
	Time time.Time
}

// An Exporter receives finished spans. Export must not block, and owns the span.
type Exporter interface {
	Export(s *Span)
}

// A Root is the span of a client's request, from its arrival to the end of its answer. A nil
// Root is that of a request that is not traced; its methods do nothing.
type Root struct {
	exporter Exporter
	span     Span
}

// Request returns the trace of the request to its model.
func (r *Root) Request() *Request {
	if r == nil {
		return nil
	}
	return newRequest(r.exporter, r.span.Context)
}

// End ends the span. failed is the class of its error, "" if there is none.
func (r *Root) End(failed string) {
	if r == nil {
		return
	}
	r.span.End, r.span.Failed = time.Now(), failed
	r.exporter.Export(&r.span)
}

// A Request is the trace of one request to one model. Its methods may be called
// concurrently; those of a nil Request, which is not traced, return nothing.
type Request struct {
	Context // of the span of the request

	parent   SpanID
	compute  SpanID
	exporter Exporter
}

func newRequest(exporter Exporter, parent Context) *Request {
	return &Request{
		Context: Context{Trace: parent.Trace, Span: newSpanID(), State: parent.State},
		parent:  parent.Span, compute: newSpanID(), exporter: exporter,
	}
}

// Compute returns the context of the span in which the model runs. Spans of what the model
// does are its children.
func (r *Request) Compute() Context { return Context{Trace: r.Trace, Span: r.compute, State: r.State} }

// Child returns the trace of a request that the model makes to another one.
func (r *Request) Child() *Request {
	if r == nil {
		return nil
	}
	return newRequest(r.exporter, r.Compute())
}

// NewContext returns the context of a new span in the trace of r.
func (r *Request) NewContext() *Context {
	return &Context{Trace: r.Trace, Span: newSpanID(), State: r.State}
}

// Export exports a span.
func (r *Request) Export(s *Span) { r.exporter.Export(s) }

// ExportRequest exports the span of the request itself, which gets its context and parent.
func (r *Request) ExportRequest(s *Span) {
	s.Context, s.Parent = r.Context, r.parent
	r.exporter.Export(s)
}

// ExportQueue exports the span of the time in the queue.
func (r *Request) ExportQueue(s *Span) {
	s.Context, s.Parent = *r.NewContext(), r.Span
	r.exporter.Export(s)
}

// ExportCompute exports the span of the time in which the model ran.
func (r *Request) ExportCompute(s *Span) {
	s.Context, s.Parent = r.Compute(), r.Span
	r.exporter.Export(s)
}

// ExportPart exports the span of a part of the time in which the model ran.
func (r *Request) ExportPart(s *Span) {
	s.Context, s.Parent = *r.NewContext(), r.compute
	r.exporter.Export(s)
}
