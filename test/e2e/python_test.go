//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

const pythonIdentity = `
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            a = pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy()
            error = pb_utils.TritonError("bad", pb_utils.TritonError.INVALID_ARG) if a.flat[0] < 0 else None
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", a)], error))
        return out
`

// TestAKilledWorkerCostsItsBatchAlone kills workers with kill -9 while clients ask.
// Requests get their own rows back, or are told that the worker died; after each
// kill the model is not ready until it has a worker again.
func TestAKilledWorkerCostsItsBatchAlone(t *testing.T) {
	s := servertest.Start(t, servertest.PythonRepository(t, "", pythonIdentity+"\n"))
	const clients, kills = 16, 3
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	var good, died atomic.Int64
	for range clients {
		c := s.Client()
		asking.Go(func() {
			for ctx.Err() == nil {
				switch resp, err := c.Infer(ctx, servertest.SmallRequest("m", 2)); {
				case ctx.Err() != nil:
				case err == nil && bytes.Equal(resp.Outputs[0].Data, servertest.SmallRequest("m", 2).Inputs[0].Data):
					good.Add(1)
				case errors.Is(err, client.Unavailable) && strings.Contains(err.Error(), "ended by signal 9"):
					died.Add(1)
				default:
					t.Errorf("a request got %v", err)
				}
			}
		})
	}
	for range kills {
		before := good.Load()
		servertest.Eventually(t, "answers", func() bool { return good.Load() > before+100 })
		pid := servertest.Children(s.Cmd.Process.Pid)[0]
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		servertest.Eventually(t, "not ready", func() bool { code, _ := s.Get("/v2/health/ready"); return code != http.StatusOK })
		if code, _ := s.Get("/v2/models/m/ready"); code == http.StatusOK && len(servertest.Children(s.Cmd.Process.Pid)) == 0 {
			t.Error("the model is ready without a worker")
		}
		servertest.Eventually(t, "ready again", func() bool { code, _ := s.Get("/v2/health/ready"); return code == http.StatusOK })
	}
	cancel()
	asking.Wait()
	if died.Load() > 8*kills {
		t.Errorf("%d requests died in %d batches of at most 4", died.Load(), kills)
	}
	s.Terminate()
	if !s.EndsWithin(30 * time.Second) {
		t.Error("the server does not end")
	}
}

// TestNoWorkerOutlivesTheServer kills the server with kill -9. Its workers end, and what
// they have started, whatever they were doing.
func TestNoWorkerOutlivesTheServer(t *testing.T) {
	s := servertest.Start(t, servertest.PythonRepository(t, `instance_group [ { count: 2 } ]`, `
import multiprocessing, subprocess
class TritonPythonModel:
    def initialize(self, args):
        self.started = subprocess.Popen(["sleep", "600"])
        self.forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        self.forked.start()
    def execute(self, requests):
        while True: pass
`))
	c := s.Client()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = servertest.Ask(ctx, c, "m", 1) // one worker is in a loop, and one waits
	workers := servertest.Children(s.Cmd.Process.Pid)
	if len(workers) != 2 {
		t.Fatalf("%d workers, want 2", len(workers))
	}
	all := slices.Clone(workers)
	for _, w := range workers {
		started := servertest.Children(w)
		if len(started) != 2 {
			t.Fatalf("a worker has started %d processes, want 2", len(started))
		}
		all = append(all, started...)
	}
	s.Kill()
	ended := time.Now()
	servertest.Eventually(t, "workers have ended", func() bool { return !slices.ContainsFunc(all, servertest.Alive) })
	if took, most := time.Since(ended), servertest.StrictOr(time.Second, 3*time.Second); took > most {
		t.Errorf("workers were there for %v after the server, want at most %v", took, most)
	}
}

// TestWhatAWorkerStartedEndsWithIt kills a worker that has started a process.
func TestWhatAWorkerStartedEndsWithIt(t *testing.T) {
	s := servertest.Start(t, servertest.PythonRepository(t, "", `
import subprocess
class TritonPythonModel:
    def initialize(self, args):
        self.child = subprocess.Popen(["sleep", "600"])
`+strings.TrimPrefix(pythonIdentity, "\nclass TritonPythonModel:\n")))
	worker := servertest.Children(s.Cmd.Process.Pid)[0]
	started := servertest.Children(worker)
	if len(started) != 1 {
		t.Fatalf("the worker has started %d processes, want 1", len(started))
	}
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "it has ended", func() bool { return !servertest.Alive(started[0]) })
}

// TestOneBadRequestOfEight sends eight requests that make one batch, of which one is
// bad. It fails alone with a TritonError; an exception fails all, as in Triton,
// unless the model says that batches may be run again in parts.
func TestOneBadRequestOfEight(t *testing.T) {
	const model = `
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy() for r in requests]
        if any(a[0, 0] == -2 for a in arrays):
            raise ValueError("no good")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", a)], pb_utils.TritonError("no good") if a[0, 0] == -1 else None)
            for a in arrays
        ]
`
	for _, tt := range []struct {
		name, config string
		bad          float32
		failed       int
	}{
		{"an error", "", -1, 1},
		{"an exception", "", -2, 8},
		{"an exception with retry_apart", `parameters { key: "retry_apart" value { string_value: "true" } }`, -2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			repository := servertest.PythonRepository(t, tt.config, model)
			file := filepath.Join(repository, "m", "config.pbtxt")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			// Only a full batch goes.
			text = bytes.Replace(text, []byte("dynamic_batching { }"), []byte("dynamic_batching { max_queue_delay_microseconds: 30000000 }"), 1)
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
			s := servertest.Start(t, repository)
			var failed, wrong atomic.Int64
			var asking sync.WaitGroup
			for n := range 8 {
				c := s.Client()
				asking.Go(func() {
					req := servertest.SmallRequest("m", 1)
					bad := n == 5
					if bad {
						req.Inputs[0].Data = servertest.Floats(tt.bad, 0, 0, 0)
					}
					switch _, err := c.Infer(t.Context(), req); {
					case err != nil && strings.Contains(err.Error(), "no good"):
						failed.Add(1)
					case err != nil || bad:
						wrong.Add(1)
					}
				})
			}
			asking.Wait()
			if failed.Load() != int64(tt.failed) || wrong.Load() > 0 {
				t.Errorf("%d of 8 failed with the model's words, want %d; %d went otherwise", failed.Load(), tt.failed, wrong.Load())
			}
		})
	}
}

// TestModelsHaveTheirOwnNumpy serves two models, one of them with another numpy from
// an environment beside it.
func TestModelsHaveTheirOwnNumpy(t *testing.T) {
	const model = `
import numpy
class TritonPythonModel:
    def execute(self, requests):
        version = [float(n) for n in numpy.__version__.split(".")[:2]] + [0, 0]
        answer = lambda r: pb_utils.Tensor("OUTPUT", numpy.array([version] * r.inputs()[0].shape()[0], numpy.float32))
        return [pb_utils.InferenceResponse([answer(r)]) for r in requests]
`
	repository := servertest.PythonRepository(t, "", model)
	older, err := filepath.Abs(filepath.Join(servertest.Root, "bin", "worker-older"))
	if err != nil {
		t.Fatal(err)
	}
	if exec.Command(filepath.Join(older, "bin", "python3"), "-c", "import numpy").Run() != nil {
		t.Skip("there is no second environment: run make numpy")
	}
	if err := os.CopyFS(filepath.Join(repository, "other"), os.DirFS(filepath.Join(repository, "m"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(repository, "other", "config.pbtxt")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.Contains(line, `key: "python"`) })
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(older, filepath.Join(repository, "other", "venv")); err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, repository)
	c := s.Client()
	for name, want := range map[string][]byte{"m": servertest.Floats(2, 4, 0, 0), "other": servertest.Floats(1, 26, 0, 0)} {
		resp, err := c.Infer(t.Context(), servertest.SmallRequest(name, 1))
		if err != nil || !bytes.Equal(resp.Outputs[0].Data, want) {
			t.Errorf("%s answered %v, %v", name, resp, err)
		}
	}
}

func TestAModelOfTritonsKindAnswers(t *testing.T) {
	s := servertest.Start(t, servertest.PythonRepository(t, "", pythonIdentity))
	c := s.Client()
	req := servertest.SmallRequest("m", 3)
	resp, err := c.Infer(t.Context(), req)
	if err != nil || !bytes.Equal(resp.Outputs[0].Data, req.Inputs[0].Data) {
		t.Errorf("answer %v, %v", resp, err)
	}
	req.Inputs[0].Data = servertest.Floats(-1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0)
	if _, err := c.Infer(t.Context(), req); !errors.Is(err, client.Invalid) || servertest.Sentence(err) != "bad" {
		t.Errorf("a request that the model refuses got %v", err)
	}
	if code, body := s.Get("/v2/models/m/config"); code != http.StatusOK || !strings.Contains(body, `"default_model_filename":"model.py"`) {
		t.Errorf("%d %s", code, body)
	}
}
