//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// control asks something of the repository, and returns the status and the body of
// the answer.
func (s *server) control(path, body string) (int, string) {
	s.t.Helper()
	return s.send("/v2/repository"+path, body)
}

// send posts a body, and returns the status and the body of the answer.
func (s *server) send(path, body string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.http+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	status, _, answer, err := fetch(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return status, string(answer)
}

// load asks for a model to be loaded, which must succeed.
func (s *server) load(model string) {
	s.t.Helper()
	if code, answer := s.control("/models/"+model+"/load", ""); code != http.StatusOK {
		s.t.Errorf("load of %s: %d %s", model, code, answer)
	}
}

// unload asks for a model to be unloaded, and waits until its memory is free.
func (s *server) unload(model string) {
	s.t.Helper()
	if code, answer := s.control("/models/"+model+"/unload", ""); code != http.StatusOK {
		s.t.Errorf("unload of %s: %d %s", model, code, answer)
	}
	for range 1000 {
		if _, index := s.control("/index", ""); strings.Contains(index, `"reason":"unloaded"`) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Errorf("%s is still being unloaded after 10 s", model)
}

// black asks the text recogniser for a black picture.
func black(model string) *kservepb.ModelInferRequest { return seedRequest(model, 1) }

// vector asks the perceptron of the tests.
func vector(model string) *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*kservepb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 32}}},
		RawInputContents: [][]byte{make([]byte, 32*4)},
	}
}

// TestProofLoadsAndUnloadsDisturbNobody loads and unloads a model over and over
// while another one is asked all the time.
func TestProofLoadsAndUnloadsDisturbNobody(t *testing.T) {
	onnxtest.Library(t)
	busy, guest, request := onnxtest.Model("mlp"), onnxtest.Model("spin"), vector
	if *strict {
		busy, guest, request = realModel(t, "text_recognition"), realModel(t, "ppocrv4_rec"), black
	}
	s := start(t, onnxRepository(t, map[string]onnxModel{"busy": {file: busy}, "guest": {file: guest}}),
		"--model-control-mode=explicit", "--load-model=busy")
	const clients = 8
	rounds := choose(29, 20) // strict proofs have seven times as many: 203
	alone := crowd{clients: clients, request: func(int) *kservepb.ModelInferRequest { return request("busy") }}
	// calm lets the clients ask for a while, and returns the least memory meanwhile:
	// what is used only now and then is not kept.
	calm := func(d time.Duration) (got tally, least int64) {
		least = math.MaxInt64
		quiet := alone
		quiet.during = func() {
			for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
				least = min(least, s.usage().memory)
			}
		}
		return quiet.run(t, s), least
	}
	one := choose(5*time.Second, 500*time.Millisecond)
	_, before := calm(one)
	var after int64
	hold(t, "99th percentile of the other's latency, times that without loads", 0, choose(1.5, math.Inf(1)), func() float64 {
		disturbed := alone
		disturbed.during = func() {
			for range rounds {
				s.load("guest")
				if code, answer := s.get("/v2/models/guest/ready"); code != http.StatusOK {
					t.Errorf("loaded, and not ready: %d %s", code, answer)
				}
				s.unload("guest")
			}
		}
		loads := disturbed.run(t, s)
		var without tally
		without, after = calm(loads.took)
		t.Logf("%d loads and unloads in %v, %d MB resident; p99 %v, and %v without", rounds, loads.took.Round(time.Millisecond), after>>20, loads.p99(), without.p99())
		return float64(loads.p99()) / float64(without.p99())
	})
	growth := float64(after) / float64(before)
	t.Logf("%d MB resident before the first load, %d after the last", before>>20, after>>20)
	if most := choose(1.1, 1.5); growth > most {
		t.Errorf("%.2f times the memory after all was unloaded, want %.1f at the most", growth, most)
	}
}

// TestProofAModelIsReplacedUnderLoad puts one of two models in the place of the
// other, again and again. Each answer must be that of one of them, and what is asked
// after a load is answered by the new one.
func TestProofAModelIsReplacedUnderLoad(t *testing.T) {
	onnxtest.Library(t)
	file, other, request := onnxtest.Model("add_sub"), subAdd(t), func() *kservepb.ModelInferRequest { return threeAndOne("m") }
	if *strict {
		file, other, request = realModel(t, "text_recognition"), realModel(t, "text_recognition_2"), func() *kservepb.ModelInferRequest { return black("m") }
	}
	config := `max_batch_size: 8 dynamic_batching { }`
	dir := onnxRepository(t, map[string]onnxModel{"m": {file, config}})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=m")
	c := s.client()
	ask := func() []byte {
		resp, err := c.ModelInfer(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Join(resp.RawOutputContents, nil)
	}
	files := [2]string{file, other}
	var answers [2][]byte
	for n := range files {
		relink(t, dir, files[n])
		s.load("m")
		answers[n] = ask()
	}
	if bytes.Equal(answers[0], answers[1]) {
		t.Fatal("the two models answer the same, which proves nothing")
	}
	var seen [2]atomic.Int64
	crowd{
		clients: 16,
		request: func(int) *kservepb.ModelInferRequest { return request() },
		check: func(_ int, resp *kservepb.ModelInferResponse, err error) error {
			if err != nil {
				return err
			}
			for n := range answers {
				if bytes.Equal(bytes.Join(resp.RawOutputContents, nil), answers[n]) {
					seen[n].Add(1)
					return nil
				}
			}
			return fmt.Errorf("the answer is that of neither model")
		},
		during: func() {
			for i := range 50 {
				relink(t, dir, files[i%2])
				s.load("m")
				if !bytes.Equal(ask(), answers[i%2]) {
					t.Errorf("after load %d the old model answers", i)
				}
			}
		},
	}.run(t, s)
	t.Logf("50 replacements; the two models answered %d and %d times", seen[0].Load(), seen[1].Load())
	if seen[0].Load() == 0 || seen[1].Load() == 0 {
		t.Error("only one of the models was seen")
	}
}

// relink puts another file in the place of model m's, in one step.
func relink(t *testing.T, dir, file string) {
	t.Helper()
	file, err := filepath.Abs(file)
	next := filepath.Join(t.TempDir(), "next")
	if err == nil {
		err = os.Symlink(file, next)
	}
	if err == nil {
		err = os.Rename(next, filepath.Join(dir, "m", "1", "model.onnx"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// subAdd writes the model add_sub with its operators in the other order, so that
// the outputs change places, and nothing else.
func subAdd(t *testing.T) string {
	t.Helper()
	model, err := os.ReadFile(onnxtest.Model("add_sub"))
	if err != nil {
		t.Fatal(err)
	}
	model = []byte(strings.NewReplacer("Add", "Sub", "Sub", "Add").Replace(string(model)))
	file := filepath.Join(t.TempDir(), "sub_add.onnx")
	if err := os.WriteFile(file, model, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func threeAndOne(model string) *kservepb.ModelInferRequest {
	row := func(v float32) (b []byte) {
		for range 16 {
			b = append(b, floats(v)...)
		}
		return b
	}
	return &kservepb.ModelInferRequest{
		ModelName: model,
		Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 16}}, {Name: "INPUT1", Datatype: "FP32", Shape: []int64{1, 16}},
		},
		RawInputContents: [][]byte{row(3), row(1)},
	}
}
