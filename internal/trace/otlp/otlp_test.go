package otlp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/trace"
)

func TestMain(m *testing.M) { leak.Main(m) }

func newExporter(t *testing.T, opts Options) *Exporter {
	t.Helper()
	opts.Log = slog.New(slog.DiscardHandler)
	e, err := New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func closeExporter(t *testing.T, e *Exporter) {
	t.Helper()
	if err := e.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func someSpan(name string) *trace.Span {
	return &trace.Span{Context: trace.Context{Trace: trace.ID{1}, Span: trace.SpanID{1}}, Name: name, Start: time.Unix(1, 0), End: time.Unix(2, 0)}
}

func attributes(all []*commonv1.KeyValue) map[string]string {
	of := map[string]string{}
	for _, a := range all {
		of[a.GetKey()] = strings.TrimSpace(prototext.MarshalOptions{}.Format(a.GetValue()))
	}
	return of
}

func TestSpansAreExportedAsTheyAre(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=a,service.name=other")
	url, received := newCollector(t)
	e := newExporter(t, Options{URL: url, Version: "1.2.3", Resource: map[string]string{"service.name": "mine"}})
	began := time.Unix(1000, 0)
	other := trace.Context{Trace: trace.ID{3}, Span: trace.SpanID{4}}
	e.Export(&trace.Span{
		Context: trace.Context{Trace: trace.ID{1}, Span: trace.SpanID{2}, State: "vendor=1"}, Parent: trace.SpanID{5}, Remote: true, Server: true,
		Name: "batch", Start: began, End: began.Add(time.Second),
		Attributes: []trace.Attribute{{Name: "s", Value: "text\xff"}, {Name: "i", Value: -7}, {Name: "b", Value: true}, {Name: "long", Value: strings.Repeat("x", 20000)}},
		Links:      []trace.Context{other}, Events: []trace.Event{{Name: "half", Time: began.Add(time.Millisecond)}}, Failed: "internal",
	})
	e.Export(&trace.Span{Context: trace.Context{Trace: trace.ID{1}, Span: trace.SpanID{6}, State: "not valid"}, Name: "plain", Start: began, End: began})
	closeExporter(t, e)

	all := (<-received).GetResourceSpans()
	if len(all) != 1 || len(all[0].GetScopeSpans()) != 1 || len(all[0].GetScopeSpans()[0].GetSpans()) != 2 {
		t.Fatalf("received %v, want two spans of one scope", all)
	}
	about := attributes(all[0].GetResource().GetAttributes())
	for name, want := range map[string]string{"service.name": "mine", "service.version": "1.2.3", "zone": "a", "telemetry.sdk.language": "go"} {
		if got := about[name]; got != `string_value:"`+want+`"` {
			t.Errorf("the resource has %s %s, want %q", name, got, want)
		}
	}
	scope := all[0].GetScopeSpans()[0]
	if got := scope.GetScope(); got.GetName() != scopeName || got.GetVersion() != "1.2.3" {
		t.Errorf("the scope is %v", got)
	}
	text := func(s string) *commonv1.AnyValue {
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
	}
	id, at := []byte{1, 15: 0}, uint64(began.UnixNano())
	wants := []*tracev1.Span{{
		TraceId: id, SpanId: []byte{2, 7: 0}, ParentSpanId: []byte{5, 7: 0}, TraceState: "vendor=1", Name: "batch", Kind: tracev1.Span_SPAN_KIND_SERVER,
		StartTimeUnixNano: at, EndTimeUnixNano: at + 1e9, Flags: 0x301,
		Attributes: []*commonv1.KeyValue{
			{Key: "s", Value: text("text\uFFFD")},
			{Key: "i", Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_IntValue{IntValue: -7}}},
			{Key: "b", Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_BoolValue{BoolValue: true}}},
			{Key: "long", Value: text(strings.Repeat("x", 20000))},
			{Key: "error.type", Value: text("internal")},
		},
		Links:  []*tracev1.Span_Link{{TraceId: []byte{3, 15: 0}, SpanId: []byte{4, 7: 0}, Flags: 0x101}},
		Events: []*tracev1.Span_Event{{Name: "half", TimeUnixNano: at + 1e6}},
		Status: &tracev1.Status{Code: tracev1.Status_STATUS_CODE_ERROR, Message: "internal"},
	}, {
		TraceId: id, SpanId: []byte{6, 7: 0}, Name: "plain", Kind: tracev1.Span_SPAN_KIND_INTERNAL, Flags: 0x101,
		StartTimeUnixNano: at, EndTimeUnixNano: at,
	}}
	for i, want := range wants {
		if got := scope.GetSpans()[i]; !proto.Equal(got, want) {
			t.Errorf("span %d: received\n%v\nwant\n%v", i, got, want)
		}
	}
}

func TestURLsAreCompletedAsTritonDoes(t *testing.T) {
	for url, want := range map[string]string{
		"localhost:4318":                   "http://localhost:4318/v1/traces",
		"localhost:4318/v1/traces":         "http://localhost:4318/v1/traces",
		"https://collector:443/own/path":   "https://collector:443/own/path",
		"http://collector:4318":            "http://collector:4318/v1/traces",
		"http://127.0.0.1:4318/v1/traces/": "http://127.0.0.1:4318/v1/traces/",
	} {
		if got := endpoint(url); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}

func TestACompleteBatchIsSentAtOnceAndTheRestAfterTheDelay(t *testing.T) {
	url, received := newCollector(t)
	e := newExporter(t, Options{URL: url, BatchSize: 3, Delay: time.Hour})
	defer closeExporter(t, e)
	for range 7 {
		e.Export(someSpan("x"))
	}
	for range 2 {
		if m := <-received; len(m.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()) != 3 {
			t.Errorf("received %v, want three spans", m)
		}
	}
	if len(received) > 0 {
		t.Error("a batch was sent that was not complete")
	}

	soon := newExporter(t, Options{URL: url, BatchSize: 3, Delay: time.Millisecond})
	defer closeExporter(t, soon)
	soon.Export(someSpan("alone"))
	if m := <-received; m.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()[0].GetName() != "alone" {
		t.Errorf("received %v, want the span that waited", m)
	}
}

func TestSpansThatComeWhileOthersAreSentWaitForTheDelay(t *testing.T) {
	var e *Exporter
	sent := make(chan struct{}, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		e.Export(someSpan("meanwhile"))
		sent <- struct{}{}
	}))
	defer collector.Close()
	e = newExporter(t, Options{URL: collector.URL, BatchSize: 100, Delay: time.Hour})
	e.Export(someSpan("first"))
	e.send(true)
	if len(sent) != 1 {
		t.Errorf("%d messages, want one", len(sent))
	}
	closeExporter(t, e)
}

func TestTheEnvironmentDecidesWhatOptionsLeaveOpen(t *testing.T) {
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "70")
	if got := (Options{}).complete(); got.QueueSize != 100 || got.BatchSize != 100 || got.Delay != 70*time.Millisecond {
		t.Errorf("got %+v, want 100 spans after 70 ms", got)
	}
	if got := (Options{QueueSize: 9, BatchSize: 5, Delay: time.Second}).complete(); got.QueueSize != 9 || got.BatchSize != 5 || got.Delay != time.Second {
		t.Errorf("got %+v, want what was set", got)
	}
}

// reports receives what is logged.
type reports chan string

func (r reports) Write(line []byte) (int, error) {
	r <- string(line)
	return len(line), nil
}

func TestACollectorThatFailsBlocksNothing(t *testing.T) {
	var calls atomic.Int32
	held := make(chan struct{})
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		<-held
		http.Error(w, "no", http.StatusBadRequest)
	}))
	defer failing.Close()
	lines := make(reports, 100)
	e, err := New(t.Context(), Options{URL: failing.URL, QueueSize: 8, BatchSize: 4, Log: slog.New(slog.NewTextHandler(lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		e.Export(someSpan("x"))
	}
	close(held)
	closeExporter(t, e)
	close(lines)
	var failed, dropped bool
	for line := range lines {
		failed = failed || strings.Contains(line, "were not exported")
		dropped = dropped || strings.Contains(line, "were dropped")
	}
	if calls.Load() == 0 || !failed || !dropped {
		t.Errorf("%d calls; the log has the failure: %v, the spans that were dropped: %v", calls.Load(), failed, dropped)
	}
}

func TestCloseDoesNotWaitForeverForACollector(t *testing.T) {
	held := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-held
	}))
	defer silent.Close()
	defer close(held)
	e := newExporter(t, Options{URL: silent.URL})
	e.Export(someSpan("x"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); err == nil {
		t.Error("Close returned no error, want that of its context")
	}
}
