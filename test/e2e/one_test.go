//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// shouting is a handler whose answers cannot be those of another model.
const shouting = `
import time
def handle(data, context):
    if data is None:
        return None
    time.sleep(0.3 if any(d["body"] == b"slow" or d["body"] == "slow" for d in data) else 0)
    return [(d["body"] if isinstance(d["body"], str) else d["body"].decode()).upper() for d in data]
`

// archiveAndModel serves an archive, m, and an ONNX model, mlp, that is left as it is.
func archiveAndModel(t *testing.T, flags ...string) *store {
	t.Helper()
	onnxtest.Library(t)
	dir := t.TempDir()
	model := filepath.Join(dir, "store", "m")
	if err := os.MkdirAll(model, 0o755); err != nil {
		t.Fatal(err)
	}
	properties := "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
	for file, text := range map[string]string{filepath.Join(model, "service.py"): shouting, filepath.Join(dir, "config.properties"): properties} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := serveStore(t, dir, "shoal serve "+servertest.BareFile(t, "mlp")+" --model-store store --mms-config config.properties --local-socket="+filepath.Join(dir, "socket")+" "+strings.Join(flags, " "))
	s.AwaitReady()
	if out, err := s.sh("curl -sf -X POST 'localhost:8081/models?url=m&model_name=m&handler=service:handle&batch_size=4&initial_workers=1'"); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, s.Log())
	}
	return s
}

// post returns the answer to a request that is to succeed, as text: MMS's API has no public
// client, and of KServe's it is the JSON that is compared.
func (s *store) post(url, kind, body string, headers ...[2]string) string {
	s.T.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		s.T.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	for _, h := range headers {
		req.Header.Set(h[0], h[1])
	}
	status, _, text, err := servertest.Fetch(req)
	if err != nil || status != http.StatusOK {
		s.T.Errorf("%s: status %d, %v: %s", url, status, err, text)
	}
	return string(text)
}

func TestAnArchiveAndARepositoryAreOneServer(t *testing.T) {
	s := archiveAndModel(t)
	t.Run("the archive over HTTP", func(t *testing.T) {
		got := s.post(s.HTTP+"/v2/models/m/infer", "application/json", `{"inputs":[{"name":"body","datatype":"BYTES","shape":[2],"data":["quiet","words"]}]}`)
		if !strings.Contains(got, `"data":["QUIET","WORDS"]`) {
			t.Errorf("got %s", got)
		}
		_, about := s.Get("/v2/models/m")
		if want := `"inputs":[{"name":"body","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"body","datatype":"BYTES","shape":[-1]}]`; !strings.Contains(about, want) || !strings.Contains(about, `"1.0"`) {
			t.Errorf("its metadata is %s, want %s", about, want)
		}
		if status, _ := s.Get("/v2/models/m/versions/1.0/ready"); status != 200 {
			t.Errorf("version 1.0 is not found: %d", status)
		}
	})
	t.Run("the archive over gRPC", func(t *testing.T) {
		resp, err := s.Client().Infer(t.Context(), &client.Request{Model: "m", Inputs: []client.Tensor{client.NewStrings("body", []string{"quiet"})}})
		if err != nil {
			t.Fatal(err)
		}
		if texts, err := client.Strings(&resp.Outputs[0]); err != nil || fmt.Sprint(texts) != "[QUIET]" {
			t.Errorf("got %v, %v", texts, err)
		}
	})
	t.Run("the archive over the local socket", func(t *testing.T) {
		s.local(t, `
import numpy as np, shoal
answer = shoal.load("m", url="unix:" + SOCKET).forward(np.array([b"quiet", b"words"], dtype=object))
assert [bytes(a) if isinstance(a, bytes) else a.encode() for a in answer] == [b"QUIET", b"WORDS"], answer
`)
	})
	t.Run("the archive over MMS's API", func(t *testing.T) {
		if got := s.post(s.infer+"/predictions/m", "text/plain", "quiet"); got != "QUIET" {
			t.Errorf("got %q", got)
		}
	})
	const row = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,32],"data":[1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8]}]}`
	t.Run("the ONNX model over MMS's API", func(t *testing.T) {
		outputs := func(text string) string {
			var answer struct{ Outputs json.RawMessage }
			if err := json.Unmarshal([]byte(text), &answer); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			return string(answer.Outputs)
		}
		want := outputs(s.post(s.HTTP+"/v2/models/mlp/infer", "application/json", row))
		if got := outputs(s.post(s.infer+"/predictions/mlp", "application/json", row)); got != want || !strings.Contains(got, "FP32") {
			t.Errorf("got %s, want %s", got, want)
		}
	})
	t.Run("figures of both", func(t *testing.T) {
		s.AwaitLog(`msg="model measured" model=mlp version=1`)
		for _, at := range []string{s.Metrics, s.figures} {
			req, err := http.NewRequest(http.MethodGet, at+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _, text, err := servertest.Fetch(req)
			figures := string(text)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				`nv_inference_request_success{model="m",version="1"}`, `nv_inference_request_success{model="mlp",version="1"} 2`,
				`ts_inference_requests_total{model_name="m",model_version="1.0"}`, `shoal_workers{model_name="m",model_version="1.0"} 1`,
			} {
				if !strings.Contains(figures, want) {
					t.Errorf("%s has no %s", at, want)
				}
			}
		}
		for path, want := range map[string]string{
			"/v2/models/m/stats": `"name":"m"`, "/v2/models/mlp/stats": `"name":"mlp"`, "/v2/models/m/explain": "automatic", "/v2/models/mlp/explain": "automatic",
		} {
			if status, text := s.Get(path); status != 200 || !strings.Contains(text, want) {
				t.Errorf("%s: %d %s, want %s", path, status, text, want)
			}
		}
	})
	t.Run("management keeps off the repository's models", func(t *testing.T) {
		for _, command := range []string{"-X DELETE localhost:8081/models/mlp", "-X PUT 'localhost:8081/models/mlp?min_worker=2'", "-X POST 'localhost:8081/models?url=m&model_name=mlp&handler=service:handle'"} {
			if out, err := s.sh("curl -s " + command); err != nil || !strings.Contains(out, `"code": 409`) {
				t.Errorf("%s: %v %s", command, err, out)
			}
		}
	})
}

func TestOneDrainAnswersEveryProtocol(t *testing.T) {
	s := archiveAndModel(t)
	var all sync.WaitGroup
	all.Go(func() {
		if got := s.post(s.infer+"/predictions/m", "text/plain", "slow"); got != "SLOW" {
			t.Errorf("over MMS's API: %q", got)
		}
	})
	all.Go(func() {
		got := s.post(s.HTTP+"/v2/models/m/infer", "application/json", `{"inputs":[{"name":"body","datatype":"BYTES","shape":[1],"data":["slow"]}]}`)
		if !strings.Contains(got, "SLOW") {
			t.Errorf("over HTTP: %s", got)
		}
	})
	c := s.Client()
	all.Go(func() {
		_, err := c.Infer(context.Background(), &client.Request{Model: "m", Inputs: []client.Tensor{client.NewStrings("body", []string{"slow"})}})
		if err != nil {
			t.Errorf("over gRPC: %v", err)
		}
	})
	time.Sleep(100 * time.Millisecond)
	s.Terminate()
	all.Wait()
	if !s.EndsWithin(servertest.StartPatience) || s.Err != nil {
		t.Errorf("it does not end, or with %v\n%s", s.Err, s.Log())
	}
}

// local runs a Python program with SOCKET, the server's.
func (s *store) local(t *testing.T, program string) {
	t.Helper()
	top, err := filepath.Abs(servertest.Root)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(top, "bin", "worker", "bin", "python3"), "-c", fmt.Sprintf("SOCKET = %q\n", filepath.Join(s.dir, "socket"))+program)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(top, "python", "src"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, bytes.TrimSpace(out))
	}
}
