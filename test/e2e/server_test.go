//go:build e2e

// Package e2e tests the built binary as its users meet it: started from a shell,
// asked over HTTP and gRPC, and ended by signals.
package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// A server is one run of the binary.
type server struct {
	t       testing.TB
	cmd     *exec.Cmd
	http    string // http://host:port
	grpc    string // host:port
	metrics string // http://host:port

	stderr    io.Closer      // our end of it
	addresses chan [2]string // protocol and address; size 3, one for each
	ended     chan struct{}
	err       error // of the process, once ended is closed

	mu  sync.Mutex // guards the following
	log strings.Builder
}

// root is the top of the repository.
const root = "../.."

var binaryName = flag.String("binary", "shoal", "the server that is tested, in bin")

// startPatience is how long a server may take to load its models and to listen:
// long, since some tests load hundreds.
const startPatience = time.Minute

var listening = regexp.MustCompile(`msg=listening protocol=(\w+) address=(\S+)`)

// start runs the binary on free ports of the loopback interface, with further
// flags if there are any, and waits until its models are loaded.
func start(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	s := launch(t, repository, append([]string{"--http-port=0", "--grpc-port=0", "--metrics-port=0"}, flags...)...)
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	for range 3 {
		select {
		case a := <-s.addresses:
			switch a[0] {
			case "http":
				s.http = "http://" + a[1]
			case "grpc":
				s.grpc = a[1]
			case "metrics":
				s.metrics = "http://" + a[1]
			}
		case <-s.ended:
			t.Fatalf("the server ended: %v\n%s", s.err, s.logged())
		case <-patience.C:
			t.Fatalf("the server does not listen after %v\n%s", startPatience, s.logged())
		}
	}
	s.awaitReady()
	return s
}

// launch runs the binary, and waits for nothing.
func launch(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	s := &server{t: t, ended: make(chan struct{}), addresses: make(chan [2]string, 3)}
	binary, err := filepath.Abs(filepath.Join(root, "bin", *binaryName))
	if err != nil {
		t.Fatal(err)
	}
	// What one test measures is not for the next.
	s.cmd = exec.Command(binary, append([]string{"serve", "--model-repository", repository, "--calibration-dir="}, flags...)...)
	out, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stderr = out
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("%v; run make build first", err)
	}
	go s.read(out) // ends with the process
	t.Cleanup(func() { s.kill() })
	return s
}

// awaitReady waits until the models are loaded, which begins when the server
// listens.
func (s *server) awaitReady() {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < startPatience; time.Sleep(5 * time.Millisecond) {
		req, err := http.NewRequest(http.MethodGet, s.http+"/v2/health/ready", nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if status, _, _, err := fetch(req); err == nil && status == http.StatusOK {
			return
		}
		if s.endsWithin(0) {
			s.t.Fatalf("the server ended: %v\n%s", s.err, s.logged())
		}
	}
	s.t.Fatalf("the server is not ready after %v\n%s", startPatience, s.logged())
}

func (s *server) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.mu.Lock()
		s.log.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			s.addresses <- [2]string{m[1], m[2]}
		}
	}
	s.err = s.cmd.Wait()
	close(s.ended)
}

func (s *server) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// signal sends SIGTERM.
func (s *server) signal() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Error(err)
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.ended
}

// client connects to the server over gRPC.
func (s *server) client() kservepb.GRPCInferenceServiceClient {
	s.t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return kservepb.NewGRPCInferenceServiceClient(conn)
}

// get returns the status and the body of a page.
func (s *server) get(path string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.http+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	status, _, body, err := fetch(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return status, string(body)
}

var httpClient = &http.Client{Timeout: 30 * time.Second}

// fetch sends a request and returns what is answered.
func fetch(req *http.Request) (status int, header http.Header, body []byte, err error) {
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	if resp.Close {
		resp.Header.Set("Connection", "close") // which net/http has taken out
	}
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, body, errors.Join(err, resp.Body.Close())
}

// endsWithin waits for the process to end, and reports whether it did.
func (s *server) endsWithin(d time.Duration) bool {
	patience := time.NewTimer(d)
	defer patience.Stop()
	select {
	case <-s.ended:
		return true
	case <-patience.C:
		return false
	}
}

// repositoryOf writes a model repository with one version of each model.
func repositoryOf(t testing.TB, configs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, config := range configs {
		if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// config writes the configuration of a small simulated model.
func config(takes time.Duration, instances, scheduling string) string {
	return `backend: "simulated"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: ` + instances + ` } ]
parameters { key: "fixed_us" value { string_value: "` + us(takes) + `" } }
` + scheduling
}

// ask sends rows of one number to a small model over gRPC.
func ask(ctx context.Context, c kservepb.GRPCInferenceServiceClient, model string, rows int) error {
	_, err := c.ModelInfer(ctx, smallRequest(model, rows))
	return err
}
