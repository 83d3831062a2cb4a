package otlp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// newCollector returns the URL of a server that receives messages, until the test ends.
func newCollector(t *testing.T) (url string, received <-chan *tracev1.ExportTraceServiceRequest) {
	t.Helper()
	messages := make(chan *tracev1.ExportTraceServiceRequest, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m tracev1.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &m); err != nil {
			t.Errorf("the collector cannot read the message: %v", err)
		}
		messages <- &m
	}))
	t.Cleanup(s.Close)
	return s.URL, messages
}
