//go:build e2e && linux

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/test/servertest"
)

// faults is a server in which panics are injected.
type faults struct {
	*servertest.Server
	file   string
	socket string
}

func (f *faults) http(model string) error {
	code, body := f.Post("/v2/models/"+model+"/infer", `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`)
	if code != http.StatusOK {
		return fmt.Errorf("status %d: %s", code, body)
	}
	return nil
}

func (f *faults) grpc() error { return servertest.Ask(f.T.Context(), f.Client(), "sim", 1) }

// stream sends one request on a stream of its own.
func (f *faults) stream() error {
	c, err := kservepb.NewGRPCInferenceServiceClient(f.Dial()).ModelStreamInfer(f.T.Context())
	if err == nil {
		err = c.Send(servertest.RawRequest(servertest.SmallRequest("sim", 1)))
	}
	if err != nil {
		return err
	}
	answer, err := c.Recv()
	if err == nil && answer.GetErrorMessage() != "" {
		err = errors.New(answer.GetErrorMessage())
	}
	return errors.Join(err, c.CloseSend())
}

// local greets the server over the local socket.
func (f *faults) local() error {
	c, err := net.Dial("unixpacket", f.socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	const hello, welcome = 1, 16
	if _, err := c.Write(memfd.AppendFrame(nil, hello, 0, 0, [3]uint64{1})); err != nil {
		return err
	}
	answer := make([]byte, 1024)
	n, err := c.Read(answer)
	if err != nil || n == 0 || answer[0] != welcome {
		return fmt.Errorf("a frame of kind %d: %s, %w", answer[0], answer[:n], err)
	}
	return nil
}

func (f *faults) load(model string) error {
	if code, body := f.Post("/v2/repository/models/"+model+"/load", ""); code != http.StatusOK {
		return fmt.Errorf("status %d: %s", code, body)
	}
	return nil
}

var panicsTotal = regexp.MustCompile(`(?m)^shoal_panics_total (\d+)$`)

// panics returns how many panics the server has counted.
func (f *faults) panics() int {
	page := f.MetricsPage()
	m := panicsTotal.FindStringSubmatch(page)
	if m == nil {
		f.T.Fatal(page)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// inject makes the server panic at a point the next time that it gets there.
func (f *faults) inject(point string) {
	part := f.file + ".part" // so that it is never seen half written
	if err := errors.Join(os.WriteFile(part, []byte(point), 0o600), os.Rename(part, f.file)); err != nil {
		f.T.Fatal(err)
	}
}

// TestNoPanicEndsTheServer injects a panic at each point that works for clients. The
// request fails, and the next one is answered.
func TestNoPanicEndsTheServer(t *testing.T) {
	file := servertest.Faulty(t)
	dir := servertest.PythonRepository(t, "", `
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("a frame for the server")
        for r in requests:
            if pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy().flat[0] == 1:
                x = pb_utils.Tensor("INPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy() + 1)
                pb_utils.InferenceRequest(model_name="sim", inputs=[x], requested_output_names=["OUTPUT"]).exec()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy())]) for r in requests]
`)
	for name, text := range map[string]string{"sim": servertest.Config(time.Millisecond, "1", "dynamic_batching { }"), "other": servertest.Config(time.Millisecond, "1", "")} {
		if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "socket")
	f := &faults{file: file, socket: socket}
	f.Server = servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=m", "--load-model=sim", "--local-socket="+socket, "--batching=triton")
	simulated, python := func() error { return f.http("sim") }, func() error { return f.http("m") }
	points := []struct {
		name string
		ask  func() error
	}{
		{"http", simulated},
		{"join", simulated},
		{"split", simulated},
		{"engine", simulated},
		{"grpc handler", f.grpc},
		{"grpc unmarshal", f.grpc},
		{"grpc marshal", f.grpc},
		{"grpc stream", f.stream},
		{"grpc read", f.grpc},
		{"grpc write", f.grpc},
		{"local read", f.local},
		{"load", func() error { return f.load("other") }},
		{"python read", python},
		{"python call", python},
	}
	for _, p := range points { // the control: without a fault all of them work
		if err := p.ask(); err != nil {
			t.Fatalf("%s, without a panic: %v\n%s", p.name, err, f.Log())
		}
	}
	if n := f.panics(); n != 0 {
		t.Fatalf("%d panics were counted before the first\n%s", n, f.Log())
	}
	for i, p := range points {
		f.fault(t, p.name, i+1, p.ask)
	}
	// Ten in a minute make the server unready, and end the records with stacks.
	if n := strings.Count(f.Log(), "recovered from a panic"); n != 10 {
		t.Errorf("%d records of panics, want 10\n%s", n, f.Log())
	}
}

// fault injects panic number n at a point that ask gets to.
func (f *faults) fault(t *testing.T, point string, n int, ask func() error) {
	t.Helper()
	f.inject(point)
	err := ask()
	if point == "grpc write" { // the answer has been sent before
		servertest.Eventually(t, "the panic", func() bool { return f.panics() == n })
		err = cmp.Or(err, errors.New("the connection was closed"))
	}
	if _, missing := os.Stat(f.file); missing == nil {
		t.Errorf("%s: nothing got there; answered %v", point, err)
		_ = os.Remove(f.file)
	}
	if err == nil && point != "python read" { // a worker that logs does not wait for an answer
		t.Errorf("%s: the request that panicked was answered", point)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err = ask(); err == nil || !strings.HasPrefix(point, "python") && point != "grpc write" || time.Since(began) > 20*time.Second {
			break // a Python worker takes a while to start again, and a client to notice that its connection is closed
		}
	}
	if err != nil {
		t.Errorf("%s: the next request gets %v\n%s", point, err, f.Log())
	}
	if got := f.panics(); got != n {
		t.Errorf("%s: %d panics counted, want %d", point, got, n)
	}
	want := http.StatusOK
	if n >= 10 {
		want = http.StatusBadRequest
	}
	if code, _ := f.Get("/v2/health/ready"); code != want {
		t.Errorf("%s: ready is %d after %d panics, want %d", point, code, n, want)
	}
}

// TestBatchMatesOfAPanicAreAnswered has requests share batches while one batch panics. At
// most the requests of that batch fail, and all others get their own rows.
func TestBatchMatesOfAPanicAreAnswered(t *testing.T) {
	f := &faults{file: servertest.Faulty(t)}
	f.Server = servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{
		"mlp": {File: onnxtest.Model("mlp"), Config: "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000 }"},
	}))
	c := f.Client()
	first, err := c.Infer(t.Context(), servertest.Vector("mlp"))
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(first.Outputs[0].Data)
	for _, point := range []string{"join", "engine", "split"} {
		var answered, failed atomic.Int64
		var clients sync.WaitGroup
		f.inject(point)
		for range 32 {
			clients.Go(func() {
				got, err := c.Infer(t.Context(), servertest.Vector("mlp"))
				switch {
				case err != nil:
					failed.Add(1)
				case !slices.Equal(got.Outputs[0].Data, want):
					t.Errorf("%s: an answer differs", point)
				default:
					answered.Add(1)
				}
			})
		}
		clients.Wait()
		t.Logf("%s: %d answered, %d failed", point, answered.Load(), failed.Load())
		if _, missing := os.Stat(f.file); missing == nil || failed.Load() > 8 {
			t.Errorf("%s: %d of 32 failed, want at most the 8 of one batch; injected: %v", point, failed.Load(), missing != nil)
		}
	}
	if n := f.panics(); n != 3 {
		t.Errorf("%d panics counted, want 3\n%s", n, f.Log())
	}
	if n := strings.Count(f.Log(), "instance replaced after a panic"); n != 3 {
		t.Errorf("%d instances replaced, want 3\n%s", n, f.Log())
	}
}
