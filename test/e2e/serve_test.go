//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func us(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// smallRequest asks a model of config; each row holds its own number.
func smallRequest(model string, rows int) *kservepb.ModelInferRequest {
	var data []byte
	for i := range rows {
		data = append(data, floats(float32(i), float32(i), float32(i), float32(i))...)
	}
	return &kservepb.ModelInferRequest{
		ModelName: model,
		Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "INPUT", Datatype: "FP32", Shape: []int64{int64(rows), 4}},
		},
		RawInputContents: [][]byte{data},
	}
}

// oneRow asks a model of config for one row over HTTP.
func oneRow(ctx context.Context, s *server) (int, error) {
	body := `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http+"/v2/models/m/infer", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	status, _, _, err := fetch(req)
	return status, err
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

// TestTheReadmesCommandsAnswer runs the fenced shell commands of the README that
// ask a server, as they are written but for the address. The server is the one
// that the README has started last.
func TestTheReadmesCommandsAnswer(t *testing.T) {
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{
		"examples/seed-device": `"name":"308","datatype":"FP32","shape":[1,26,37],"data":[0.5,`,
		"examples/onnx":        `"name":"OUTPUT0","datatype":"FP32","shape":[1,16],"data":[4.0,`,
	}
	repository, ran := "", 0
	for _, block := range shellBlocks(string(readme)) {
		if found := served.FindStringSubmatch(block); found != nil {
			repository = found[1]
		}
		if !strings.Contains(block, "curl") {
			continue
		}
		t.Run(repository, func(t *testing.T) {
			if strings.HasSuffix(repository, "onnx") {
				onnxtest.Library(t)
			}
			s := start(t, root+"/"+repository)
			script := strings.ReplaceAll(block, "localhost:8000", strings.TrimPrefix(s.http, "http://"))
			out, err := exec.Command("bash", "-euo", "pipefail", "-c", script).CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte(wants[repository])) {
				t.Errorf("%s\nanswers %v:\n%s\nwant %s", script, err, out, wants[repository])
			}
		})
		ran++
	}
	if ran != len(wants) {
		t.Errorf("the README asks a server %d times, want %d", ran, len(wants))
	}
}

func TestHealthAndMetadataOverHTTP(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	for path, want := range map[string]int{
		"/v2/health/live": 200, "/v2/health/ready": 200, "/v2": 200,
		"/v2/models/seed_two/ready": 200, "/v2/models/seed_two": 200, "/v2/models/seed_two/versions/1": 200,
		"/v2/models/nobody": 404, "/v2/models/nobody/ready": 400, "/v2/nothing": 404,
	} {
		if got, body := s.get(path); got != want {
			t.Errorf("GET %s answers %d, want %d: %s", path, got, want, body)
		}
	}
	_, body := s.get("/v2/models/seed_two")
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

func TestJSONAndBinaryTensorsOverHTTP(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{"m": config(time.Millisecond, "1", "dynamic_batching { }")}))
	post := func(body []byte, header int) (http.Header, []byte) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, s.http+"/v2/models/m/infer", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if header > 0 {
			req.Header.Set("Inference-Header-Content-Length", strconv.Itoa(header))
		}
		status, answered, answer, err := fetch(req)
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
	data := floats(1, 2, 3, 4)
	header, answer := post(append([]byte(head), data...), len(head))
	n, err := strconv.Atoi(header.Get("Inference-Header-Content-Length"))
	if err != nil || !bytes.Equal(answer[n:], data) {
		t.Errorf("binary is answered with header %v and %q (%v)", header, answer, err)
	}
}

func TestHeadersAreLimited(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	for size, want := range map[int]int{30 << 10: http.StatusOK, 40 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.http+"/v2/health/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X", strings.Repeat("x", size))
		if status, _, body, err := fetch(req); err != nil || status != want {
			t.Errorf("%d bytes: status %d, %s, %v, want %d", size, status, body, err, want)
		}
	}
}

func TestEachClientGetsItsOwnRows(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{"m": config(2*time.Millisecond, "2", "dynamic_batching { }")}))
	var wg sync.WaitGroup
	for n := range 24 {
		c := s.client()
		wg.Go(func() {
			for i := range 20 {
				req := smallRequest("m", 1+(n+i)%3)
				for k := range req.RawInputContents[0] {
					req.RawInputContents[0][k] = byte(n*20 + i + k/16)
				}
				resp, err := c.ModelInfer(context.Background(), req)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(resp.RawOutputContents[0], req.RawInputContents[0]) {
					t.Errorf("client %d got somebody else's rows", n)
				}
			}
		})
	}
	wg.Wait()
}

func TestErrorsOverGRPC(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{
		"m": config(200*time.Millisecond, "1", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"),
	}))
	c := s.client()
	if err := ask(t.Context(), c, "nobody", 1); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown model: %v", err)
	}
	if err := ask(t.Context(), c, "m", 9); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many rows: %v", err)
	}
	var wg sync.WaitGroup
	for range 2 { // one runs, one waits
		wg.Go(func() {
			if err := ask(t.Context(), c, "m", 8); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(50 * time.Millisecond)
	}
	began := time.Now()
	err := ask(t.Context(), c, "m", 8)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "Exceeds maximum queue size") {
		t.Errorf("a full queue: %v", err)
	}
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("a full queue was told after %v", took)
	}
	wg.Wait()
}

func TestTimeoutsAreAnsweredAtTheirDeadline(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{
		"m": config(400*time.Millisecond, "1", "dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }"),
	}))
	c := s.client()
	// late returns how many milliseconds after its time an answer comes, while the
	// instance is busy.
	late := func(want time.Duration, code codes.Code, f func() error) float64 {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			if err := ask(t.Context(), c, "m", 8); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		if err := f(); status.Code(err) != code {
			t.Errorf("answered with %v, want %v", err, code)
		}
		return float64(time.Since(began)-want) / float64(time.Millisecond)
	}
	most := choose(5.0, 20.0)
	hold(t, "queue timeout, ms late", 0, most, func() float64 {
		return late(100*time.Millisecond, codes.Unavailable, func() error { return ask(t.Context(), c, "m", 1) })
	})
	// A deadline is answered a millisecond early, so that the answer comes before grpc
	// resets the stream.
	hold(t, "deadline, ms late", -1, most, func() float64 {
		return late(50*time.Millisecond, codes.DeadlineExceeded, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return ask(ctx, c, "m", 1)
		})
	})
}

// TestAClientThatLeavesFreesItsPlace fills a queue of one, lets the one who waits
// leave, and asks for its place.
func TestAClientThatLeavesFreesItsPlace(t *testing.T) {
	for _, protocol := range []string{"grpc", "http"} {
		t.Run(protocol, func(t *testing.T) {
			s := start(t, repositoryOf(t, map[string]string{
				"m": config(700*time.Millisecond, "1", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"),
			}))
			c := s.client()
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := ask(t.Context(), c, "m", 8); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(100 * time.Millisecond)
			ctx, leave := context.WithCancel(t.Context())
			wg.Go(func() {
				// Whatever comes of it: it leaves.
				if protocol == "grpc" {
					_ = ask(ctx, c, "m", 8)
				} else {
					_, _ = oneRow(ctx, s)
				}
			})
			time.Sleep(100 * time.Millisecond)
			if err := ask(t.Context(), c, "m", 8); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the queue should be full: %v", err)
			}
			leave()
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			if err := ask(t.Context(), c, "m", 8); err != nil {
				t.Errorf("the place of one who left was not free: %v", err)
			}
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("answered after %v: the one who left has run", took)
			}
			wg.Wait()
		})
	}
}

func TestSIGTERMDrains(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{"m": config(400*time.Millisecond, "1", "dynamic_batching { }")}))
	var wg sync.WaitGroup
	for n := range 6 {
		c := s.client()
		wg.Go(func() {
			if err := ask(t.Context(), c, "m", 8); n < 2 && err != nil {
				t.Errorf("a request that was here: %v", err)
			}
		})
	}
	wg.Go(func() {
		if status, err := oneRow(t.Context(), s); err != nil || status != http.StatusOK {
			t.Errorf("a request over HTTP that was here: %d %v", status, err)
		}
	})
	// A client that has a stream and asks nothing keeps nobody.
	if _, err := s.client().ModelStreamInfer(t.Context()); err != nil {
		t.Error(err)
	}
	time.Sleep(200 * time.Millisecond)
	s.signal()
	wg.Wait()
	switch {
	case !s.endsWithin(10 * time.Second):
		t.Errorf("still there 10 s after its last request\n%s", s.logged())
	case s.err != nil:
		t.Errorf("ended with %v\n%s", s.err, s.logged())
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{"m": config(20*time.Second, "1", "")}))
	c := s.client()
	go func() { _ = ask(context.Background(), c, "m", 1) }() // it is cut off
	time.Sleep(200 * time.Millisecond)
	s.signal()
	time.Sleep(200 * time.Millisecond)
	s.signal()
	if !s.endsWithin(5 * time.Second) {
		t.Error("still there 5 s after a second signal")
	}
}

func TestARepositoryThatCannotBeLoadedEndsWithTheReason(t *testing.T) {
	dir := repositoryOf(t, map[string]string{"m": strings.Replace(config(0, "1", ""), "max_batch_size: 8", "max_batch_size: 8 max_batch_sise: 4", 1)})
	out, err := exec.Command(root+"/bin/shoal", "serve", "--model-repository", dir, "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("max_batch_sise")) || !bytes.Contains(out, []byte("config.pbtxt")) {
		t.Errorf("ended with %v:\n%s", err, out)
	}
}
