//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// generator is a model that has each request run again until it has run as often as its input
// says. It answers once, or with a response for each run.
const generator = `
import numpy as np, time
class TritonPythonModel:
    def initialize(self, args):
        self.decoupled, self.runs = "\"decoupled\":true" in args["model_config"], {}
    def execute(self, requests):
        time.sleep(0.002)
        responses = [self.step(r) for r in requests]
        return None if self.decoupled else responses
    def step(self, r):
        key = r.correlation_id()
        start = bool(pb_utils.get_input_tensor_by_name(r, "START").as_numpy()[0, 0])
        assert start == (key not in self.runs)
        self.runs[key] = run = self.runs.get(key, 0) + 1
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), run, np.float32))])
        last = run >= pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy()[0, 0]
        if last:
            del self.runs[key]
        else:
            r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        if not self.decoupled:
            return response if last else None
        r.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
`

const iterativeConfig = `
sequence_batching {
  iterative_sequence: true
  oldest { max_candidate_sequences: 8 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
}
`

// iterativeRepository is a repository with the generator, as the model m.
func iterativeRepository(t *testing.T, more string) string {
	t.Helper()
	return sequenceRepository(t, iterativeConfig+more, generator)
}

// sequenceRepository is a repository with a Python model whose configuration has sequence_batching.
func sequenceRepository(t *testing.T, config, model string) string {
	t.Helper()
	dir := servertest.PythonRepository(t, config, model)
	file := filepath.Join(dir, "m", "config.pbtxt")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(text, []byte("dynamic_batching { }\n"), nil, 1), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestIterativeRequestsShareBatchesInAnyOfTheirRuns sends requests that take different numbers of
// runs at the same time, over both protocols.
func TestIterativeRequestsShareBatchesInAnyOfTheirRuns(t *testing.T) {
	s := servertest.Start(t, iterativeRepository(t, ""))
	const clients, runs = 12, 20 // more clients than slots
	var all sync.WaitGroup
	total := 0
	for n := range clients {
		c, want := s.Client(), float32(runs+n)
		if n%2 == 1 {
			c = s.Web()
		}
		total += runs + n
		all.Go(func() {
			resp, err := c.Infer(t.Context(), countTo("m", want))
			if err != nil {
				t.Errorf("%v runs: %v", want, err)
				return
			}
			if got, err := client.Values[float32](resp.Output("OUTPUT")); err != nil || got[0] != want {
				t.Errorf("%v runs, want %v (%v)", got, want, err)
			}
		})
	}
	all.Wait()
	batches := 0
	for _, b := range s.Batches("m") {
		batches += b.Count
	}
	if batches == 0 || batches > total/2 {
		t.Errorf("%d runs of requests in %d batches, want that requests share them", total, batches)
	}
}

// TestAnIterativeModelSendsAResponseInEachRun reads responses over gRPC and as events over HTTP,
// and leaves in the middle.
func TestAnIterativeModelSendsAResponseInEachRun(t *testing.T) {
	s := servertest.Start(t, iterativeRepository(t, "model_transaction_policy { decoupled: true }\n"))
	stream, err := s.Client().Stream(t.Context())
	if err == nil {
		err = errors.Join(stream.Send(countTo("m", 5)), stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var got []float32
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		values, err := client.Values[float32](resp.Output("OUTPUT"))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, values[0])
	}
	if want := []float32{1, 2, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("responses %v, want %v", got, want)
	}
	code, body := s.Post("/v2/models/m/generate_stream", `{"INPUT": [3, 3, 3, 3]}`)
	if code != 200 || strings.Count(body, "data: ") != 3 {
		t.Errorf("%d %s, want three events", code, body)
	}

	// A request that would run for an hour ends when its client leaves, and frees its slot.
	for range 9 {
		endless, err := s.Client().Stream(t.Context())
		if err == nil {
			err = endless.Send(countTo("m", 2e6))
		}
		if err == nil {
			_, err = endless.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		endless.Close()
	}
	servertest.Eventually(t, "no request runs", func() bool {
		before := s.Batches("m")
		_, body := s.Post("/v2/models/m/generate_stream", `{"INPUT": [1, 1, 1, 1]}`)
		after := s.Batches("m")
		return strings.Count(body, "data: ") == 1 && after[1].Count == before[1].Count+1
	})
}

// echoTwice is a decoupled model that sends each input of a sequence, and then the sum so far. Rows
// without a request are answered, too, and no client receives that.
const echoTwice = `
import numpy as np
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        for r in requests:
            x, start, ready = [pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in ("INPUT", "START", "READY")]
            key = r.correlation_id()
            self.sums[key] = x + (0 if start[0, 0] else self.sums.get(key, 0))
            assert ready[0, 0] or not x.any()
            sender = r.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x)]))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", self.sums[key])]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`

// TestADecoupledModelHasSequences sends requests of two sequences in turn, each in a row of its own.
func TestADecoupledModelHasSequences(t *testing.T) {
	s := servertest.Start(t, sequenceRepository(t, `
model_transaction_policy { decoupled: true }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  direct { }
  control_input [
    { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
    { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
  ]
}
`, echoTwice))
	stream, err := s.Client().Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	sums := map[int]float32{}
	for i := range 6 {
		id, x := 1+i%2, float32(10+i)
		in := countTo("m", x)
		in.Parameters = map[string]any{"sequence_id": id, "sequence_start": i < 2, "sequence_end": i >= 4}
		if err := stream.Send(in); err != nil {
			t.Fatal(err)
		}
		sums[id] += x
		for k, want := range []float32{x, sums[id]} {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := client.Values[float32](resp.Output("OUTPUT")); err != nil || got[0] != want || resp.Final != (k == 1) {
				t.Errorf("request %d, response %d: %v, final %t (%v), want %v", i, k, got, resp.Final, err, want)
			}
		}
	}
}
