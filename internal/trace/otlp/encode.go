package otlp

import (
	"slices"
	"strings"

	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/trace"
)

// Spans are encoded here: the SDK's processor and its messages need as many instructions for the
// five spans of a request as the request itself. Fields have the numbers of
// opentelemetry/proto/trace/v1/trace.proto.

const (
	scopeName = "github.com/shoal-serving/shoal"

	kindInternal, kindServer = 1, 2
	statusError              = 2

	flagSampled      = 1
	flagParentKnown  = 0x100 // the next flag is set or not, and not unknown
	flagParentRemote = 0x200
)

// appendResource appends the first field of ResourceSpans.
func appendResource(b []byte, about *resource.Resource) []byte {
	b, at := begin(b, 1)
	for _, a := range about.Attributes() {
		b = appendAttribute(b, 1, trace.Attribute{Name: string(a.Key), Value: a.Value.String()})
	}
	return end(b, at)
}

// appendScope appends the first field of ScopeSpans.
func appendScope(b []byte, version string) []byte {
	b, at := begin(b, 1)
	b = appendText(b, 1, scopeName)
	b = appendText(b, 2, version)
	return end(b, at)
}

// appendScopeSpans appends the second field of ResourceSpans.
func appendScopeSpans(b, scope, spans []byte) []byte {
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(scope)+len(spans)))
	return append(append(b, scope...), spans...)
}

// appendSpan appends a field of ScopeSpans.
func appendSpan(b []byte, s *trace.Span) []byte {
	kind, flags := uint64(kindInternal), uint32(flagSampled|flagParentKnown)
	if s.Server {
		kind = kindServer
	}
	if s.Remote {
		flags |= flagParentRemote
	}
	b, at := begin(b, 2)
	b = appendContext(b, s.Context)
	if s.State != "" && isState(s.State) {
		b = appendText(b, 3, s.State)
	}
	if s.Parent != (trace.SpanID{}) {
		b = appendBytes(b, 4, s.Parent[:])
	}
	b = appendText(b, 5, s.Name)
	b = appendNumber(b, 6, kind)
	b = appendFixed64(b, 7, uint64(s.Start.UnixNano()))
	b = appendFixed64(b, 8, uint64(s.End.UnixNano()))
	for _, a := range s.Attributes {
		b = appendAttribute(b, 9, a)
	}
	if s.Failed != "" {
		b = appendAttribute(b, 9, trace.Attribute{Name: "error.type", Value: s.Failed})
	}
	for _, e := range s.Events {
		var event int
		b, event = begin(b, 11)
		b = appendFixed64(b, 1, uint64(e.Time.UnixNano()))
		b = appendText(b, 2, e.Name)
		b = end(b, event)
	}
	for _, c := range s.Links {
		var link int
		b, link = begin(b, 13)
		b = appendContext(b, c)
		b = appendFixed32(b, 6, flagSampled|flagParentKnown)
		b = end(b, link)
	}
	if s.Failed != "" {
		var status int
		b, status = begin(b, 15)
		b = appendText(b, 2, s.Failed)
		b = appendNumber(b, 3, statusError)
		b = end(b, status)
	}
	b = appendFixed32(b, 16, flags)
	return end(b, at)
}

// appendContext appends the first two fields of a span or of a link.
func appendContext(b []byte, c trace.Context) []byte {
	b = appendBytes(b, 1, c.Trace[:])
	return appendBytes(b, 2, c.Span[:])
}

// appendAttribute appends an attribute, whose name no client chooses.
func appendAttribute(b []byte, number protowire.Number, a trace.Attribute) []byte {
	b, at := begin(b, number)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, a.Name)
	b, value := begin(b, 2)
	switch v := a.Value.(type) {
	case string:
		b = appendText(b, 1, v)
	case bool:
		b = appendNumber(b, 2, protowire.EncodeBool(v))
	case int:
		b = appendNumber(b, 3, uint64(v))
	}
	return end(end(b, value), at)
}

// appendText appends a string. A collector refuses all spans of a message if a string in it is not
// valid UTF-8, and clients choose some of them.
func appendText(b []byte, number protowire.Number, text string) []byte {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return protowire.AppendString(b, strings.ToValidUTF8(text, "\uFFFD"))
}

func appendBytes(b []byte, number protowire.Number, data []byte) []byte {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return protowire.AppendBytes(b, data)
}

func appendNumber(b []byte, number protowire.Number, n uint64) []byte {
	b = protowire.AppendTag(b, number, protowire.VarintType)
	return protowire.AppendVarint(b, n)
}

func appendFixed64(b []byte, number protowire.Number, n uint64) []byte {
	b = protowire.AppendTag(b, number, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, n)
}

func appendFixed32(b []byte, number protowire.Number, n uint32) []byte {
	b = protowire.AppendTag(b, number, protowire.Fixed32Type)
	return protowire.AppendFixed32(b, n)
}

// begin appends the tag of a message, and one byte for its length. The fields follow, and end.
func begin(b []byte, number protowire.Number) (with []byte, at int) {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return append(b, 0), len(b) + 1
}

// end sets the length of the message whose fields begin at a place, which it moves if the length
// needs more than one byte.
func end(b []byte, at int) []byte {
	length := uint64(len(b) - at)
	if more := protowire.SizeVarint(length) - 1; more > 0 {
		b = slices.Insert(b, at, make([]byte, more)...)
	}
	protowire.AppendVarint(b[:at-1], length)
	return b
}
