package servertest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// Post posts a body, and returns the status and the body of the answer, for tests of the
// JSON that clients read.
func (s *Server) Post(path, body string) (int, string) {
	s.T.Helper()
	req, err := http.NewRequest(http.MethodPost, s.HTTP+path, strings.NewReader(body))
	if err != nil {
		s.T.Fatal(err)
	}
	status, _, answer, err := Fetch(req)
	if err != nil {
		s.T.Fatal(err)
	}
	return status, string(answer)
}

// Load loads a model, which must succeed.
func (s *Server) Load(model string) {
	s.T.Helper()
	if err := s.Web().Load(s.T.Context(), model, client.LoadOptions{}); err != nil {
		s.T.Errorf("load of %s: %v", model, err)
	}
}

// Unload unloads a model, and waits until its memory is free.
func (s *Server) Unload(model string) {
	s.T.Helper()
	c := s.Web()
	if err := c.Unload(s.T.Context(), model); err != nil {
		s.T.Errorf("unload of %s: %v", model, err)
	}
	for range 1000 {
		index, err := c.Index(s.T.Context())
		if err != nil {
			s.T.Error(err)
		}
		if slices.ContainsFunc(index, func(e client.IndexEntry) bool { return e.Model == model && strings.HasPrefix(e.Reason, "unloaded") }) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.T.Errorf("%s is still being unloaded after 10 s", model)
}

// Batches are those of one size that a model has run: how many, how long they took, and
// how long joining their rows took before.
type Batches struct {
	Count  int
	Took   time.Duration
	Joined time.Duration
}

// Batches returns what the statistics of a model say of the batches that it has run, by
// their rows.
func (s *Server) Batches(model string) map[int]Batches {
	s.T.Helper()
	stats, err := s.Web().Statistics(s.T.Context(), model, "")
	if err != nil || len(stats) != 1 {
		s.T.Fatalf("statistics: %v %v", stats, err)
	}
	all := map[int]Batches{}
	for _, b := range stats[0].Batches {
		all[int(b.Size)] = Batches{int(b.ComputeInfer.Count), b.ComputeInfer.Time, b.ComputeInput.Time}
	}
	return all
}

// Explanation returns what the server knows of a model.
func (s *Server) Explanation(model string) (m explain.Model) {
	s.T.Helper()
	text, err := s.Web().Explain(s.T.Context(), model, "")
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		s.T.Fatalf("%s: %v %s", model, err, text)
	}
	return m
}

// At returns the address of a protocol, "HTTP" or "gRPC".
func (s *Server) At(protocol string) string {
	if protocol == "gRPC" {
		return s.GRPC
	}
	return s.HTTP
}

// A Server is one run of the binary.
type Server struct {
	T       testing.TB
	Cmd     *exec.Cmd
	HTTP    string // http://host:port
	GRPC    string // host:port
	Metrics string // http://host:port

	Stderr    io.Closer      // our end of it
	Addresses chan [2]string // protocol and address; size 3, one for each
	Ended     chan struct{}
	Err       error // of the process, once Ended is closed

	webOnce   sync.Once
	webClient *client.Client

	mu  sync.Mutex // guards the following
	log strings.Builder
}

// Root is the top of the repository, for tests in a folder of test.
const Root = "../.."

var binaryName = flag.String("binary", "shoal", "the server that is tested, in bin")

// StartPatience is how long a server may take to load its models and to listen:
// long, since some tests load hundreds.
const StartPatience = 3 * time.Minute

var listening = regexp.MustCompile(`msg=listening protocol=(\w+) address=(\S+)`)

// Start runs the binary on free ports of the loopback interface, with further
// flags if there are any, and waits until its models are loaded.
func Start(t testing.TB, repository string, flags ...string) *Server {
	t.Helper()
	return StartUnder(t, nil, repository, flags...)
}

// StartUnder is like Start, but another program, such as a profiler, runs the binary: wrapper
// is its command line, to which that of the binary is appended.
func StartUnder(t testing.TB, wrapper []string, repository string, flags ...string) *Server {
	t.Helper()
	s := awaitPorts(t, wrapper, repository, flags...)
	s.AwaitReady()
	return s
}

// Listening is like Start, but waits only until the server listens.
func Listening(t testing.TB, repository string, flags ...string) *Server {
	t.Helper()
	return awaitPorts(t, nil, repository, flags...)
}

func awaitPorts(t testing.TB, wrapper []string, repository string, flags ...string) *Server {
	t.Helper()
	s := launch(t, wrapper, repository, append([]string{"--http-port=0", "--grpc-port=0", "--metrics-port=0"}, flags...)...)
	patience := time.NewTimer(StartPatience)
	defer patience.Stop()
	for range 3 {
		select {
		case a := <-s.Addresses:
			switch a[0] {
			case "http":
				s.HTTP = "http://" + a[1]
			case "grpc":
				s.GRPC = a[1]
			case "metrics":
				s.Metrics = "http://" + a[1]
			}
		case <-s.Ended:
			t.Fatalf("the server ended: %v\n%s", s.Err, s.Log())
		case <-patience.C:
			t.Fatalf("the server does not listen after %v\n%s", StartPatience, s.Log())
		}
	}
	return s
}

// UseBinary builds a binary with the flags of go build that are given, as bin/NAME, and makes it
// the one that t starts from now on.
func UseBinary(t *testing.T, name string, flags ...string) {
	t.Helper()
	binary, err := filepath.Abs(filepath.Join(Root, "bin", name)) // beside the libraries
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build"}, flags, []string{"-o", binary, "./cmd/shoal"})...)
	cmd.Dir = Root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv(binaryVariable, binary)
}

// Faulty has t start a binary in which panics can be injected, and returns the file that injects
// them: the name of a point in it is one panic there, and removes it. Package panics has the points.
func Faulty(t *testing.T) (file string) {
	t.Helper()
	UseBinary(t, "shoal-faults", "-tags", "faults")
	file = filepath.Join(t.TempDir(), "fault")
	t.Setenv("TESTED_FAULT_FILE", file)
	return file
}

// binaryVariable names the binary that a test starts instead of bin/shoal.
const binaryVariable = "TESTED_BINARY"

// Launch runs the binary, and waits for nothing.
func Launch(t testing.TB, repository string, flags ...string) *Server {
	t.Helper()
	return launch(t, nil, repository, flags...)
}

func launch(t testing.TB, wrapper []string, repository string, flags ...string) *Server {
	t.Helper()
	s := &Server{T: t, Ended: make(chan struct{}), Addresses: make(chan [2]string, 3)}
	binary, err := filepath.Abs(cmp.Or(os.Getenv(binaryVariable), filepath.Join(Root, "bin", *binaryName)))
	if err != nil {
		t.Fatal(err)
	}
	// What one test measures is not for the next.
	command := append(slices.Clone(wrapper), binary, "serve", "--model-repository", repository, "--calibration-dir=")
	command = append(command, flags...)
	s.Cmd = exec.Command(command[0], command[1:]...)
	out, err := s.Cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stderr = out
	if err := s.Cmd.Start(); err != nil {
		t.Fatalf("%v; run make build first", err)
	}
	go s.Read(out) // ends with the process
	t.Cleanup(func() { s.Kill() })
	return s
}

// AwaitReady waits until the models are loaded, which begins when the server
// listens.
func (s *Server) AwaitReady() {
	s.T.Helper()
	c := s.Web()
	for began := time.Now(); time.Since(began) < StartPatience; time.Sleep(5 * time.Millisecond) {
		if ready, err := c.Ready(s.T.Context()); err == nil && ready {
			return
		}
		if s.EndsWithin(0) {
			s.T.Fatalf("the server ended: %v\n%s", s.Err, s.Log())
		}
	}
	s.T.Fatalf("the server is not ready after %v\n%s", StartPatience, s.Log())
}

// Read reads the log until the process ends.
func (s *Server) Read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.mu.Lock()
		s.log.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			s.Addresses <- [2]string{m[1], m[2]}
		}
	}
	s.Err = s.Cmd.Wait()
	close(s.Ended)
}

// Log returns what the server has logged so far.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// Terminate sends SIGTERM.
func (s *Server) Terminate() {
	s.T.Helper()
	if err := s.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.T.Error(err)
	}
}

// Kill ends the process at once, and waits for its end.
func (s *Server) Kill() {
	_ = s.Cmd.Process.Kill() // it may have ended by itself
	<-s.Ended
}

// Client returns a client of the server over gRPC, with a connection of its own.
func (s *Server) Client() *client.Client {
	s.T.Helper()
	return s.Closing(client.NewGRPC(s.GRPC, client.Options{}))
}

// Web returns the test's client of the server over HTTP.
func (s *Server) Web() *client.Client {
	s.T.Helper()
	s.webOnce.Do(func() { s.webClient = s.Closing(client.NewHTTP(s.HTTP, client.Options{})) })
	return s.webClient
}

// Closing closes a client when the test ends.
func (s *Server) Closing(c *client.Client, err error) *client.Client {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.T.Error(err)
		}
	})
	return c
}

// Dial returns a connection to the server over gRPC, for tests of what the public client
// does not show: trailers, codes and other services.
func (s *Server) Dial() *grpc.ClientConn {
	s.T.Helper()
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// RawRequest returns a request as it is sent over gRPC.
func RawRequest(req *client.Request) *kservepb.ModelInferRequest {
	raw := &kservepb.ModelInferRequest{ModelName: req.Model}
	for _, t := range req.Inputs {
		raw.Inputs = append(raw.Inputs, &kservepb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
		raw.RawInputContents = append(raw.RawInputContents, t.Data)
	}
	return raw
}

// Sentence returns the message of an error that the server answered with.
func Sentence(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Message
	}
	return ""
}

// Get returns the status and the body of a page.
func (s *Server) Get(path string) (int, string) {
	s.T.Helper()
	req, err := http.NewRequest(http.MethodGet, s.HTTP+path, nil)
	if err != nil {
		s.T.Fatal(err)
	}
	status, _, body, err := Fetch(req)
	if err != nil {
		s.T.Fatal(err)
	}
	return status, string(body)
}

// MetricsPage returns the metrics as Prometheus reads them.
func (s *Server) MetricsPage() string {
	s.T.Helper()
	req, err := http.NewRequest(http.MethodGet, s.Metrics+"/metrics", nil)
	if err != nil {
		s.T.Fatal(err)
	}
	status, _, body, err := Fetch(req)
	if err != nil || status != http.StatusOK {
		s.T.Fatalf("metrics: status %d, %v: %s", status, err, body)
	}
	return string(body)
}

// HTTPClient sends the requests of tests that are about HTTP itself.
var HTTPClient = &http.Client{Timeout: 30 * time.Second}

// Fetch sends a request and returns the answer. It is for tests of status, headers and bodies;
// others use [Server.Web].
func Fetch(req *http.Request) (status int, header http.Header, body []byte, err error) {
	resp, err := HTTPClient.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	if resp.Close {
		resp.Header.Set("Connection", "close") // which net/http has taken out
	}
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, body, errors.Join(err, resp.Body.Close())
}

// EndsWithin waits for the process to end, and reports whether it did.
func (s *Server) EndsWithin(d time.Duration) bool {
	patience := time.NewTimer(d)
	defer patience.Stop()
	select {
	case <-s.Ended:
		return true
	case <-patience.C:
		return false
	}
}

// AwaitLog waits until the log has a line with a text, and returns the line.
func (s *Server) AwaitLog(text string) string {
	s.T.Helper()
	return s.awaitLogFor(text, StartPatience)
}

func (s *Server) awaitLogFor(text string, patience time.Duration) string {
	s.T.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, text) {
				return line
			}
		}
	}
	s.T.Fatalf("the log has no %q after %v\n%s", text, patience, s.Log())
	return ""
}

// AwaitMeasured waits until a model that was not configured is measured and runs with the
// settings that were found best, and logs them.
func (s *Server) AwaitMeasured(t *testing.T, model string) {
	t.Helper()
	line := s.awaitLogFor(fmt.Sprintf(`msg="model measured" model=%s `, model), 10*time.Minute)
	_, what, _ := strings.Cut(strings.TrimSpace(line), "version=1 ")
	t.Logf("%s: %s", model, what)
	if !strings.Contains(line, " threads=1 ") { // which all begin with
		s.awaitLogFor(fmt.Sprintf(`msg="reloaded with tuned settings" model=%s `, model), time.Minute)
	}
}
