package otlp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/trace"
)

func TestMain(m *testing.M) { leak.Main(m) }

// kept keeps what was exported after it was closed, which the SDK's exporter does not.
type kept struct {
	*tracetest.InMemoryExporter
}

func (kept) Shutdown(context.Context) error { return nil }

func TestSpansAreExportedAsTheyAre(t *testing.T) {
	memory := kept{tracetest.NewInMemoryExporter()}
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=a,service.name=other")
	e, err := newExporter(t.Context(), memory, Options{Version: "1.2.3", Resource: map[string]string{"service.name": "mine"}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1000, 0)
	own := trace.Context{Trace: trace.ID{1}, Span: trace.SpanID{2}, State: "vendor=1"}
	other := trace.Context{Trace: trace.ID{3}, Span: trace.SpanID{4}}
	e.Export(&trace.Span{
		Context: own, Parent: trace.SpanID{5}, Remote: true, Server: true, Name: "batch", Start: began, End: began.Add(time.Second),
		Attributes: []trace.Attribute{{Name: "s", Value: "text\xff"}, {Name: "i", Value: 7}, {Name: "b", Value: true}},
		Links:      []trace.Context{other}, Events: []trace.Event{{Name: "half", Time: began.Add(time.Millisecond)}}, Failed: "internal",
	})
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := memory.GetSpans()
	if len(all) != 1 {
		t.Fatalf("%d spans were exported, want 1", len(all))
	}
	s := all[0]
	if s.Name != "batch" || s.SpanKind != serverKind || !s.StartTime.Equal(began) || s.EndTime.Sub(s.StartTime) != time.Second {
		t.Errorf("got %+v", s)
	}
	if c := s.SpanContext; trace.ID(c.TraceID()) != own.Trace || trace.SpanID(c.SpanID()) != own.Span || !c.IsSampled() || c.TraceState().String() != "vendor=1" {
		t.Errorf("context %+v", c)
	}
	if p := s.Parent; trace.SpanID(p.SpanID()) != (trace.SpanID{5}) || trace.ID(p.TraceID()) != own.Trace || !p.IsRemote() {
		t.Errorf("parent %+v", p)
	}
	if len(s.Links) != 1 || trace.SpanID(s.Links[0].SpanContext.SpanID()) != other.Span || trace.ID(s.Links[0].SpanContext.TraceID()) != other.Trace {
		t.Errorf("links %+v", s.Links)
	}
	if len(s.Events) != 1 || s.Events[0].Name != "half" || s.Status.Code != codes.Error {
		t.Errorf("events %+v, status %+v", s.Events, s.Status)
	}
	set := attribute.NewSet(s.Attributes...)
	if want := attribute.NewSet(attribute.String("s", "text\uFFFD"), attribute.Int("i", 7), attribute.Bool("b", true), attribute.String("error.type", "internal")); !set.Equals(&want) {
		t.Errorf("attributes %v, want %v", s.Attributes, want.ToSlice())
	}
	for name, want := range map[attribute.Key]string{"service.name": "mine", "service.version": "1.2.3", "zone": "a"} {
		if got, _ := s.Resource.Set().Value(name); got.AsString() != want {
			t.Errorf("the resource has %s %q, want %q", name, got.AsString(), want)
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

// TestACollectorThatFailsBlocksNothing has a collector that answers with errors: requests are
// not affected, and the spans are dropped.
func TestACollectorThatFailsBlocksNothing(t *testing.T) {
	var calls atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		http.Error(w, "no", http.StatusBadRequest)
	}))
	defer collector.Close()
	e, err := New(t.Context(), Options{URL: collector.URL, QueueSize: 8, BatchSize: 4, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		e.Export(&trace.Span{Context: trace.Context{Trace: trace.ID{1}, Span: trace.SpanID{1}}, Name: "x", Start: time.Now(), End: time.Now()})
	}
	_ = e.Close(t.Context()) // it may return what the collector said
	if calls.Load() == 0 {
		t.Error("the collector was not called")
	}
}
