package servertest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	tracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// realCollector names a program that takes an address and a file, and writes what it receives to
// the file. A real collector takes longer to build than everything else.
var realCollector = flag.String("collector", "", "the program that receives traces; empty means a part of the test")

// A Span is a span as a collector has it. IDs are in hexadecimal digits.
type Span struct {
	Trace, ID, Parent, Name string
	Start, End              time.Time
	Attributes              map[string]string
	Links                   []string // IDs of spans
	Failed                  bool
}

// Took returns the duration of a span.
func (s Span) Took() time.Duration { return s.End.Sub(s.Start) }

// A Collector receives traces over OTLP/HTTP.
type Collector struct {
	URL  string
	read func() []Span
}

// StartCollector starts a collector, which ends with the test: the program that the flag
// -collector names, or a receiver in this process.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	if *realCollector != "" {
		return startProgram(t, *realCollector)
	}
	var mu sync.Mutex // guards the following
	var all []Span
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var got tracev1.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &got)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, fromMessage(&got)...)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	return &Collector{URL: server.URL + "/v1/traces", read: func() []Span {
		mu.Lock()
		defer mu.Unlock()
		return append([]Span(nil), all...)
	}}
}

func fromMessage(m *tracev1.ExportTraceServiceRequest) (all []Span) {
	for _, resource := range m.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				one := Span{
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()), Name: s.GetName(),
					Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())), Attributes: map[string]string{},
					Failed: s.GetStatus().GetCode() == failedCode,
				}
				for _, a := range s.GetAttributes() {
					one.Attributes[a.GetKey()] = a.GetValue().GetStringValue()
					if n := a.GetValue().GetIntValue(); n != 0 {
						one.Attributes[a.GetKey()] = strconv.FormatInt(n, 10)
					}
				}
				for _, l := range s.GetLinks() {
					one.Links = append(one.Links, hex.EncodeToString(l.GetSpanId()))
				}
				all = append(all, one)
			}
		}
	}
	return all
}

// failedCode is OTLP's status of a span that failed.
const failedCode = 2

// startProgram starts a collector, which writes lines of OTLP's JSON to a file.
func startProgram(t testing.TB, program string) *Collector {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close() // the program takes the port
	file := filepath.Join(t.TempDir(), "traces.jsonl")
	cmd := exec.CommandContext(t.Context(), program, address, file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the test's context has ended it
	if _, err := out.Read(make([]byte, 64)); err != nil {
		t.Fatalf("the collector did not start: %v", err)
	}
	return &Collector{URL: "http://" + address + "/v1/traces", read: func() (all []Span) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			if bytes.HasSuffix(line, []byte("\n")) { // the last one may be incomplete
				all = append(all, fromLine(t, line)...)
			}
		}
		return all
	}}
}

func fromLine(t testing.TB, line []byte) (all []Span) {
	t.Helper()
	var message struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					TraceID      string `json:"traceId"`
					SpanID       string `json:"spanId"`
					ParentSpanID string `json:"parentSpanId"`
					Name         string `json:"name"`
					Start        int64  `json:"startTimeUnixNano,string"`
					End          int64  `json:"endTimeUnixNano,string"`
					Attributes   []struct {
						Key   string `json:"key"`
						Value struct {
							Text   string `json:"stringValue"`
							Number string `json:"intValue"`
						} `json:"value"`
					} `json:"attributes"`
					Links []struct {
						SpanID string `json:"spanId"`
					} `json:"links"`
					Status struct {
						Code int `json:"code"`
					} `json:"status"`
				} `json:"spans"`
			} `json:"scopeSpans"`
		} `json:"resourceSpans"`
	}
	if err := json.Unmarshal(line, &message); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	for _, resource := range message.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				one := Span{
					Trace: s.TraceID, ID: s.SpanID, Parent: s.ParentSpanID, Name: s.Name,
					Start: time.Unix(0, s.Start), End: time.Unix(0, s.End), Attributes: map[string]string{}, Failed: s.Status.Code == failedCode,
				}
				for _, a := range s.Attributes {
					one.Attributes[a.Key] = a.Value.Text + a.Value.Number
				}
				for _, l := range s.Links {
					one.Links = append(one.Links, l.SpanID)
				}
				all = append(all, one)
			}
		}
	}
	return all
}

// Flags returns flags for a server that sends its traces to the collector soon, and traces only
// what clients trace, unless others follow.
func (c *Collector) Flags(more ...string) (flags []string) {
	for _, setting := range append([]string{"mode=opentelemetry", "opentelemetry,url=" + c.URL, "opentelemetry,bsp_schedule_delay=50", "level=TIMESTAMPS", "rate=0"}, more...) {
		flags = append(flags, "--trace-config", setting)
	}
	return flags
}

// All returns all spans that have arrived.
func (c *Collector) All() []Span { return c.read() }

// Trace waits for a trace of at least n spans, and returns its spans.
func (c *Collector) Trace(t *testing.T, id string, n int) (all []Span) {
	t.Helper()
	Eventually(t, fmt.Sprintf("trace %s of %d spans", id, n), func() bool {
		all = nil
		for _, s := range c.read() {
			if s.Trace == id {
				all = append(all, s)
			}
		}
		return len(all) >= n
	})
	return all
}
