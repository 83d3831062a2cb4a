//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pythonInterpreter returns an interpreter that has numpy.
func pythonInterpreter(t *testing.T) string {
	t.Helper()
	interpreter, err := filepath.Abs(filepath.Join(root, "bin", "worker", "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	if exec.Command(interpreter, "-c", "import numpy").Run() != nil {
		t.Skip("no interpreter has numpy: run make numpy")
	}
	return interpreter
}

// pythonRepository writes a model of Triton's kind.
func pythonRepository(t *testing.T, config, model string) string {
	t.Helper()
	interpreter := pythonInterpreter(t)
	dir := repositoryOf(t, map[string]string{"m": `backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
parameters { key: "python" value { string_value: "` + interpreter + `" } }
` + config})
	text := "import os, time\nimport triton_python_backend_utils as pb_utils\n" + model
	if err := os.WriteFile(filepath.Join(dir, "m", "1", "model.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

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

// children returns the processes that a process has started and that live.
func children(pid int) (all []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		b, _ := os.ReadFile(file) // its thread may just have ended
		for field := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(field); err == nil && alive(child) {
				all = append(all, child)
			}
		}
	}
	return all
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}

// TestAKilledWorkerCostsItsBatchAlone kills workers with kill -9 while clients ask.
// Requests get their own rows back, or are told that the worker died; after each
// kill the model is not ready until it has a worker again.
func TestAKilledWorkerCostsItsBatchAlone(t *testing.T) {
	s := start(t, pythonRepository(t, "", pythonIdentity+"\n"))
	const clients, kills = 16, 3
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	var good, died atomic.Int64
	for range clients {
		c := s.client()
		asking.Go(func() {
			for ctx.Err() == nil {
				switch resp, err := c.ModelInfer(ctx, smallRequest("m", 2)); {
				case ctx.Err() != nil:
				case err == nil && bytes.Equal(resp.GetRawOutputContents()[0], smallRequest("m", 2).GetRawInputContents()[0]):
					good.Add(1)
				case status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "ended by signal 9"):
					died.Add(1)
				default:
					t.Errorf("a request got %v", err)
				}
			}
		})
	}
	for range kills {
		before := good.Load()
		until(t, "answers", func() bool { return good.Load() > before+100 })
		pid := children(s.cmd.Process.Pid)[0]
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "not ready", func() bool { code, _ := s.get("/v2/health/ready"); return code != http.StatusOK })
		if code, _ := s.get("/v2/models/m/ready"); code == http.StatusOK && len(children(s.cmd.Process.Pid)) == 0 {
			t.Error("the model is ready without a worker")
		}
		until(t, "ready again", func() bool { code, _ := s.get("/v2/health/ready"); return code == http.StatusOK })
	}
	cancel()
	asking.Wait()
	if died.Load() > 8*kills {
		t.Errorf("%d requests died in %d batches of at most 4", died.Load(), kills)
	}
	s.signal()
	if !s.endsWithin(30 * time.Second) {
		t.Error("the server does not end")
	}
}

// TestNoWorkerOutlivesTheServer kills the server with kill -9. Its workers end, and what
// they have started, whatever they were doing.
func TestNoWorkerOutlivesTheServer(t *testing.T) {
	s := start(t, pythonRepository(t, `instance_group [ { count: 2 } ]`, `
import multiprocessing, subprocess
class TritonPythonModel:
    def initialize(self, args):
        self.started = subprocess.Popen(["sleep", "600"])
        self.forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        self.forked.start()
    def execute(self, requests):
        while True: pass
`))
	c := s.client()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = ask(ctx, c, "m", 1) // one worker is in a loop, and one waits
	workers := children(s.cmd.Process.Pid)
	if len(workers) != 2 {
		t.Fatalf("%d workers, want 2", len(workers))
	}
	all := slices.Clone(workers)
	for _, w := range workers {
		started := children(w)
		if len(started) != 2 {
			t.Fatalf("a worker has started %d processes, want 2", len(started))
		}
		all = append(all, started...)
	}
	s.kill()
	ended := time.Now()
	until(t, "workers have ended", func() bool { return !slices.ContainsFunc(all, alive) })
	if took, most := time.Since(ended), choose(time.Second, 10*time.Second); took > most {
		t.Errorf("workers were there for %v after the server, want at most %v", took, most)
	}
}

// TestWhatAWorkerStartedEndsWithIt kills a worker that has started a process.
func TestWhatAWorkerStartedEndsWithIt(t *testing.T) {
	s := start(t, pythonRepository(t, "", `
import subprocess
class TritonPythonModel:
    def initialize(self, args):
        self.child = subprocess.Popen(["sleep", "600"])
`+strings.TrimPrefix(pythonIdentity, "\nclass TritonPythonModel:\n")))
	worker := children(s.cmd.Process.Pid)[0]
	started := children(worker)
	if len(started) != 1 {
		t.Fatalf("the worker has started %d processes, want 1", len(started))
	}
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "it has ended", func() bool { return !alive(started[0]) })
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
			repository := pythonRepository(t, tt.config, model)
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
			s := start(t, repository)
			var failed, wrong atomic.Int64
			var asking sync.WaitGroup
			for n := range 8 {
				c := s.client()
				asking.Go(func() {
					req := smallRequest("m", 1)
					bad := n == 5
					if bad {
						req.RawInputContents[0] = floats(tt.bad, 0, 0, 0)
					}
					switch _, err := c.ModelInfer(t.Context(), req); {
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
	repository := pythonRepository(t, "", model)
	older, err := filepath.Abs(filepath.Join(root, "bin", "worker-older"))
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
	s := start(t, repository)
	c := s.client()
	for name, want := range map[string][]byte{"m": floats(2, 4, 0, 0), "other": floats(1, 26, 0, 0)} {
		resp, err := c.ModelInfer(t.Context(), smallRequest(name, 1))
		if err != nil || !bytes.Equal(resp.GetRawOutputContents()[0], want) {
			t.Errorf("%s answered %v, %v", name, resp, err)
		}
	}
}

func TestAModelOfTritonsKindAnswers(t *testing.T) {
	s := start(t, pythonRepository(t, "", pythonIdentity))
	c := s.client()
	req := smallRequest("m", 3)
	resp, err := c.ModelInfer(t.Context(), req)
	if err != nil || !bytes.Equal(resp.GetRawOutputContents()[0], req.GetRawInputContents()[0]) {
		t.Errorf("answer %v, %v", resp, err)
	}
	req.RawInputContents[0] = floats(-1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0)
	if _, err := c.ModelInfer(t.Context(), req); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "bad" {
		t.Errorf("a request that the model refuses got %v", err)
	}
	if code, body := s.get("/v2/models/m/config"); code != http.StatusOK || !strings.Contains(body, `"default_model_filename":"model.py"`) {
		t.Errorf("%d %s", code, body)
	}
}
