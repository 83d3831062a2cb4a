//go:build e2e

package proofs

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

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofLoadsAndUnloadsDisturbNobody loads and unloads a model over and over
// while another one is asked all the time.
func TestProofLoadsAndUnloadsDisturbNobody(t *testing.T) {
	onnxtest.Library(t)
	busy, guest, request := onnxtest.Model("mlp"), onnxtest.Model("spin"), servertest.Vector
	if *servertest.Strict {
		busy, guest, request = servertest.RealModel(t, "text_recognition"), servertest.RealModel(t, "ppocrv4_rec"), servertest.BlackLine
	}
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"busy": {File: busy}, "guest": {File: guest}}),
		"--model-control-mode=explicit", "--load-model=busy")
	const clients = 8
	rounds := servertest.StrictOr(29, 20) // strict proofs have seven times as many: 203
	alone := servertest.Crowd{Clients: clients, Request: func(int) *client.Request { return request("busy") }}
	// calm lets the clients ask for a while, and returns the least memory meanwhile:
	// what is used only now and then is not kept.
	calm := func(d time.Duration) (got servertest.Tally, least int64) {
		least = math.MaxInt64
		quiet := alone
		quiet.During = func() {
			for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
				least = min(least, s.Usage().Memory)
			}
		}
		return quiet.Run(t, s), least
	}
	one := servertest.StrictOr(5*time.Second, 500*time.Millisecond)
	_, before := calm(one)
	var after int64
	servertest.Hold(t, "99th percentile of the other's latency, times that without loads", 0, servertest.StrictOr(1.5, 20.0), func() float64 {
		disturbed := alone
		disturbed.During = func() {
			for range rounds {
				s.Load("guest")
				if code, answer := s.Get("/v2/models/guest/ready"); code != http.StatusOK {
					t.Errorf("loaded, and not ready: %d %s", code, answer)
				}
				s.Unload("guest")
			}
		}
		loads := disturbed.Run(t, s)
		var without servertest.Tally
		without, after = calm(loads.Took)
		t.Logf("%d loads and unloads in %v, %d MB resident; p99 %v, and %v without", rounds, loads.Took.Round(time.Millisecond), after>>20, loads.P99(), without.P99())
		return float64(loads.P99()) / float64(without.P99())
	})
	if after == 0 {
		return // an earlier run has measured all of it
	}
	growth := float64(after) / float64(before)
	t.Logf("%d MB resident before the first load, %d after the last", before>>20, after>>20)
	if most := servertest.StrictOr(1.1, 1.5); growth > most {
		t.Errorf("%.2f times the memory after all was unloaded, want %.1f at the most", growth, most)
	}
}

// TestProofAModelIsReplacedUnderLoad puts one of two models in the place of the
// other, again and again. Each answer must be that of one of them, and what is asked
// after a load is answered by the new one.
func TestProofAModelIsReplacedUnderLoad(t *testing.T) {
	onnxtest.Library(t)
	file, other, request := onnxtest.Model("add_sub"), subAdd(t), func() *client.Request { return threeAndOne("m") }
	if *servertest.Strict {
		file, other, request = servertest.RealModel(t, "text_recognition"), servertest.RealModel(t, "text_recognition_2"), func() *client.Request { return servertest.BlackLine("m") }
	}
	config := `max_batch_size: 8 dynamic_batching { }`
	dir := servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {File: file, Config: config}})
	s := servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=m")
	c := s.Client()
	ask := func() []byte {
		resp, err := c.Infer(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		return joinedOutputs(resp)
	}
	files := [2]string{file, other}
	var answers [2][]byte
	for n := range files {
		relink(t, dir, files[n])
		s.Load("m")
		answers[n] = ask()
	}
	if bytes.Equal(answers[0], answers[1]) {
		t.Fatal("the two models answer the same, which proves nothing")
	}
	var seen [2]atomic.Int64
	servertest.Crowd{
		Clients: 16,
		Request: func(int) *client.Request { return request() },
		Check: func(_ int, resp *client.Response, err error) error {
			if err != nil {
				return err
			}
			for n := range answers {
				if bytes.Equal(joinedOutputs(resp), answers[n]) {
					seen[n].Add(1)
					return nil
				}
			}
			return fmt.Errorf("the answer is that of neither model")
		},
		During: func() {
			for i := range 50 {
				relink(t, dir, files[i%2])
				s.Load("m")
				if !bytes.Equal(ask(), answers[i%2]) {
					t.Errorf("after load %d the old model answers", i)
				}
			}
		},
	}.Run(t, s)
	t.Logf("50 replacements; the two models answered %d and %d times", seen[0].Load(), seen[1].Load())
	if seen[0].Load() == 0 || seen[1].Load() == 0 {
		t.Error("only one of the models was seen")
	}
}

// joinedOutputs returns the data of all outputs.
func joinedOutputs(resp *client.Response) (all []byte) {
	for _, t := range resp.Outputs {
		all = append(all, t.Data...)
	}
	return all
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

func threeAndOne(model string) *client.Request {
	row := func(v float32) (b []byte) {
		for range 16 {
			b = append(b, servertest.Floats(v)...)
		}
		return b
	}
	return &client.Request{Model: model, Inputs: []client.Tensor{
		{Name: "INPUT0", Type: tensor.FP32, Shape: []int64{1, 16}, Data: row(3)},
		{Name: "INPUT1", Type: tensor.FP32, Shape: []int64{1, 16}, Data: row(1)},
	}}
}
