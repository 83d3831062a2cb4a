//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// traced returns a client that traces its requests, and the ID of its trace and of its span.
func traced(s *servertest.Server, protocol string) (c *client.Client, id, span string) {
	id, span = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()|1), fmt.Sprintf("%016x", rand.Uint64()|1)
	opts := client.Options{Header: map[string]string{"traceparent": "00-" + id + "-" + span + "-01"}}
	if protocol == "grpc" {
		return s.Closing(client.NewGRPC(s.GRPC, opts)), id, span
	}
	return s.Closing(client.NewHTTP(s.HTTP, opts)), id, span
}

// tree returns each span as the path of names to it, sorted. The first is a child of the client's.
func tree(all []servertest.Span, client string) (paths []string) {
	byID := map[string]servertest.Span{}
	for _, s := range all {
		byID[s.ID] = s
	}
	for _, s := range all {
		path := s.Name
		for s.Parent != client && byID[s.Parent].ID != "" {
			s = byID[s.Parent]
			path = s.Name + "/" + path
		}
		if s.Parent != client {
			path = "?/" + path
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// named returns the only span with a name.
func named(t *testing.T, all []servertest.Span, name string) servertest.Span {
	t.Helper()
	i := slices.IndexFunc(all, func(s servertest.Span) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no span %s in %v", name, all)
	}
	return all[i]
}

func TestATraceLeadsFromTheClientToTheBatchesOfEachStep(t *testing.T) {
	collector := servertest.StartCollector(t)
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"a_chain": chain(2, "IN", "OUT", "first", "second"), "first": member(2, 2*time.Millisecond), "second": member(2, time.Millisecond),
	}), collector.Flags()...)
	req := &client.Request{Model: "a_chain", ID: "r1", Inputs: []client.Tensor{client.NewTensor("IN", []float32{1, 2}, 1, 2)}}
	for _, protocol := range []string{"http", "grpc"} {
		c, id, span := traced(s, protocol)
		if _, err := c.Infer(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		all := collector.Trace(t, id, 13)
		const steps = "InferRequest/a_chain/compute"
		want := []string{
			"InferRequest", "InferRequest/a_chain", "InferRequest/a_chain/compute", steps + "/batch",
			steps + "/first", steps + "/first/compute", steps + "/first/compute/batch", steps + "/first/queue",
			steps + "/second", steps + "/second/compute", steps + "/second/compute/batch", steps + "/second/queue",
			"InferRequest/a_chain/queue",
		}
		if got := tree(all, span); !slices.Equal(got, want) {
			t.Errorf("%s: the trace is\n%s\nwant\n%s", protocol, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if at := named(t, all, "InferRequest").Attributes; at["shoal.protocol"] != protocol || at["triton.model_name"] != "a_chain" {
			t.Errorf("%s: the request has the attributes %v", protocol, at)
		}
		if at := named(t, all, "a_chain").Attributes; at["triton.model_version"] != "1" || at["triton.request_id"] != "r1" {
			t.Errorf("%s: the model has the attributes %v", protocol, at)
		}
	}
	if _, err := s.Web().Infer(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Web().Infer(t.Context(), &client.Request{Model: "none"}); err == nil {
		t.Error("an unknown model answered")
	}
	c, id, _ := traced(s, "http")
	_, err := c.Infer(t.Context(), &client.Request{Model: "first", Inputs: []client.Tensor{client.NewTensor("x", []float32{1}, 1, 1)}})
	if failed := collector.Trace(t, id, 2); err == nil || !failed[0].Failed || !failed[1].Failed {
		t.Errorf("the request failed with %v, and its spans are %+v", err, failed)
	}
	for _, one := range collector.All() {
		if one.Parent == "" {
			t.Errorf("a request that its client does not trace is traced: %+v", one)
		}
	}
}

func TestTracedRequestsOfABatchAreItsLinks(t *testing.T) {
	collector := servertest.StartCollector(t)
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }")}), collector.Flags()...)
	var ids []string
	var all sync.WaitGroup
	for i := range 4 {
		c := s.Client() // not traced
		if i > 0 {
			var id string
			c, id, _ = traced(s, []string{"http", "grpc"}[i%2])
			ids = append(ids, id)
		}
		all.Go(func() {
			if _, err := c.Infer(t.Context(), servertest.SmallRequest("m", 1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var batch servertest.Span
	servertest.Eventually(t, "a batch", func() bool {
		for _, one := range collector.All() {
			if one.Name == "batch" {
				batch = one
			}
		}
		return batch.ID != ""
	})
	if at := batch.Attributes; at["shoal.batch.rows"] != "4" || at["shoal.batch.requests"] != "4" || at["shoal.instance"] != "1" || at["shoal.batch.close_reason"] == "" {
		t.Errorf("the batch has the attributes %v", at)
	}
	if len(batch.Links) != 3 {
		t.Errorf("the batch has %d links, want one for each traced request", len(batch.Links))
	}
	for _, id := range ids {
		compute := named(t, collector.Trace(t, id, 4), "compute")
		if !slices.Contains(batch.Links, compute.ID) || !slices.Equal(compute.Links, []string{batch.ID}) {
			t.Errorf("the batch %s has links to %v, and request %s to %v, want both ways", batch.ID, batch.Links, compute.ID, compute.Links)
		}
	}
}

// TestQueueAndComputeAddUp has requests that wait for the one before and then run. What is left of a
// request is the protocol's.
func TestQueueAndComputeAddUp(t *testing.T) {
	collector := servertest.StartCollector(t)
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(50*time.Millisecond, "1", "")}), collector.Flags()...)
	for _, protocol := range []string{"http", "grpc"} {
		servertest.Hold(t, protocol+": share of the time of a request that is queue and compute", servertest.StrictOr(0.98, 0.8), 1, func() float64 {
			var all sync.WaitGroup
			ids := make([]string, 3)
			for i := range ids {
				c, id, _ := traced(s, protocol)
				ids[i] = id
				all.Go(func() {
					if _, err := c.Infer(t.Context(), servertest.SmallRequest("m", 1)); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			least := 1.0
			for _, id := range ids {
				spans := collector.Trace(t, id, 5)
				queue, compute := named(t, spans, "queue"), named(t, spans, "compute")
				parts := queue.Took() + compute.Took()
				least = min(least, parts.Seconds()/named(t, spans, "InferRequest").Took().Seconds())
			}
			return least
		})
	}
}

// contextModel sends its request on to another model, and answers with whether it has a context.
const contextModel = `
import json
import numpy as np
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            context = json.loads(r.trace().get_context()) if r.trace() else {}
            asked = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUTPUT"], inputs=r.inputs(), trace=r.trace())
            response = asked.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            print("context", context.get("traceparent", "none"), flush=True)
            answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]))
        return answers
`

func TestATraceLeadsThroughAPythonWorker(t *testing.T) {
	collector := servertest.StartCollector(t)
	dir := servertest.PythonRepository(t, "", contextModel)
	for _, file := range []string{"other/config.pbtxt", "other/1/none"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(servertest.Config(time.Millisecond, "1", "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := servertest.Start(t, dir, collector.Flags()...)
	c, id, span := traced(s, "grpc")
	if _, err := c.Infer(t.Context(), servertest.SmallRequest("m", 1)); err != nil {
		t.Fatal(err)
	}
	all := collector.Trace(t, id, 10)
	const model = "InferRequest/m/compute"
	want := []string{
		"InferRequest", "InferRequest/m", model, model + "/batch", model + "/execute",
		model + "/other", model + "/other/compute", model + "/other/compute/batch", model + "/other/queue", "InferRequest/m/queue",
	}
	if got := tree(all, span); !slices.Equal(got, want) {
		t.Errorf("the trace is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	execute := named(t, all, "execute")
	if execute.Attributes["process.pid"] == "" || execute.Took() < named(t, all, "other").Took() {
		t.Errorf("the time in the worker is %+v, want one that has the call of the other model in it", execute)
	}
	servertest.Eventually(t, "the context in the model", func() bool {
		return strings.Contains(s.Log(), "context 00-"+id+"-"+execute.Parent+"-01")
	})
	if _, err := s.Client().Infer(t.Context(), servertest.SmallRequest("m", 1)); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "a request without a context", func() bool { return strings.Contains(s.Log(), "context none") })
}

func TestClientsSetWhichRequestsAreTraced(t *testing.T) {
	collector := servertest.StartCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.URL) // all requests, as OpenTelemetry's SDKs do
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(0, "1", ""), "n": servertest.Config(0, "1", "")}))
	ask := func(model string, n int) {
		t.Helper()
		for range n {
			if _, err := s.Web().Infer(t.Context(), servertest.SmallRequest(model, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func() map[string]int {
		n := map[string]int{}
		for _, one := range collector.All() {
			if one.Name == "InferRequest" {
				n[one.Attributes["triton.model_name"]]++
			}
		}
		return n
	}
	set := func(path, body, want string) {
		t.Helper()
		if status, answer := s.Post(path, body); status != http.StatusOK || !strings.Contains(answer, want) {
			t.Errorf("%s %s: %d %s, want %s", path, body, status, answer, want)
		}
	}
	ask("m", 3)
	servertest.Eventually(t, "3 traces", func() bool { return count()["m"] == 3 })
	set("/v2/trace/setting", `{"trace_rate":"5"}`, `"trace_level":["TIMESTAMPS"],"trace_rate":"5","trace_count":"-1"`)
	set("/v2/models/n/trace/setting", `{"trace_rate":"1","trace_count":"2"}`, `"trace_rate":"1","trace_count":"2"`)
	ask("m", 10)
	ask("n", 10)
	servertest.Eventually(t, "2 traces of each model more", func() bool { n := count(); return n["m"] == 5 && n["n"] == 2 })
	set("/v2/trace/setting", `{"trace_level":["OFF"]}`, `"trace_level":["OFF"]`)
	set("/v2/models/n/trace/setting", `{"trace_rate":null,"trace_count":null}`, `"trace_level":["OFF"],"trace_rate":"5","trace_count":"-1"`)
	ask("m", 20)
	for body, want := range map[string]string{`{"trace_level":["TENSORS"]}`: "TENSORS", `{"trace_mode":"triton"}`: "trace_mode", `{"trace_rate":"x"}`: "trace_rate", `{"trace_file":"/x"}`: "trace file"} {
		if status, answer := s.Post("/v2/trace/setting", body); status == http.StatusOK || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want an error", body, status, answer)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Metrics+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	_, _, page, err := servertest.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Contains(t, "metrics", string(page), `nv_inference_request_success{model="m",version="1"} 33`, ` # {trace_id="`, "# EOF")
	known := slices.ContainsFunc(collector.All(), func(one servertest.Span) bool { return strings.Contains(string(page), `{trace_id="`+one.Trace+`"}`) })
	if !known {
		t.Error("no trace on the page of metrics is one that was exported")
	}
	s.Terminate()
	if !s.EndsWithin(servertest.StartPatience) { // the last spans are sent before it ends
		t.Fatal("it does not end")
	}
	if n := count(); n["m"] != 5 || n["n"] != 2 {
		t.Errorf("%v traces at the end, want 5 and 2", n)
	}
}

// TestEveryWayInIsTraced sends a request to a model in each way there is.
func TestEveryWayInIsTraced(t *testing.T) {
	collector := servertest.StartCollector(t)
	s := archiveAndModel(t, append(collector.Flags(), "--trace-config", "rate=1")...)
	words := []client.Tensor{client.NewStrings("body", []string{"quiet"})}
	over := func(url, kind, body string) func(traceparent string) error {
		return func(traceparent string) error {
			s.post(url, kind, body, [2]string{"traceparent", traceparent}) // which reports errors
			return nil
		}
	}
	for way, c := range map[string]struct {
		protocol string
		send     func(traceparent string) error
	}{
		"MMS":                {"mms", over(s.infer+"/predictions/m", "text/plain", "quiet")},
		"generate":           {"http", over(s.HTTP+"/v2/models/m/generate", "application/json", `{"body":["quiet"]}`)},
		"a stream of events": {"http", over(s.HTTP+"/v2/models/m/generate_stream", "application/json", `{"body":["quiet"]}`)},
		"a gRPC stream": {"grpc", func(traceparent string) error {
			stream, err := s.Closing(client.NewGRPC(s.GRPC, client.Options{Header: map[string]string{"traceparent": traceparent}})).Stream(t.Context())
			if err != nil {
				return err
			}
			defer stream.Close()
			if err := stream.Send(&client.Request{Model: "m", Inputs: words}); err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}},
	} {
		id, span := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()|1), fmt.Sprintf("%016x", rand.Uint64()|1)
		if err := c.send("00-" + id + "-" + span + "-01"); err != nil {
			t.Errorf("%s: %v", way, err)
			continue
		}
		all := collector.Trace(t, id, 6)
		want := []string{"InferRequest", "InferRequest/m", "InferRequest/m/compute", "InferRequest/m/compute/batch", "InferRequest/m/compute/execute", "InferRequest/m/queue"}
		if got := tree(all, span); !slices.Equal(got, want) {
			t.Errorf("%s: the trace is\n%s\nwant\n%s", way, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := named(t, all, "InferRequest").Attributes["shoal.protocol"]; got != c.protocol {
			t.Errorf("%s: the protocol is %q, want %q", way, got, c.protocol)
		}
	}

	// The local socket has no headers.
	s.local(t, `
import numpy as np, shoal
shoal.load("m", url="unix:" + SOCKET).forward(np.array([b"quiet"], dtype=object))
`)
	servertest.Eventually(t, "a trace of the local socket", func() bool {
		return slices.ContainsFunc(collector.All(), func(one servertest.Span) bool { return one.Attributes["shoal.protocol"] == "local" })
	})
}
