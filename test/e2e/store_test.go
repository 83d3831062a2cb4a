//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// A store is a run of the binary with a model store.
type store struct {
	*servertest.Server
	infer, manage, figures string // http://host:port
	dir                    string
}

// workerPath is the PATH with an interpreter that has numpy, and the binary.
func workerPath(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs(servertest.Root)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(top, "bin", "worker", "bin")
	if exec.Command(filepath.Join(bin, "python3"), "-c", "import numpy").Run() != nil {
		t.Skip("no interpreter has numpy: run make numpy")
	}
	return "PATH=" + bin + ":" + filepath.Join(top, "bin") + ":" + os.Getenv("PATH")
}

// serveStore runs a command that serves, in a directory, and waits until it listens.
func serveStore(t *testing.T, dir, command string) *store {
	t.Helper()
	s := &store{Server: &servertest.Server{T: t, Ended: make(chan struct{}), Addresses: make(chan [2]string, 6)}, dir: dir}
	s.Cmd = exec.Command("bash", "-c", "exec "+command+" --http-port=0 --grpc-port=0 --metrics-port=0 --calibration-dir=")
	s.Cmd.Dir, s.Cmd.Env = dir, append(os.Environ(), workerPath(t))
	out, err := s.Cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stderr = out
	if err := s.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.Read(out) // ends with the process
	t.Cleanup(func() { s.Kill() })
	at := map[string]*string{"inference": &s.infer, "management": &s.manage, "mms_metrics": &s.figures, "http": &s.HTTP, "grpc": &s.GRPC, "metrics": &s.Metrics}
	for s.figures == "" { // the last
		select {
		case a := <-s.Addresses:
			if address := at[a[0]]; address != nil {
				*address = "http://" + a[1]
			}
		case <-s.Ended:
			t.Fatalf("the server ended: %v\n%s", s.Err, s.Log())
		}
	}
	s.GRPC = strings.TrimPrefix(s.GRPC, "http://")
	return s
}

// sh runs commands of a page, with the addresses that there are.
func (s *store) sh(commands string) (string, error) {
	fit := strings.NewReplacer("localhost:8080", s.infer, "localhost:8081", s.manage, "localhost:8082", s.figures)
	return inDir(s.T, s.dir, fit.Replace(commands))
}

func inDir(t testing.TB, dir, commands string) (string, error) {
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), workerPath(t.(*testing.T)))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ping returns the status of the server's health, and 0 if it does not answer.
func (s *store) ping() int {
	req, err := http.NewRequest(http.MethodGet, s.infer+"/ping", nil)
	if err != nil {
		s.T.Fatal(err)
	}
	status, _, _, err := servertest.Fetch(req)
	if err != nil {
		return 0
	}
	return status
}

var pending = regexp.MustCompile(`nv_inference_pending_request_count{model="m",version="1"} (\d+)`)

// waiting returns how many requests are in the queue of m.
func (s *store) waiting() int {
	req, err := http.NewRequest(http.MethodGet, s.figures+"/metrics", nil)
	if err != nil {
		s.T.Fatal(err)
	}
	_, _, text, err := servertest.Fetch(req)
	if err != nil {
		s.T.Fatal(err)
	}
	n := 0
	if m := pending.FindSubmatch(text); m != nil {
		n, _ = strconv.Atoi(string(m[1]))
	}
	return n
}

// storeOf starts a server with a handler that is registered as m.
func storeOf(t *testing.T, handler, properties, registration string) *store {
	t.Helper()
	dir := t.TempDir()
	model := filepath.Join(dir, "store", "m")
	if err := os.MkdirAll(model, 0o755); err != nil {
		t.Fatal(err)
	}
	listen := "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
	for file, text := range map[string]string{filepath.Join(model, "service.py"): handler, filepath.Join(dir, "config.properties"): listen + properties} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := serveStore(t, dir, "shoal serve --model-store store --mms-config config.properties")
	// A directory without a manifest says nothing of itself.
	if out, err := s.sh("curl -sf -X POST 'localhost:8081/models?url=m&model_name=m&handler=service:handle&" + registration + "'"); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, s.Log())
	}
	return s
}

// predict returns status and answer.
func (s *store) predict(ctx context.Context, client *http.Client, body string) (int, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.infer+"/predictions/m", strings.NewReader(body))
	if err != nil {
		s.T.Error(err)
		return 0, ""
	}
	req.Header.Set("Content-Type", "text/plain")
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

const slowHandler = `
import time
ran = 0
def handle(data, context):
    global ran
    if data is None:
        return None
    if data[0]["body"] != "count":
        time.sleep(0.5)
        ran += len(data)
    return [str(ran) for _ in data]
`

// TestAThousandClientsOfAStoreAreAllAnswered is the load of the document: 10,000
// requests of 1,000 clients, for whom there is room in the queue.
func TestAThousandClientsOfAStoreAreAllAnswered(t *testing.T) {
	s := storeOf(t, "def handle(data, context):\n    return data and [d['body'] for d in data]\n", "job_queue_size=1000\n",
		"batch_size=8&max_batch_delay=50&initial_workers=1")
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	var failed atomic.Int64
	for range 1000 {
		all.Go(func() {
			for range 10 {
				if status, text := s.predict(t.Context(), client, "x"); status != http.StatusOK || text != "x" {
					if failed.Add(1) == 1 {
						t.Errorf("status %d: %s", status, text)
					}
				}
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of 10,000 failed", failed.Load())
	}
}

func TestWhoFindsNoPlaceInAStoreIsToldSo(t *testing.T) {
	s := storeOf(t, slowHandler, "job_queue_size=10\n", "batch_size=4&max_batch_delay=10&initial_workers=1")
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 60}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	var served, refused atomic.Int64
	for range 60 {
		all.Go(func() {
			switch status, text := s.predict(t.Context(), client, "x"); {
			case status == http.StatusOK:
				served.Add(1)
			case status == http.StatusServiceUnavailable && strings.Contains(text, "No worker is available to serve request for model: m."):
				refused.Add(1)
			default:
				t.Errorf("status %d: %s", status, text)
			}
		})
	}
	all.Wait()
	if served.Load() < 10 || refused.Load() == 0 {
		t.Errorf("%d are served and %d refused, of whom 10 can wait", served.Load(), refused.Load())
	}
	if _, text := s.predict(t.Context(), client, "count"); text != strconv.FormatInt(served.Load(), 10) {
		t.Errorf("%s ran, and %d were served", text, served.Load())
	}
}

func TestABadRequestOfAStoreFailsAlone(t *testing.T) {
	s := storeOf(t, `
def handle(data, context):
    if data is None:
        return None
    if any(d["body"] == "raise" for d in data):
        raise ValueError("no")
    for i, d in enumerate(data):
        if d["body"] == "bad":
            context.set_response_status(422, "Unprocessable", i)
    return [d["body"] for d in data]
`, "", "batch_size=8&max_batch_delay=2000&initial_workers=1&retry_apart=true")
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	for odd, want := range map[string]int{"bad": http.StatusUnprocessableEntity, "raise": http.StatusServiceUnavailable} {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				body, expected := "good", http.StatusOK
				if i == 3 {
					body, expected = odd, want
				}
				if status, text := s.predict(t.Context(), client, body); status != expected {
					t.Errorf("%s beside one that is %s: status %d, want %d: %s", body, odd, status, expected, text)
				}
			})
		}
		all.Wait()
	}
}

func TestClientsOfAStoreThatLeaveAreNotRun(t *testing.T) {
	s := storeOf(t, slowHandler, "", "initial_workers=1")
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() { s.predict(ctx, client, "x") })
	}
	servertest.Eventually(t, "in the queue", func() bool { return s.waiting() > 12 })
	waited := s.waiting()
	leave()
	all.Wait()
	_, text := s.predict(t.Context(), client, "count")
	if ran, err := strconv.Atoi(text); err != nil || ran > 24-waited+2 {
		t.Errorf("%s of 24 ran, of which %d waited when their clients left", text, waited)
	}
}

// TestNobodyIsLostWhenAStoreStops stops the server when one batch runs, which takes until then, and
// two wait.
func TestNobodyIsLostWhenAStoreStops(t *testing.T) {
	stopped := filepath.Join(t.TempDir(), "stopped")
	s := storeOf(t, fmt.Sprintf(`
import os, time
def handle(data, context):
    if data is None:
        return None
    while not os.path.exists(%q):
        time.sleep(0.01)
    return [d["body"] for d in data]
`, stopped), "", "batch_size=8&max_batch_delay=60000&initial_workers=1")
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 24}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() {
			if status, text := s.predict(t.Context(), client, "x"); status != http.StatusOK {
				t.Errorf("status %d: %s", status, text)
			}
		})
	}
	servertest.Eventually(t, "in the queue", func() bool { return s.waiting() == 16 })
	s.Terminate()
	if err := os.WriteFile(stopped, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if !s.EndsWithin(30*time.Second) || s.Err != nil {
		t.Errorf("the server ended with %v\n%s", s.Err, s.Log())
	}
}

func TestAKilledWorkerOfAStoreComesBack(t *testing.T) {
	s := storeOf(t, slowHandler, "", "batch_size=8&max_batch_delay=10&initial_workers=1")
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	if status := s.ping(); status != http.StatusOK {
		t.Fatalf("ping answers %d", status)
	}
	workers := servertest.Children(s.Cmd.Process.Pid)
	if len(workers) != 1 {
		t.Fatalf("%d workers, want 1", len(workers))
	}
	done := make(chan string, 1) // so that who asks does not wait for the test
	go func() {
		_, text := s.predict(t.Context(), client, "x")
		done <- text
	}()
	time.Sleep(100 * time.Millisecond) // its batch takes 500
	if err := syscall.Kill(workers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if text := <-done; !strings.Contains(text, "Worker died.") && !strings.HasPrefix(text, "1") {
		t.Errorf("its batch is told %s", text)
	}
	servertest.Eventually(t, "not healthy", func() bool { return s.ping() == http.StatusServiceUnavailable })
	if status, text := s.predict(t.Context(), client, "y"); status != http.StatusOK || text != "1" {
		t.Errorf("who waits for the next worker is told %d %s", status, text)
	}
	if status := s.ping(); status != http.StatusOK {
		t.Errorf("ping answers %d with a worker", status)
	}
}
