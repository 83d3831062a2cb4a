//go:build e2e && linux

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// counting is a decoupled model that sends the numbers from 0 to COUNT, one every
// millisecond, until its client has gone. Then it writes the time to a file.
const counting = `
import os, threading, time
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            count = int(pb_utils.get_input_tensor_by_name(r, "COUNT").as_numpy().flat[0])
            threading.Thread(target=self.send, args=(r.get_response_sender(), count)).start()

    def send(self, sender, count):
        for i in range(count):
            if sender.is_cancelled():
                with open(%q, "w") as file:
                    file.write(str(time.time()))
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("INDEX", np.array([i], np.int32))]))
            time.sleep(0.001)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`

// countingServer returns a server with that model, and the file that it writes.
func countingServer(t *testing.T) (s *servertest.Server, cancelled string) {
	t.Helper()
	cancelled = filepath.Join(t.TempDir(), "cancelled")
	dir := servertest.PythonRepository(t, "", fmt.Sprintf(counting, cancelled))
	config := fmt.Sprintf(`backend: "python"
model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: 1 }
output { name: "INDEX" data_type: TYPE_INT32 dims: 1 }
parameters { key: "python" value { string_value: %q } }
`, servertest.PythonInterpreter(t))
	if err := os.WriteFile(filepath.Join(dir, "m", "config.pbtxt"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return servertest.Start(t, dir), cancelled
}

func TestADecoupledModelAnswersOverHTTP(t *testing.T) {
	s, _ := countingServer(t)
	const event = `{"INDEX":%d,"model_name":"m","model_version":"1"}`
	for _, count := range []int{0, 1, 3} {
		var want strings.Builder
		for i := range count {
			fmt.Fprintf(&want, "data: "+event+"\n\n", i)
		}
		if status, body := s.Post("/v2/models/m/generate_stream", fmt.Sprintf(`{"COUNT":%d}`, count)); status != http.StatusOK || body != want.String() {
			t.Errorf("%d events: status %d, %q", count, status, body)
		}
		only := fmt.Sprintf(event, 0)
		if count != 1 {
			only = `{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"}`
		}
		if status, body := s.Post("/v2/models/m/versions/1/generate", fmt.Sprintf(`{"COUNT":[%d]}`, count)); status != http.StatusOK || body != only {
			t.Errorf("%d responses: status %d, %s, want %s", count, status, body, only)
		}
	}
}

// Events arrive at curl while the model sends them: the first one long before the last.
func TestCurlReadsAStreamWhileTheModelSends(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	s, _ := countingServer(t)
	const count = 500 // one every millisecond
	cmd := exec.CommandContext(t.Context(), curl, "--no-buffer", "--silent", "--fail", "--data", fmt.Sprintf(`{"COUNT":%d}`, count), s.HTTP+"/v2/models/m/generate_stream")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var events int
	var first, last time.Time
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			if last = time.Now(); events == 0 {
				first = last
			}
			events++
		}
	}
	if err := cmd.Wait(); err != nil || events != count {
		t.Errorf("%d events: %v, want %d", events, err, count)
	}
	if took := last.Sub(first); took < count*time.Millisecond/2 {
		t.Errorf("all events arrived within %v, want at least %v: they were held back", took, count*time.Millisecond/2)
	}
}

// A model learns within 50 ms that its client has gone. The control is a client that stays:
// it gets everything.
func TestAModelIsNotifiedWhenAClientOfGenerateLeaves(t *testing.T) {
	s, file := countingServer(t)
	const rounds = 5
	var delays []time.Duration
	for range rounds {
		left := leaveStream(t, s, 1_000_000)
		var cancelled float64
		servertest.Eventually(t, "the model is notified", func() bool {
			text, err := os.ReadFile(file)
			if err == nil {
				cancelled, err = strconv.ParseFloat(string(text), 64)
			}
			return err == nil
		})
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		took := time.Duration((cancelled - float64(left.UnixNano())/1e9) * float64(time.Second))
		delays = append(delays, took)
	}
	slices.Sort(delays) // a machine with other work delays one now and then
	t.Logf("notified after %v", delays)
	if delays[rounds/2] > 50*time.Millisecond {
		t.Errorf("the model is notified %v after its client has left, want at most 50ms", delays[rounds/2])
	}
	if _, body := s.Post("/v2/models/m/generate_stream", `{"COUNT":100}`); strings.Count(body, "data: ") != 100 {
		t.Errorf("a client that stays gets %d events, want 100", strings.Count(body, "data: "))
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the model is notified although its client has stayed")
	}
}

// leaveStream opens a stream of count responses, closes its connection after the third,
// and returns when.
func leaveStream(t *testing.T, s *servertest.Server, count int) time.Time {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"COUNT":%d}`, count)
	if _, err := fmt.Fprintf(conn, "POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // the connection is closed
	three := make([]byte, 3*len("data: {\"INDEX\":0,\"model_name\":\"m\",\"model_version\":\"1\"}\n\n"))
	if _, err := io.ReadFull(resp.Body, three); err != nil {
		t.Fatal(err)
	}
	left := time.Now()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	return left
}
