//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// A crowd is a closed loop of gRPC clients in the process of the test: each sends a
// request, waits for the answer, and sends it again.
type crowd struct {
	clients int
	sharing int // clients that share a connection; 0 means that each has its own
	request func(client int) *kservepb.ModelInferRequest
	// check says what is wrong with an answer; nil means that it must not be an
	// error. It is called by all clients at once.
	check func(client int, resp *kservepb.ModelInferResponse, err error) error
	// warm is how long the crowd goes on from the time when each client has had an
	// answer, before anything is measured.
	warm time.Duration
	// during runs while the crowd does, after that. What is measured is what happens
	// meanwhile.
	during func()
}

// A tally is what a crowd saw between the begin and the end of what it waited for.
type tally struct {
	took      time.Duration
	latencies []time.Duration // of the requests that were answered meanwhile, ascending
	client    []int           // how many of them each client sent
	parts     float64         // of all requests that were under way meanwhile, summed up
}

func (t tally) perSecond() float64 { return float64(len(t.latencies)) / t.took.Seconds() }

// steady returns how many requests a second were answered. One that was sent before
// or answered after counts by the part of its time that was meanwhile, so that large
// batches do not matter more or less for when they happen to end.
func (t tally) steady() float64 { return t.parts / t.took.Seconds() }

// p99 returns the latency that 99 % are not above, 0 if nothing was answered.
func (t tally) p99() time.Duration {
	if len(t.latencies) == 0 {
		return 0
	}
	return t.latencies[len(t.latencies)*99/100]
}

// run drives the server, and fails the test with the first few answers that are
// wrong.
func (c crowd) run(t *testing.T, s *server) tally {
	t.Helper()
	type answer struct {
		at      time.Time
		latency time.Duration
	}
	answers := make([][]answer, c.clients)
	var stop atomic.Bool
	var wrong atomic.Int32
	var running, answered sync.WaitGroup
	var client kservepb.GRPCInferenceServiceClient
	var connections []*grpc.ClientConn
	defer func() { // also if what happens during it ends the test
		stop.Store(true)
		running.Wait()
		for _, conn := range connections {
			_ = conn.Close() // nothing is sent any more
		}
	}()
	for n := range c.clients {
		req := c.request(n)
		if n%max(1, c.sharing) == 0 {
			conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			connections = append(connections, conn)
			client = kservepb.NewGRPCInferenceServiceClient(conn)
		}
		mine := client
		answered.Add(1)
		running.Go(func() {
			for i := 0; !stop.Load(); i++ {
				sent := time.Now()
				resp, err := mine.ModelInfer(context.Background(), req)
				answers[n] = append(answers[n], answer{time.Now(), time.Since(sent)})
				if c.check != nil {
					err = c.check(n, resp, err)
				}
				if err != nil && wrong.Add(1) <= 3 {
					t.Errorf("client %d, request %d: %v", n, i, err)
				}
				if i == 0 {
					answered.Done()
				}
			}
		})
	}
	answered.Wait()
	time.Sleep(c.warm)
	began := time.Now()
	c.during()
	ended := time.Now()
	stop.Store(true)
	running.Wait()
	if n := wrong.Load(); n > 3 {
		t.Errorf("%d answers are wrong", n)
	}
	got := tally{took: ended.Sub(began), client: make([]int, c.clients)}
	for n, all := range answers {
		for _, a := range all {
			first, last := max(0, a.at.Add(-a.latency).Sub(began)), min(got.took, a.at.Sub(began))
			got.parts += max(0, last-first).Seconds() / max(a.latency, 1).Seconds()
			if a.at.After(began) && a.at.Before(ended) {
				got.latencies = append(got.latencies, a.latency)
				got.client[n]++
			}
		}
	}
	if len(got.latencies) == 0 && got.took > 5*time.Second {
		t.Errorf("nothing was answered in %v", got.took)
	}
	slices.Sort(got.latencies)
	return got
}

// lasting is what a crowd waits for if there is nothing but time to wait for.
func lasting(d time.Duration) func() { return func() { time.Sleep(d) } }

// requestOf writes tensors as a request.
func requestOf(model string, in []tensor.Tensor) *kservepb.ModelInferRequest {
	req := &kservepb.ModelInferRequest{ModelName: model}
	for _, t := range in {
		req.Inputs = append(req.Inputs, &kservepb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
		req.RawInputContents = append(req.RawInputContents, t.Data)
	}
	return req
}

// An onnxModel is a model of a repository: a file and a configuration, of which
// either may be missing.
type onnxModel struct{ file, config string }

// onnxRepository writes a repository with one version of each model. Files are
// linked, not copied.
func onnxRepository(t testing.TB, models map[string]onnxModel) string {
	t.Helper()
	dir := t.TempDir()
	for name, m := range models {
		addModel(t, dir, name, m)
	}
	return dir
}

func addModel(t testing.TB, dir, name string, m onnxModel) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if m.config != "" {
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(m.config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if m.file != "" {
		file, err := filepath.Abs(m.file)
		if err == nil {
			err = os.Symlink(file, filepath.Join(dir, name, "1", "model.onnx"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// usage is what the kernel says of the server's process.
type usage struct {
	cpu     time.Duration // used so far, in the process and in the kernel for it
	memory  int64         // resident bytes
	threads int
}

func (s *server) usage() usage {
	s.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	// The name of the program, in brackets, may have spaces in it. After it, and
	// counted from 0, there are the two times in hundredths of a second at 11 and 12,
	// the threads at 17, and the resident pages at 21.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	at := func(i int) int64 {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return v
	}
	return usage{
		cpu:     time.Duration(at(11)+at(12)) * 10 * time.Millisecond,
		memory:  at(21) * int64(os.Getpagesize()),
		threads: int(at(17)),
	}
}

// ran is how many batches of a size a model has run, and how long that took, and
// joining their rows before.
type ran struct {
	count  int
	took   time.Duration
	joined time.Duration
}

// batches returns what a model's statistics say of the batches that it has run, by
// their rows.
func (s *server) batches(model string) map[int]ran {
	s.t.Helper()
	code, body := s.get("/v2/models/" + model + "/stats")
	var stats struct {
		Models []struct {
			Batches []struct {
				Rows    int                     `json:"batch_size"`
				Input   struct{ NS int }        `json:"compute_input"`
				Compute struct{ Count, NS int } `json:"compute_infer"`
			} `json:"batch_stats"`
		} `json:"model_stats"`
	}
	if err := json.Unmarshal([]byte(body), &stats); err != nil || code != http.StatusOK || len(stats.Models) != 1 {
		s.t.Fatalf("statistics: %d %v %s", code, err, body)
	}
	all := map[int]ran{}
	for _, b := range stats.Models[0].Batches {
		all[b.Rows] = ran{b.Compute.Count, time.Duration(b.Compute.NS), time.Duration(b.Input.NS)}
	}
	return all
}

// within fails the test if any part of a sentence is missing.
func within(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %q is not in: %s", what, part, text)
		}
	}
}
