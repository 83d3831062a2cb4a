//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// oneRow asks the model m of config for one row over HTTP.
func oneRow(ctx context.Context, s *servertest.Server) error {
	_, err := s.Web().Infer(ctx, servertest.SmallRequest("m", 1))
	return err
}

// shellBlocks returns the fenced shell commands of a page.
func shellBlocks(page string) (blocks []string) {
	for i, block := range strings.Split(page, "```") {
		if commands, ok := strings.CutPrefix(block, "sh\n"); ok && i%2 == 1 {
			blocks = append(blocks, commands)
		}
	}
	return blocks
}

var served = regexp.MustCompile(`shoal serve --model-repository (\S+)`)

func TestHealthAndMetadataOverHTTP(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	for path, want := range map[string]int{
		"/v2/health/live": 200, "/v2/health/ready": 200, "/v2": 200,
		"/v2/models/seed_two/ready": 200, "/v2/models/seed_two": 200, "/v2/models/seed_two/versions/1": 200,
		"/v2/models/nobody": 404, "/v2/models/nobody/ready": 400, "/v2/nothing": 404,
	} {
		if got, body := s.Get(path); got != want {
			t.Errorf("GET %s answers %d, want %d: %s", path, got, want, body)
		}
	}
	_, body := s.Get("/v2/models/seed_two")
	var meta struct {
		Platform string
		Inputs   []struct {
			Name  string
			Shape []int64
		}
	}
	if err := json.Unmarshal([]byte(body), &meta); err != nil || meta.Platform != "simulated" ||
		meta.Inputs[0].Name != "input.1" || !slices.Equal(meta.Inputs[0].Shape, []int64{-1, 1, 32, 100}) {
		t.Errorf("metadata is %s (%v); a simulated model must say that it is one", body, err)
	}
}

// TestJSONAndBinaryTensorsOverHTTP compares bodies and headers as they are sent.
func TestJSONAndBinaryTensorsOverHTTP(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "dynamic_batching { }")}))
	post := func(body []byte, header int) (http.Header, []byte) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, s.HTTP+"/v2/models/m/infer", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if header > 0 {
			req.Header.Set("Inference-Header-Content-Length", strconv.Itoa(header))
		}
		status, answered, answer, err := servertest.Fetch(req)
		if err != nil || status != http.StatusOK {
			t.Fatalf("%d %v: %s", status, err, answer)
		}
		return answered, answer
	}
	_, answer := post([]byte(`{"id":"7","inputs":[{"name":"INPUT","datatype":"FP32","shape":[2,4],"data":[[1,2,3,4],[5,6,7,8.5]]}]}`), 0)
	want := `{"id":"7","model_name":"m","model_version":"1","outputs":[{"name":"OUTPUT","datatype":"FP32","shape":[2,4],"data":[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.5]}]}`
	if string(answer) != want {
		t.Errorf("JSON is answered with\n%s, want\n%s", answer, want)
	}

	head := `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}],"outputs":[{"name":"OUTPUT","parameters":{"binary_data":true}}]}`
	data := servertest.Floats(1, 2, 3, 4)
	header, answer := post(append([]byte(head), data...), len(head))
	n, err := strconv.Atoi(header.Get("Inference-Header-Content-Length"))
	if err != nil || !bytes.Equal(answer[n:], data) {
		t.Errorf("binary is answered with header %v and %q (%v)", header, answer, err)
	}
}

func TestHeadersAreLimited(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	for size, want := range map[int]int{30 << 10: http.StatusOK, 40 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.HTTP+"/v2/health/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X", strings.Repeat("x", size))
		if status, _, body, err := servertest.Fetch(req); err != nil || status != want {
			t.Errorf("%d bytes: status %d, %s, %v, want %d", size, status, body, err, want)
		}
	}
}

func TestEachClientGetsItsOwnRows(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(2*time.Millisecond, "2", "dynamic_batching { }")}))
	var wg sync.WaitGroup
	for n := range 24 {
		c := s.Client()
		wg.Go(func() {
			for i := range 20 {
				req := servertest.SmallRequest("m", 1+(n+i)%3)
				for k := range req.Inputs[0].Data {
					req.Inputs[0].Data[k] = byte(n*20 + i + k/16)
				}
				resp, err := c.Infer(context.Background(), req)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(resp.Outputs[0].Data, req.Inputs[0].Data) {
					t.Errorf("client %d got somebody else's rows", n)
				}
			}
		})
	}
	wg.Wait()
}

func TestErrorsOverGRPC(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"m": servertest.Config(2*time.Second, "1", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"), // long beside what a busy machine adds
	}))
	c := s.Client()
	if err := servertest.Ask(t.Context(), c, "nobody", 1); !errors.Is(err, client.NotFound) {
		t.Errorf("an unknown model: %v", err)
	}
	if err := servertest.Ask(t.Context(), c, "m", 9); !errors.Is(err, client.Invalid) {
		t.Errorf("too many rows: %v", err)
	}
	var wg sync.WaitGroup
	for range 2 { // one runs, one waits
		wg.Go(func() {
			if err := servertest.Ask(t.Context(), c, "m", 8); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(400 * time.Millisecond)
	}
	began := time.Now()
	err := servertest.Ask(t.Context(), c, "m", 8)
	if !errors.Is(err, client.Overloaded) || !strings.Contains(err.Error(), "Exceeds maximum queue size") {
		t.Errorf("a full queue: %v", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("a full queue was told after %v", took)
	}
	wg.Wait()
}

// TestAClientThatLeavesFreesItsPlace fills a queue of one, lets the one who waits
// leave, and asks for its place.
func TestAClientThatLeavesFreesItsPlace(t *testing.T) {
	for _, protocol := range []string{"grpc", "http"} {
		t.Run(protocol, func(t *testing.T) {
			s := servertest.Start(t, servertest.Repository(t, map[string]string{
				"m": servertest.Config(700*time.Millisecond, "1", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"),
			}))
			c := s.Client()
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := servertest.Ask(t.Context(), c, "m", 8); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(100 * time.Millisecond)
			ctx, leave := context.WithCancel(t.Context())
			wg.Go(func() {
				// Whatever comes of it: it leaves.
				if protocol == "grpc" {
					_ = servertest.Ask(ctx, c, "m", 8)
				} else {
					_ = oneRow(ctx, s)
				}
			})
			time.Sleep(100 * time.Millisecond)
			if err := servertest.Ask(t.Context(), c, "m", 8); !errors.Is(err, client.Overloaded) {
				t.Errorf("the queue should be full: %v", err)
			}
			leave()
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			if err := servertest.Ask(t.Context(), c, "m", 8); err != nil {
				t.Errorf("the place of one who left was not free: %v", err)
			}
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("answered after %v: the one who left has run", took)
			}
			wg.Wait()
		})
	}
}

func TestSIGTERMDrains(t *testing.T) { drains(t, syscall.SIGTERM) }

// TestSIGHUPDrains: a terminal that is closed ends its server as cleanly, also if the shell and
// the kernel both say so.
func TestSIGHUPDrains(t *testing.T) {
	// A test that ignores the signal, because it runs under nohup, would have its server ignore it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	drains(t, syscall.SIGHUP, syscall.SIGHUP)
}

func drains(t *testing.T, signals ...os.Signal) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(400*time.Millisecond, "1", "dynamic_batching { }")}))
	var wg sync.WaitGroup
	for n := range 6 {
		c := s.Client()
		wg.Go(func() {
			if err := servertest.Ask(t.Context(), c, "m", 8); n < 2 && err != nil {
				t.Errorf("a request that was here: %v", err)
			}
		})
	}
	wg.Go(func() {
		if err := oneRow(t.Context(), s); err != nil {
			t.Errorf("a request over HTTP that was here: %v", err)
		}
	})
	// A client that has a stream and asks nothing keeps nobody.
	if _, err := s.Client().Stream(t.Context()); err != nil {
		t.Error(err)
	}
	time.Sleep(200 * time.Millisecond)
	for _, sig := range signals {
		if err := s.Cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
		s.AwaitLog("msg=stopping")
	}
	wg.Wait()
	switch {
	case !s.EndsWithin(10 * time.Second):
		t.Errorf("still there 10 s after its last request\n%s", s.Log())
	case s.Err != nil:
		t.Errorf("ended with %v\n%s", s.Err, s.Log())
	}
}

// A server with a file for its log opens that again, and one of nohup does nothing.
func TestSIGHUPStopsNoServerThatExpectsIt(t *testing.T) {
	models := servertest.Repository(t, map[string]string{"m": servertest.Config(0, "1", "")})
	logging := servertest.Start(t, models, "--log-file=/dev/stderr")
	detached := servertest.StartUnder(t, []string{"nohup"}, models)
	for _, s := range []*servertest.Server{logging, detached} {
		if err := s.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	logging.AwaitLog("log file reopened")
	for _, s := range []*servertest.Server{logging, detached} {
		if err := oneRow(t.Context(), s); err != nil {
			t.Error(err)
		}
		s.Terminate()
		if !s.EndsWithin(10*time.Second) || s.Err != nil || !strings.Contains(s.Log(), `reason="terminated signal received"`) {
			t.Errorf("ended with %v\n%s", s.Err, s.Log())
		}
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(20*time.Second, "1", "")}))
	c := s.Client()
	go func() { _ = servertest.Ask(context.Background(), c, "m", 1) }() // it is cut off
	time.Sleep(200 * time.Millisecond)
	s.Terminate()
	time.Sleep(200 * time.Millisecond)
	s.Terminate()
	if !s.EndsWithin(5 * time.Second) {
		t.Error("still there 5 s after a second signal")
	}
}

func TestARepositoryThatCannotBeLoadedEndsWithTheReason(t *testing.T) {
	dir := servertest.Repository(t, map[string]string{"m": strings.Replace(servertest.Config(0, "1", ""), "max_batch_size: 8", "max_batch_size: 8 max_batch_sise: 4", 1)})
	out, err := exec.Command(servertest.Root+"/bin/shoal", "serve", "--model-repository", dir, "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("max_batch_sise")) || !bytes.Contains(out, []byte("config.pbtxt")) {
		t.Errorf("ended with %v:\n%s", err, out)
	}
}
