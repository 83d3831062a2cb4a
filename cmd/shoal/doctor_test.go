package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/doctor"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
)

func TestTheDoctorsReport(t *testing.T) {
	cores := doctor.Finding{Check: "cores", Status: doctor.OK, Found: "2"}
	bad := doctor.Finding{Check: "model m", Status: doctor.Fail, Found: "nothing", Do: "fix it", Model: "m", Verdict: doctor.CannotRun}
	other := doctor.Finding{Check: "model other", Status: doctor.Warn, Found: "version 1", Model: "other", Verdict: doctor.Differs}
	good := doctor.Finding{Check: "model o", Status: doctor.OK, Found: "version 2", Model: "o", Verdict: doctor.Unchanged}
	for _, tt := range []struct {
		findings []doctor.Finding
		want     string
		failed   string // the error
	}{
		{[]doctor.Finding{cores}, "ok    cores: 2\n", ""},
		{[]doctor.Finding{cores, bad, other, good}, `ok    cores: 2

MODEL  VERDICT                 DETAIL
m      cannot run              nothing; fix it
other  runs with a difference  version 1
o      runs unchanged          version 2

3 models: 1 unchanged, 1 with a difference, 1 cannot run
`, "1 of 4 checks failed"},
		{[]doctor.Finding{good}, `
MODEL  VERDICT                 DETAIL
o      runs unchanged          version 2

1 model: 1 unchanged, 0 with a difference, 0 cannot run
`, ""},
	} {
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			err := report(&out, tt.findings, asJSON)
			if (err != nil) != (tt.failed != "") || err != nil && err.Error() != tt.failed {
				t.Errorf("error %v, want %s", err, tt.failed)
			}
			var read []doctor.Finding
			if asJSON && (json.Unmarshal(out.Bytes(), &read) != nil || !slices.Equal(read, tt.findings)) || !asJSON && out.String() != tt.want {
				t.Errorf("json %t: found\n%s", asJSON, out.String())
			}
		}
	}
}

// oneOfEach returns a repository with one model of each kind, and the verdict on each with a
// part of its reason.
func oneOfEach(t *testing.T) (string, map[string][2]string) {
	t.Helper()
	interpreter := pythontest.Interpreter(t)
	weights, err := os.ReadFile("../../examples/onnx/add_sub/1/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	onnx, parameter := string(weights), func(name string) string {
		return fmt.Sprintf("parameters { key: \"python\" value { string_value: %q } }\n", name)
	}
	const echo = "input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput [ { name: \"x\" data_type: TYPE_FP32 dims: [ 1 ] } ]\n"
	const chain = "input [ { name: \"a\" data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput [ { name: \"b\" data_type: TYPE_FP32 dims: [ 1 ] } ]\n"
	const code = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
	dir := directory(t, map[string]string{
		"onnx/1/model.onnx":   onnx,
		"unused/1/model.onnx": onnx, "unused/config.pbtxt": "optimization { priority: PRIORITY_MAX }\n",
		"ignored/1/model.onnx": onnx, "ignored/config.pbtxt": "optimization { execution_accelerators { cpu_execution_accelerator [ { name: \"openvino\" } ] } }\n",
		"simulated/1/none": "", "simulated/config.pbtxt": "backend: \"simulated\"\n" + echo,
		"code/1/model.py": code, "code/config.pbtxt": parameter(interpreter) + echo,
		"nowhere/1/model.py": code, "nowhere/config.pbtxt": parameter("/no/such/python") + echo,
		"ensemble/1/none": "", "ensemble/config.pbtxt": "platform: \"ensemble\"\n" + chain + "ensemble_scheduling { step [ { model_name: \"simulated\" model_version: -1 input_map { key: \"x\" value: \"a\" } output_map { key: \"x\" value: \"b\" } } ] }\n",
		"parts/1/none": "", "parts/config.pbtxt": "platform: \"ensemble\"\n" + chain + "ensemble_scheduling { step [ { model_name: \"typo\" model_version: -1 input_map { key: \"x\" value: \"a\" } output_map { key: \"x\" value: \"b\" } } ] }\n",
		"sealed/1/model.onnx": onnx, "sealed/config.pbtxt": "model_repository_agents { agents { name: \"checksum\" } }\n",
		"plan/1/model.plan": "", "plan/config.pbtxt": "platform: \"tensorrt_plan\"\n",
		"keras/1/model.keras": "",
		"typo/1/model.onnx":   onnx, "typo/config.pbtxt": "max_batch_sise: 8\n",
		"absent/1/notes.txt": "", "absent/config.pbtxt": "backend: \"onnxruntime\"\n",
		"versionless/config.pbtxt": "backend: \"onnxruntime\"\n",
	})
	return dir, map[string][2]string{
		"onnx": {"runs unchanged", "version 1 for onnxruntime"}, "unused": {"runs unchanged", "config.pbtxt:1: optimization.priority: has no effect"},
		"ignored":   {"runs with a difference", "config.pbtxt:1: optimization.execution_accelerators.cpu_execution_accelerator: has no effect: accelerators of CPUs"},
		"simulated": {"runs unchanged", "version 1 for simulated"}, "code": {"runs unchanged", "version 1 for python"},
		"nowhere":  {"cannot run", "config.pbtxt:1: parameters[python]: found \"/no/such/python\", expected an interpreter"},
		"ensemble": {"runs unchanged", "version 1 for ensemble"},
		"parts":    {"cannot run", "config.pbtxt:4: ensemble_scheduling.step[0].model_name: model \"typo\" is a step of the ensemble, and it cannot be loaded"},
		"sealed":   {"cannot run", "config.pbtxt:1: model_repository_agents.agents: repository agents are not supported yet; "},
		"plan":     {"cannot run", "config.pbtxt:1: platform: \"tensorrt_plan\" is not supported"}, "keras": {"cannot run", "export the model to ONNX"},
		"typo": {"cannot run", "max_batch_sise"}, "absent": {"cannot run", "the model's file cannot be read"}, "versionless": {"cannot run", "has no version directory"},
	}
}

func TestTheDoctorAndTheServerAgreeOnEveryKindOfModel(t *testing.T) {
	library := "--onnxruntime-library=" + onnxtest.Library(t)
	dir, want := oneOfEach(t)
	text, status := shoal(t, "doctor", dir, library, "--http-port=0", "--grpc-port=0", "--metrics-port=0")
	if status != 1 || !strings.Contains(text, "\n14 models: 5 unchanged, 1 with a difference, 8 cannot run\n") {
		t.Errorf("status %d:\n%s", status, text)
	}
	for name, row := range want {
		pattern := fmt.Sprintf(`(?m)^%s +%s  .*%s`, name, row[0], regexp.QuoteMeta(row[1]))
		if !regexp.MustCompile(pattern).MatchString(text) {
			t.Errorf("no line for %s with %q:\n%s", name, row, text)
		}
	}
	at := serving(t, 3, slog.DiscardHandler, "--exit-on-error=false", "--calibration-dir=", library, dir)
	index := loadedIndex(t, "http://"+at["http"])
	for _, m := range index {
		if runs := want[m.Name][0] != "cannot run"; runs != (m.State == "READY") || runs == (m.Reason != "") {
			t.Errorf("the doctor says that %s %s, and the server says %s: %s", m.Name, want[m.Name][0], m.State, m.Reason)
		}
		delete(want, m.Name)
	}
	if len(want) > 0 {
		t.Errorf("the server does not list %v", want)
	}
}

type indexEntry struct{ Name, State, Reason string }

// loadedIndex returns the index of a server, once each model is loaded or has failed.
func loadedIndex(t *testing.T, url string) (index []indexEntry) {
	t.Helper()
	for range 1200 {
		resp, err := (&http.Client{Timeout: 10 * time.Second}).Post(url+"/v2/repository/index", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		index = nil
		err = json.NewDecoder(resp.Body).Decode(&index)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(index, func(m indexEntry) bool { return m.State == "" || m.State == "LOADING" }) {
			return index
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("models are still loading: %+v", index)
	return nil
}

func TestTheDoctorLooksAtThePortsOfTheServer(t *testing.T) {
	t.Setenv("SHOAL_GRPC_PORT", "0")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	text, status := shoal(t, "doctor", "../../examples/seed-device", "--http-port="+port, "--allow-metrics=false", "--exit-on-error=false")
	if status != 0 || !strings.Contains(text, "warn  http port: listen tcp 127.0.0.1:"+port) || !strings.Contains(text, "choose another with --http-port") ||
		!strings.Contains(text, "ok    grpc port: 127.0.0.1:0 is free") || strings.Contains(text, "metrics port") {
		t.Errorf("status %d:\n%s", status, text)
	}
	config := directory(t, map[string]string{"config.properties": "inference_address=http://127.0.0.1:" + port + "\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"}) + "/config.properties"
	text, status = shoal(t, "doctor", "../../examples/seed-device", "--http-port=0", "--metrics-port=0", "--mms-config="+config, "--model-store="+t.TempDir())
	if status != 0 || !strings.Contains(text, "warn  inference port: listen tcp 127.0.0.1:"+port) || !strings.Contains(text, "choose another address in the file of --mms-config") ||
		!strings.Contains(text, "ok    management port: 127.0.0.1:0 is free") || !strings.Contains(text, "ok    mms_metrics port: 127.0.0.1:0 is free") {
		t.Errorf("a model store: status %d:\n%s", status, text)
	}
	for _, flag := range []string{"--http-port=70000", "--address=0.0.0.0", "--reload --model-control-mode=explicit"} {
		args := append([]string{"doctor", "../../examples/seed-device"}, strings.Fields(flag)...)
		if text, status := shoal(t, args...); status != 2 {
			t.Errorf("%s, which the server refuses: status %d:\n%s", flag, status, text)
		}
	}
	if text, status := shoal(t, "doctor", t.TempDir()); status != 1 || !strings.Contains(text, "fail  models: none found") {
		t.Errorf("status %d:\n%s", status, text)
	}
}
