//go:build e2e

package cost

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

const (
	mostOff     = 1.003 // times the instructions of a server that does not trace, if tracing is off
	mostSampled = 1.01  // if one of 100 requests is traced, and its spans are sent
	tracedOf    = 100
	tracing     = 10200 // requests; the spans of those that are traced fill a message
	spansOf     = 5     // spans of a trace
)

// TestTracingCostsLittle compares what requests cost a server that cannot trace, one that could and
// does not, and one that traces one of 100 and sends the spans.
func TestTracingCostsLittle(t *testing.T) {
	if !*servertest.Strict {
		t.Skip("takes minutes: make measure WHAT=traces")
	}
	if _, err := exec.LookPath("valgrind"); err != nil && os.Getenv("CI") == "" {
		t.Skip("needs valgrind")
	}
	collector := servertest.StartCollector(t)
	flags := []string{
		"--trace-config", "mode=opentelemetry", "--trace-config", "rate=100", "--trace-config", "opentelemetry,url=" + collector.URL,
		// One message for all spans, as many as a busy server sends together. Under callgrind it has far
		// fewer requests in the time between two messages.
		"--trace-config", "opentelemetry,bsp_schedule_delay=600000", "--trace-config", "opentelemetry,bsp_max_export_batch_size=" + strconv.Itoa(spansOf*tracing/tracedOf),
	}
	none := perRequest(t, nil, nil)
	off := perRequest(t, nil, flags)
	// What is sent must be counted, too: the last spans arrive before the count ends.
	sampled := perRequest(t, func(before int) {
		servertest.Eventually(t, "all spans", func() bool { return len(collector.All())-before >= spansOf*tracing/tracedOf })
	}, append(flags, "--trace-config", "level=TIMESTAMPS"), collector)
	for transport, n := range none {
		o, s := off[transport], sampled[transport]
		t.Logf("%-4s %6.0f instructions; %.4f times those with tracing off, %.4f times those with 1 of %d traced; %.2f, %.2f and %.2f allocations",
			transport, n.Instructions, o.Instructions/n.Instructions, s.Instructions/n.Instructions, tracedOf, n.Allocations, o.Allocations, s.Allocations)
		if !(o.Instructions <= mostOff*n.Instructions) || o.Allocations > n.Allocations+0.5 {
			t.Errorf("%s: tracing that is off costs %.4f times the instructions, at most %v times are allowed", transport, o.Instructions/n.Instructions, mostOff)
		}
		if !(s.Instructions <= mostSampled*n.Instructions) {
			t.Errorf("%s: tracing 1 of %d requests costs %.4f times the instructions, at most %v times are allowed", transport, tracedOf, s.Instructions/n.Instructions, mostSampled)
		}
	}
}

// perRequest returns what a request costs over HTTP and gRPC. sent, if not nil, waits for the spans
// that were sent since the collector had the given number of spans.
func perRequest(t *testing.T, sent func(before int), flags []string, to ...*servertest.Collector) map[string]figure {
	t.Helper()
	s, dump := startUnderCallgrind(t, servertest.Repository(t, map[string]string{"m": config}), flags...)
	x := client.NewTensor("x", make([]float32, 3200), 1, 3200)
	arrived := func() (n int) {
		for _, c := range to {
			n += len(c.All())
		}
		return n
	}
	got := map[string]figure{}
	clients := map[string]*client.Client{"http": s.Web(), "grpc": s.Client()}
	for _, name := range []string{"http", "grpc"} { // always in this order: the first leaves buffers to the second
		c := clients[name]
		call := func(n int) {
			before := arrived()
			for range n {
				if _, err := c.Infer(t.Context(), &client.Request{Model: "m", Inputs: []client.Tensor{x}}); err != nil {
					t.Fatal(err)
				}
			}
			if sent != nil && n == tracing {
				sent(before)
			}
		}
		call(tracing) // connections, buffers and caches
		dump()
		call(tracing)
		got[name] = dump().per(tracing)
	}
	s.Terminate()
	return got
}
