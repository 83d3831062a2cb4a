//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// meanwhile does something while clients ask for another model, which must not
// notice.
func meanwhile(t *testing.T, s *servertest.Server, do func()) {
	t.Helper()
	servertest.Crowd{Clients: 4, Request: func(int) *client.Request { return servertest.Vector("good") }, During: do}.Run(t, s)
}

// refusal asks for a load that must not succeed, and returns what the client is
// told.
func refusal(t *testing.T, s *servertest.Server, model string, opts client.LoadOptions) string {
	t.Helper()
	err := s.Web().Load(t.Context(), model, opts)
	if err == nil {
		t.Errorf("%s was loaded", model)
	}
	return servertest.Sentence(err)
}

// TestWhatIsWrongWithAModelIsSaid loads models with which something is wrong,
// each while another one serves. The client that asked is told what is wrong, in
// words with which it can be mended.
func TestWhatIsWrongWithAModelIsSaid(t *testing.T) {
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
		model servertest.ONNXModel
		parts []string // of the sentence
	}{
		"corrupt":       {servertest.ONNXModel{File: made("corrupt", []byte("this is no model"))}, []string{"model.onnx", "not an ONNX model", "the file is a text"}},
		"cut_off":       {servertest.ONNXModel{File: made("half", whole[:len(whole)/2])}, []string{"model.onnx", "not an ONNX model, or an incomplete one", "copy or download it again"}},
		"empty":         {servertest.ONNXModel{File: made("empty", nil)}, []string{"model.onnx"}},
		"no_file":       {servertest.ONNXModel{Config: `backend: "onnxruntime"`}, []string{"model.onnx", "no such file"}},
		"wrong_shape":   {servertest.ONNXModel{File: onnxtest.Model("mlp"), Config: `max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 33 ] } ]`}, []string{"config.pbtxt:1", "input[0].dims", "33", "32"}},
		"wrong_type":    {servertest.ONNXModel{File: onnxtest.Model("mlp"), Config: `max_batch_size: 8 input [ { name: "x" data_type: TYPE_INT64 dims: [ 32 ] } ]`}, []string{"config.pbtxt:1", "input[0].data_type", "INT64", "FP32"}},
		"wrong_name":    {servertest.ONNXModel{File: onnxtest.Model("mlp"), Config: `max_batch_size: 8 input [ { name: "z" data_type: TYPE_FP32 dims: [ 32 ] } ]`}, []string{"config.pbtxt:1", "input[0].name", `"z"`, `"x"`}},
		"wrong_field":   {servertest.ONNXModel{File: onnxtest.Model("mlp"), Config: "max_batch_size: 8\nmax_batch_sise: 4"}, []string{"config.pbtxt:2", "max_batch_sise"}},
		"wrong_backend": {servertest.ONNXModel{File: onnxtest.Model("mlp"), Config: `backend: "tensorflow"`}, []string{"config.pbtxt:1", "tensorflow", "onnxruntime"}},
		"no_batch":      {servertest.ONNXModel{File: onnxtest.Model("fixed"), Config: `max_batch_size: 8`}, []string{"max_batch_size"}},
		"endless":       {servertest.ONNXModel{File: onnxtest.Model("endless"), Config: warm}, []string{"5s", "--model-load-timeout-secs", "model_warmup"}},
		"nobody":        {servertest.ONNXModel{}, []string{"nobody"}},
	}
	models := map[string]servertest.ONNXModel{"good": {File: onnxtest.Model("mlp")}}
	for name, c := range cases {
		if c.model != (servertest.ONNXModel{}) {
			models[name] = c.model
		}
	}
	dir := servertest.ONNXRepository(t, models)
	s := servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=good", "--model-load-timeout-secs=5") // the good one takes a second on a busy machine
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			meanwhile(t, s, func() {
				answer := refusal(t, s, name, client.LoadOptions{})
				servertest.Contains(t, "the answer", answer, append(c.parts, name)...)
				if strings.Contains(answer, dir) {
					t.Errorf("the answer names a directory of the server")
				}
				t.Log(answer)
			})
		})
	}
	if _, index := s.Post("/v2/repository/index", ""); strings.Contains(index, dir) || !strings.Contains(index, "no_file/1/model.onnx") {
		t.Errorf("the index should name files within the repository only: %s", index)
	}
	s.AwaitLog(filepath.Join(dir, "no_file", "1", "model.onnx")) // for the user who runs it
}

// TestAnEndlessRequestEndsAtItsDeadline asks for what never ends. The client is
// answered at its deadline, the instance is free again, and the rest serves on.
func TestAnEndlessRequestEndsAtItsDeadline(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"good": {File: onnxtest.Model("mlp")}, "spin": {File: onnxtest.Model("spin"), Config: `
		max_batch_size: 8
		instance_group [ { count: 1 } ]
	`}}))
	c := s.Client()
	meanwhile(t, s, func() {
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			_, err := c.Infer(ctx, servertest.Spin("spin", 1e15))
			cancel()
			if !errors.Is(err, client.Deadline) {
				t.Errorf("a request without end: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := c.Infer(ctx, servertest.Spin("spin", 1)); err != nil {
			t.Errorf("the instance is not free again: %v", err)
		}
	})
}

// TestWithoutTheLibraryTheRestServes names a library that is not there.
func TestWithoutTheLibraryTheRestServes(t *testing.T) {
	dir := servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "")})
	servertest.AddModel(t, dir, "onnx", servertest.ONNXModel{File: onnxtest.Model("mlp")})
	s := servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=m", "--onnxruntime-library=/nowhere/libonnxruntime.so")
	servertest.Contains(t, "the answer", refusal(t, s, "onnx", client.LoadOptions{}), "ONNX Runtime", "libonnxruntime.so", "make deps")
	s.AwaitLog("/nowhere/libonnxruntime.so")
	if err := oneRow(t.Context(), s); err != nil {
		t.Errorf("the other model: %v", err)
	}
}

// TestALogThatCannotBeWrittenStopsNothing has the log go where nothing fits.
func TestALogThatCannotBeWrittenStopsNothing(t *testing.T) {
	onnxtest.Library(t)
	httpPort, grpcPort := servertest.FreePort(t), servertest.FreePort(t) // the log would say which, if it could
	s := servertest.Launch(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"good": {File: onnxtest.Model("mlp")}}),
		"--log-file=/dev/full", fmt.Sprint("--http-port=", httpPort), fmt.Sprint("--grpc-port=", grpcPort), "--metrics-port=0")
	s.HTTP, s.GRPC = fmt.Sprint("http://127.0.0.1:", httpPort), fmt.Sprint("127.0.0.1:", grpcPort)
	s.AwaitReady()
	meanwhile(t, s, servertest.For(200*time.Millisecond))
}

// TestARepositoryThatVanishesUnloadsNothing takes the directory away that is
// polled, and brings it back.
func TestARepositoryThatVanishesUnloadsNothing(t *testing.T) {
	onnxtest.Library(t)
	dir := filepath.Join(servertest.ONNXRepository(t, nil), "models")
	servertest.AddModel(t, dir, "good", servertest.ONNXModel{File: onnxtest.Model("mlp")})
	s := servertest.Start(t, dir, "--model-control-mode=poll", "--repository-poll-secs=1")
	// The polls are a second apart, and a change is believed the second time.
	await := func(what string, done func() bool) {
		t.Helper()
		for range 100 {
			if done() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatalf("not after 10 s: %s\n%s", what, s.Log())
	}
	meanwhile(t, s, func() {
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		await("the log says that the repository has gone", func() bool { return strings.Contains(s.Log(), "the model repository cannot be read") })
		servertest.Contains(t, "the log", s.Log(), dir, "models that are loaded stay")
		time.Sleep(2500 * time.Millisecond) // for as many polls as would unload a model that has gone
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
		servertest.AddModel(t, dir, "late", servertest.ONNXModel{File: onnxtest.Model("mlp")})
		await("a model that came later is loaded", func() bool {
			code, _ := s.Get("/v2/models/late/ready")
			return code == http.StatusOK
		})
	})
}
