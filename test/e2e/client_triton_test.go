//go:build e2e && linux

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// tritonRepository has a model that returns its input, and one that returns as many
// numbers as its input says.
func tritonRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, model := range map[string][2]string{
		"identity": {`max_batch_size: 8 dynamic_batching { }
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]`, `
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
`},
		"repeat": {`model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "INDEX" data_type: TYPE_INT32 dims: [ 1 ] } ]`, `
        for r in requests:
            sender = r.get_response_sender()
            for i in range(int(r.inputs()[0].as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("INDEX", np.array([i], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`},
	} {
		script := "import numpy as np\nimport triton_python_backend_utils as pb_utils\nclass TritonPythonModel:\n    def execute(self, requests):" + model[1]
		err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte("backend: \"python\"\n"+model[0]), 0o644)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name, "1", "model.py"), []byte(script), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// startTriton runs a real Triton, if there is one, and returns where it listens. It is a
// server without metrics and without a log.
func startTriton(t *testing.T) *servertest.Server {
	t.Helper()
	binary, err := filepath.Abs(filepath.Join(servertest.Root, "bin", "tritonserver", "tritonserver"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("There is no Triton in bin; tools/get-tritonserver brings it.")
	}
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0") // Triton cannot say which port it chose
		if err != nil {
			t.Fatal(err)
		}
		_, ports[i], _ = net.SplitHostPort(l.Addr().String())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	cmd := exec.Command(binary, "--model-repository="+tritonRepository(t), "--allow-metrics=false",
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port="+ports[0], "--grpc-port="+ports[1])
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its status is not ours to judge
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return &servertest.Server{T: t, Cmd: cmd, HTTP: "http://127.0.0.1:" + ports[0], GRPC: "127.0.0.1:" + ports[1]}
}

func TestTheGoClientCallsTriton(t *testing.T) {
	s := startTriton(t)
	clients := goClients(s, client.Options{})
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if ready, _ := clients["HTTP"].Ready(t.Context()); ready {
			break
		}
		if time.Since(began) > servertest.StartPatience {
			t.Fatalf("Triton is not ready after %v", servertest.StartPatience)
		}
	}
	for protocol, c := range clients {
		t.Run(protocol, func(t *testing.T) {
			req := row("x", 1, 2, 3, 4)
			req.Model, req.Timeout, req.Parameters = "identity", time.Second, map[string]any{"sequence_id": 1, "color": "red"}
			resp, err := c.Infer(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			values, err := client.Values[float32](resp.Output("OUTPUT"))
			if err != nil || resp.ID != "x" || !slices.Equal(values, []float32{1, 2, 3, 4}) {
				t.Errorf("got %v, %v, %v", resp, values, err)
			}
			meta, err := c.ServerMetadata(t.Context())
			if err != nil || meta.Name != "triton" {
				t.Errorf("metadata: %v, %v", meta, err)
			}
			awaitCounted(t, c)
			if _, err := c.Metadata(t.Context(), "nosuch", ""); !errors.Is(err, client.NotFound) {
				t.Errorf("got %v", err)
			}
			if _, err := c.Infer(t.Context(), countRequest(1)); !errors.Is(err, client.Unsupported) {
				t.Errorf("a decoupled model: got %v", err)
			}
		})
	}
	stream, err := clients["gRPC"].Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := errors.Join(stream.Send(countRequest(2)), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	var heard []string
	for {
		resp, err := stream.Recv()
		if resp == nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		values, _ := client.Values[int32](resp.Output("INDEX"))
		heard = append(heard, fmt.Sprint(values, resp.Final, err))
	}
	if want := []string{"[0] false <nil>", "[1] false <nil>", "[] true <nil>"}; !slices.Equal(heard, want) {
		t.Errorf("got %q, want %q", heard, want)
	}
}

// awaitCounted waits until the request is in the statistics: Triton counts a request after
// it has sent the response.
func awaitCounted(t *testing.T, c *client.Client) {
	t.Helper()
	for range 500 {
		statistics, err := c.Statistics(t.Context(), "identity", "")
		if err != nil || len(statistics) != 1 {
			t.Errorf("statistics: %v, %v", statistics, err)
			return
		}
		if statistics[0].Success.Count > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the request is not in the statistics")
}

// countRequest asks the decoupled model for n responses.
func countRequest(n int32) *client.Request {
	return &client.Request{Model: "repeat", Inputs: []client.Tensor{client.NewTensor("COUNT", []int32{n})}}
}

func TestCommandsUseTriton(t *testing.T) {
	s := startTriton(t)
	web := strings.TrimPrefix(s.HTTP, "http://")
	servertest.Eventually(t, "Triton is ready", func() bool {
		_, status := shoal(t, "health", "-u", web)
		return status == 0
	})
	for protocol, address := range map[string]string{"http": web, "grpc": s.GRPC} {
		tryAll(t, address, protocol, []try{
			{"ls", 0, `(?m)^identity +1 +READY +INPUT FP32\[n,4\] → OUTPUT FP32\[n,4\]$`},
			{"health", 0, `^the server is ready\n$`},
			{"health identity", 0, `^model "identity" is ready\n$`},
			{"health nosuch", 1, `there is no model "nosuch"; the server has identity, repeat`},
			{"infer identity --random -b 2", 0, `^OUTPUT FP32\[2,4\] = \[0\.`},
			{"infer idntity --random", 1, `there is no model "idntity"; did you mean "identity"\?`},
			{"infer repeat --random", 1, `decoupled`},
			{"load identity", 1, `not allowed .*start it with --model-control-mode=explicit`},
			{"unload identity", 1, `not allowed .*start it with --model-control-mode=explicit`},
			{"bench identity --quick", 0, `(?s)^identity: \d+ req/s with 1 client, .* times the throughput\.\n$`},
		})
	}
	tryAll(t, web, "http", []try{{"explain identity", 1, `is triton 2\.\d+\.\d+, which cannot explain its models`}})
}
