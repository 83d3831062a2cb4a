//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// meanwhile does something while clients ask for another model, which must not
// notice.
func meanwhile(t *testing.T, s *server, do func()) {
	t.Helper()
	crowd{clients: 4, request: func(int) *kservepb.ModelInferRequest { return vector("good") }, during: do}.run(t, s)
}

// refusal asks for a load that must not succeed, and returns what the client is
// told.
func refusal(t *testing.T, s *server, model, body string) string {
	t.Helper()
	code, answer := s.control("/models/"+model+"/load", body)
	if code == http.StatusOK {
		t.Errorf("%s was loaded", model)
	}
	var told struct{ Error string }
	if err := json.Unmarshal([]byte(answer), &told); err != nil {
		t.Errorf("%v: %s", err, answer)
	}
	return told.Error
}

// TestProofWhatIsWrongWithAModelIsSaid loads models with which something is wrong,
// each while another one serves. The client that asked is told what is wrong, in
// words with which it can be mended.
func TestProofWhatIsWrongWithAModelIsSaid(t *testing.T) {
	onnxtest.Library(t)
	whole, err := os.ReadFile(onnxtest.Model("mlp"))
	if err != nil {
		t.Fatal(err)
	}
	made := func(name string, content []byte) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const warm = `max_batch_size: 8 model_warmup [ { name: "first" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 64 ] zero_data: true } } } ]`
	cases := map[string]struct {
		model onnxModel
		parts []string // of the sentence
	}{
		"corrupt":       {onnxModel{file: made("corrupt", []byte("this is no model"))}, []string{"model.onnx", "not an ONNX model", "the file is a text"}},
		"cut_off":       {onnxModel{file: made("half", whole[:len(whole)/2])}, []string{"model.onnx", "not an ONNX model, or an incomplete one", "copy or download it again"}},
		"empty":         {onnxModel{file: made("empty", nil)}, []string{"model.onnx"}},
		"no_file":       {onnxModel{config: `backend: "onnxruntime"`}, []string{"model.onnx", "no such file"}},
		"wrong_shape":   {onnxModel{onnxtest.Model("mlp"), `max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 33 ] } ]`}, []string{"config.pbtxt:1", "input[0].dims", "33", "32"}},
		"wrong_type":    {onnxModel{onnxtest.Model("mlp"), `max_batch_size: 8 input [ { name: "x" data_type: TYPE_INT64 dims: [ 32 ] } ]`}, []string{"config.pbtxt:1", "input[0].data_type", "INT64", "FP32"}},
		"wrong_name":    {onnxModel{onnxtest.Model("mlp"), `max_batch_size: 8 input [ { name: "z" data_type: TYPE_FP32 dims: [ 32 ] } ]`}, []string{"config.pbtxt:1", "input[0].name", `"z"`, `"x"`}},
		"wrong_field":   {onnxModel{onnxtest.Model("mlp"), "max_batch_size: 8\nmax_batch_sise: 4"}, []string{"config.pbtxt:2", "max_batch_sise"}},
		"wrong_backend": {onnxModel{onnxtest.Model("mlp"), `backend: "tensorflow"`}, []string{"config.pbtxt:1", "tensorflow", "onnxruntime"}},
		"no_batch":      {onnxModel{onnxtest.Model("fixed"), `max_batch_size: 8`}, []string{"max_batch_size"}},
		"endless":       {onnxModel{onnxtest.Model("endless"), warm}, []string{"5s", "--model-load-timeout-secs", "model_warmup"}},
		"nobody":        {onnxModel{}, []string{"nobody"}},
	}
	models := map[string]onnxModel{"good": {file: onnxtest.Model("mlp")}}
	for name, c := range cases {
		if c.model != (onnxModel{}) {
			models[name] = c.model
		}
	}
	s := start(t, onnxRepository(t, models), "--model-control-mode=explicit", "--load-model=good", "--model-load-timeout-secs=5") // the good one takes a second on a busy machine
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			meanwhile(t, s, func() {
				answer := refusal(t, s, name, "")
				within(t, "the answer", answer, append(c.parts, name)...)
				t.Log(answer)
			})
		})
	}
}

// TestProofAnEndlessRequestEndsAtItsDeadline asks for what never ends. The client is
// answered at its deadline, the instance is free again, and the rest serves on.
func TestProofAnEndlessRequestEndsAtItsDeadline(t *testing.T) {
	onnxtest.Library(t)
	s := start(t, onnxRepository(t, map[string]onnxModel{"good": {file: onnxtest.Model("mlp")}, "spin": {file: onnxtest.Model("spin"), config: `
		max_batch_size: 8
		instance_group [ { count: 1 } ]
	`}}))
	c := s.client()
	meanwhile(t, s, func() {
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			_, err := c.ModelInfer(ctx, spin("spin", 1e15))
			cancel()
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("a request without end: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := c.ModelInfer(ctx, spin("spin", 1)); err != nil {
			t.Errorf("the instance is not free again: %v", err)
		}
	})
}

// TestProofWithoutTheLibraryTheRestServes names a library that is not there.
func TestProofWithoutTheLibraryTheRestServes(t *testing.T) {
	dir := repositoryOf(t, map[string]string{"m": config(time.Millisecond, "1", "")})
	addModel(t, dir, "onnx", onnxModel{file: onnxtest.Model("mlp")})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=m", "--onnxruntime-library=/nowhere/libonnxruntime.so")
	within(t, "the answer", refusal(t, s, "onnx", ""), "ONNX Runtime", "/nowhere/libonnxruntime.so", "make deps")
	if code, err := oneRow(t.Context(), s); err != nil || code != http.StatusOK {
		t.Errorf("the other model: %d %v", code, err)
	}
}

// TestProofALogThatCannotBeWrittenStopsNothing has the log go where nothing fits.
func TestProofALogThatCannotBeWrittenStopsNothing(t *testing.T) {
	onnxtest.Library(t)
	httpPort, grpcPort := freePort(t), freePort(t) // the log would say which, if it could
	s := launch(t, onnxRepository(t, map[string]onnxModel{"good": {file: onnxtest.Model("mlp")}}),
		"--log-file=/dev/full", "--http-port="+httpPort, "--grpc-port="+grpcPort, "--metrics-port=0")
	s.http, s.grpc = "http://127.0.0.1:"+httpPort, "127.0.0.1:"+grpcPort
	s.awaitReady()
	meanwhile(t, s, lasting(200*time.Millisecond))
}

// freePort returns a port that nobody listens on just now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	return port
}

// TestProofARepositoryThatVanishesUnloadsNothing takes the directory away that is
// polled, and brings it back.
func TestProofARepositoryThatVanishesUnloadsNothing(t *testing.T) {
	onnxtest.Library(t)
	dir := filepath.Join(onnxRepository(t, nil), "models")
	addModel(t, dir, "good", onnxModel{file: onnxtest.Model("mlp")})
	s := start(t, dir, "--model-control-mode=poll", "--repository-poll-secs=1")
	// The polls are a second apart, and a change is believed the second time.
	await := func(what string, done func() bool) {
		t.Helper()
		for range 100 {
			if done() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatalf("not after 10 s: %s\n%s", what, s.logged())
	}
	meanwhile(t, s, func() {
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		await("the log says that the repository has gone", func() bool { return strings.Contains(s.logged(), "the model repository cannot be read") })
		within(t, "the log", s.logged(), dir, "models that are loaded stay")
		time.Sleep(2500 * time.Millisecond) // for as many polls as would unload a model that has gone
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
		addModel(t, dir, "late", onnxModel{file: onnxtest.Model("mlp")})
		await("a model that came later is loaded", func() bool {
			code, _ := s.get("/v2/models/late/ready")
			return code == http.StatusOK
		})
	})
}
