//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// environment returns one of those that make test-deps brings, or skips the test.
func environment(t *testing.T, name, module string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(servertest.Root, "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if exec.Command(filepath.Join(dir, "bin", "python"), "-c", "import "+module).Run() != nil {
		t.Skipf("bin/%s has no %s: run make test-deps", name, module)
	}
	return dir
}

// writeApp writes a file with an environment beside it, and returns its path.
func writeApp(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(environment(t, "worker", "numpy"), filepath.Join(dir, "venv")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "app.py")
	rewrite(t, path, text)
	return path
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const threeNumbers = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,4]}]}`

// TestTheExampleAppAnswers serves examples/python/app.py.
func TestTheExampleAppAnswers(t *testing.T) {
	text, err := os.ReadFile(servertest.Root + "/examples/python/app.py")
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, writeApp(t, string(text)))
	if code, body := s.Post("/v2/models/total/infer", threeNumbers); code != http.StatusOK || !strings.Contains(body, `"name":"y","datatype":"FP32","shape":[1,1],"data":[7.0]`) {
		t.Errorf("%d %s", code, body)
	}
	const words = `{"inputs":[{"name":"text","datatype":"BYTES","shape":[2,1],"data":["one","and two more"]}]}`
	if code, body := s.Post("/v2/models/count_words/infer", words); code != http.StatusOK || !strings.Contains(body, `"shape":[2,1],"data":[1,3]`) {
		t.Errorf("%d %s", code, body)
	}
	c := s.Client()
	req := &client.Request{Model: "total", Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{2, 3}, Data: servertest.Floats(1, 2, 3, 4, 5, 6)}}}
	resp, err := c.Infer(t.Context(), req)
	if err != nil || !bytes.Equal(resp.Outputs[0].Data, servertest.Floats(6, 15)) {
		t.Errorf("answer %v, %v", resp, err)
	}
	nan := float32(0)
	req.Inputs[0].Data = servertest.Floats(1, 2, 3, 4, 5, nan/nan)
	if _, err := c.Infer(t.Context(), req); !errors.Is(err, client.Invalid) || servertest.Sentence(err) != "x has a value that is not finite" {
		t.Errorf("a request that the model refuses got %v", err)
	}
}

// TestRowsOfManyClientsReachAFunctionJoined: what it is given is what the statistics
// say, each client gets its own rows, and a bad one fails alone.
func TestRowsOfManyClientsReachAFunctionJoined(t *testing.T) {
	s := servertest.Start(t, writeApp(t, `
import time, numpy as np, shoal

@shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1]), "together": ("INT32", [-1])}, max_batch=16)
def total(x):
    if (x < 0).any():
        raise shoal.BadInput("negative")
    time.sleep(0.02)  # for others to come meanwhile
    return {"y": x.sum(axis=1), "together": np.full(len(x), len(x))}
`))
	c := s.Client()
	ask := func(ctx context.Context, v float32) (sum []byte, err error) {
		resp, err := c.Infer(ctx, &client.Request{Model: "total", Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 3}, Data: servertest.Floats(v, 0, 1)}}})
		if err != nil {
			return nil, err
		}
		return resp.Outputs[0].Data, nil
	}
	var all sync.WaitGroup
	for i := range 40 {
		v := float32(i)
		if i == 20 {
			v = -1
		}
		all.Go(func() {
			switch sum, err := ask(t.Context(), v); {
			case v < 0:
				if !errors.Is(err, client.Invalid) {
					t.Errorf("the bad request got %v", err)
				}
			case err != nil || !bytes.Equal(sum, servertest.Floats(v+1)):
				t.Errorf("%v: answer %v, %v", v, sum, err)
			}
		})
	}
	all.Wait()
	stats, err := c.Statistics(t.Context(), "total", "")
	if err != nil {
		t.Fatal(err)
	}
	m := stats[0]
	largest := uint64(0)
	for _, b := range m.Batches {
		largest = max(largest, b.Size)
	}
	if m.Inferences != 39 || largest < 2 {
		t.Errorf("%d inferences, the largest batch of %d rows; want 39, and several rows together", m.Inferences, largest)
	}
}

func TestAnAppIsReloadedWhenItChanges(t *testing.T) {
	const app = "import shoal\nimport beside\n@shoal.model(inputs={'x': ('FP32', [-1, 3])}, outputs={'y': ('FP32', [-1])}, max_batch=4)\ndef total(x): return x.sum(axis=1) * %s\n"
	file := writeApp(t, fmt.Sprintf(app, "beside.factor"))
	beside := filepath.Join(filepath.Dir(file), "beside.py")
	rewrite(t, beside, "factor = 1\n")
	s := servertest.Start(t, file, "--reload")
	says := func(what string) func() bool {
		return func() bool {
			code, body := s.Post("/v2/models/total/infer", threeNumbers)
			if code != http.StatusOK {
				t.Errorf("%d %s", code, body)
			}
			return strings.Contains(body, "["+what+"]")
		}
	}
	servertest.Eventually(t, "the first", says("7.0"))
	rewrite(t, beside, "factor = 2\n") // of the same size, perhaps in the same second
	servertest.Eventually(t, "what it imports has changed", says("14.0"))

	rewrite(t, file, fmt.Sprintf(app, "beside.nothing(") /* which is never closed */)
	servertest.Eventually(t, "the reason is in the log", func() bool {
		log := s.Log()
		return strings.Contains(log, "SyntaxError: '(' was never closed") && strings.Contains(log, `msg="model not loaded" model=total`)
	})
	if code, _ := s.Get("/v2/health/ready"); code != http.StatusOK || !says("14.0")() {
		t.Errorf("after a broken file: ready %d, want what served before", code)
	}

	rewrite(t, file, fmt.Sprintf(app, "10")+"@shoal.model(inputs={'x': ('FP32', [-1])}, outputs={'y': ('FP32', [-1])})\ndef added(x): return x\n")
	servertest.Eventually(t, "it is mended", says("70.0"))
	servertest.Eventually(t, "a function that was added", func() bool { code, _ := s.Get("/v2/models/added/ready"); return code == http.StatusOK })
}

// TestAWorkerThatCrashesAfterABrokenChangeRunsTheOldCode: the version that was loaded
// serves on, with and without --reload.
func TestAWorkerThatCrashesAfterABrokenChangeRunsTheOldCode(t *testing.T) {
	for _, args := range [][]string{nil, {"--reload"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			file := writeApp(t, dyingApp)
			s := servertest.Start(t, file, args...)
			rewrite(t, file, "import no_such_module\n"+dyingApp)
			if args != nil {
				servertest.Eventually(t, "the change is rejected", func() bool { return strings.Contains(s.Log(), `msg="model not loaded" model=total`) })
			}
			if code, body := s.Post("/v2/models/total/infer", strings.Replace(threeNumbers, "1,2,4", "-1,2,4", 1)); code != http.StatusServiceUnavailable {
				t.Errorf("the request that crashes the worker: %d %s", code, body)
			}
			if code, body := s.Post("/v2/models/total/infer", threeNumbers); code != http.StatusOK || !strings.Contains(body, "[7.0]") {
				t.Errorf("after the crash: %d %s", code, body)
			}
		})
	}
}

func TestAWrongNumberOfRowsIsToldWithBoth(t *testing.T) {
	s := servertest.Start(t, writeApp(t, "import shoal\n@shoal.model(inputs={'x': ('FP32', [-1, 3])}, outputs={'y': ('FP32', [-1])}, max_batch=4)\ndef total(x): return x.sum(axis=0)\n"))
	code, body := s.Post("/v2/models/total/infer", threeNumbers)
	if code != http.StatusInternalServerError || !strings.Contains(body, "output 'y': found 3 rows, expected 1 rows, as many as the inputs have") {
		t.Errorf("%d %s", code, body)
	}
}

// TestAModelOfScikitLearnAnswers serves what examples/scikit-learn makes.
func TestAModelOfScikitLearnAnswers(t *testing.T) {
	env := environment(t, "sklearn", "sklearn")
	dir := t.TempDir()
	out, err := exec.Command(filepath.Join(env, "bin", "python"), filepath.Join(servertest.Root, "examples/scikit-learn/make.py"), dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink(env, filepath.Join(dir, "iris", "venv")); err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, dir)
	code, body := s.Post("/v2/models/iris/infer", `{"inputs":[{"name":"x","datatype":"FP64","shape":[2,4],"data":[5.1,3.5,1.4,0.2,6.3,3.3,6.0,2.5]}]}`)
	if code != http.StatusOK || !strings.Contains(body, `"name":"predict","datatype":"BYTES","shape":[2,1],"data":["setosa","virginica"]`) ||
		!strings.Contains(body, `"name":"predict_proba","datatype":"FP64","shape":[2,3]`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := s.Get("/v2/models/iris/config"); code != http.StatusOK || !strings.Contains(body, `"max_batch_size":64`) {
		t.Errorf("%d %s", code, body)
	}
}
