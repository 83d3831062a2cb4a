//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// manyAndAsking is a repository of a model that sends as many responses as the first
// number of a request says, and of one that asks it, and adds up what it answers.
func manyAndAsking(t *testing.T) string {
	t.Helper()
	dir := servertest.PythonRepository(t, "model_transaction_policy { decoupled: true }\n", `
import threading
import numpy as np
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            threading.Thread(target=self.send, args=(r.get_response_sender(), int(r.inputs()[0].as_numpy()[0, 0]))).start()
    def send(self, sender, count):
        for i in range(count):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), i, np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`)
	config, err := os.ReadFile(filepath.Join(dir, "m", "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Replace(string(config), "decoupled: true", "decoupled: false", 1)
	for file, text := range map[string]string{"config.pbtxt": plain, "1/model.py": `
import json
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(r) for r in requests]
    def one(self, r):
        color = json.loads(r.parameters()).get("color", "none")
        asked = pb_utils.InferenceRequest(model_name="m", requested_output_names=["OUTPUT"], inputs=[pb_utils.Tensor("INPUT", r.inputs()[0].as_numpy())])
        if color == "once":
            return pb_utils.InferenceResponse(error=asked.exec().error())
        tensors = [t.as_numpy() for a in asked.exec(decoupled=True) for t in a.output_tensors()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", sum(tensors))], parameters={"color": color, "answers": len(tensors)})
`} {
		path := filepath.Join(dir, "asking", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func countTo(model string, n float32) *client.Request {
	in := servertest.SmallRequest(model, 1)
	in.Inputs[0].Data = servertest.Floats(n, n, n, n)
	return in
}

// TestADecoupledModelAnswersOnAStream asks for five responses, none, and two at a time.
func TestADecoupledModelAnswersOnAStream(t *testing.T) {
	s := servertest.Start(t, manyAndAsking(t))
	c := s.Client()
	stream, err := c.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for id, n := range map[string]float32{"five": 5, "none": 0, "two": 2} {
		in := countTo("m", n)
		in.ID = id
		if err := stream.Send(in); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	var ended []string // those that were told that no more responses follow
	for {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err, out)
		}
		if out.Final && len(out.Outputs) == 0 {
			ended = append(ended, out.ID)
			continue
		}
		id, i := out.ID, float32(seen[out.ID])
		if !bytes.Equal(out.Outputs[0].Data, servertest.Floats(i, i, i, i)) {
			t.Errorf("response %v of %s is %v", i, id, out)
		}
		seen[id]++
	}
	if fmt.Sprint(seen) != "map[five:5 two:2]" {
		t.Errorf("responses: %v", seen)
	}
	if slices.Sort(ended); fmt.Sprint(ended) != "[five none two]" {
		t.Errorf("these ended: %v", ended)
	}
	_, err = c.Infer(t.Context(), countTo("m", 1))
	if want := "ModelInfer RPC doesn't support models with decoupled transaction policy"; !errors.Is(err, client.Unsupported) || servertest.Sentence(err) != want {
		t.Errorf("a call: %v", err)
	}
	// Status and body are compared as they are sent.
	resp, err := servertest.HTTPClient.Post(s.HTTP+"/v2/models/m/infer", "application/json", strings.NewReader(`{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"data":[1,1,1,1]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if want := `{"error":"HTTP end point doesn't support models with decoupled transaction policy"}`; resp.StatusCode != http.StatusNotImplemented || string(body) != want {
		t.Errorf("over HTTP: %d %s", resp.StatusCode, body)
	}
}

// TestAModelAsksAnother has a model ask one that answers four times.
func TestAModelAsksAnother(t *testing.T) {
	s := servertest.Start(t, manyAndAsking(t))
	c := s.Client()
	in := countTo("asking", 4)
	in.Parameters = map[string]any{"color": "red"}
	out, err := c.Infer(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Outputs[0].Data, servertest.Floats(6, 6, 6, 6)) || out.Parameters["color"] != "red" || out.Parameters["answers"] != int64(4) {
		t.Errorf("it answered %v", out)
	}
	in.Parameters["color"] = "once"
	_, err = c.Infer(t.Context(), in)
	if want := "Model m - Error when running inference: Model m is using the decoupled."; !errors.Is(err, client.Internal) || !strings.HasPrefix(servertest.Sentence(err), want) {
		t.Errorf("asked once: %v", err)
	}
	// Over HTTP it is the order of the JSON that is compared.
	resp, err := servertest.HTTPClient.Post(s.HTTP+"/v2/models/asking/infer", "application/json",
		strings.NewReader(`{"parameters":{"color":"blue"},"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"data":[2,2,2,2]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if want := `"parameters":{"answers":2,"color":"blue"},"outputs":[{"name":"OUTPUT","datatype":"FP32","shape":[1,4],"data":[1.0,1.0,1.0,1.0]}]}`; !strings.HasSuffix(string(body), want) {
		t.Errorf("over HTTP: %s", body)
	}
}
