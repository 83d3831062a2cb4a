package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/repository"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestEachFactIsJudged(t *testing.T) {
	gone := errors.New("it is gone")
	model := repository.Inspection{Name: "m", Backend: onnx.Name, Versions: []int64{1, 3}}
	warned, broken := model, model
	warned.Findings = []modelconfig.Finding{{Where: "config.pbtxt:3", Field: "optimization", Kind: modelconfig.Ignored, What: "nobody uses it"}}
	broken.Err = errors.Join(gone, gone)
	unused, rejected := warned, broken
	unused.Findings = []modelconfig.Finding{warned.Findings[0]}
	unused.Findings[0].Kind = modelconfig.Unused
	rejected.Findings = []modelconfig.Finding{
		{Where: "a:1", Field: "one", Kind: modelconfig.Rejected, What: "no", Instead: "do that"},
		{Field: "three", Kind: modelconfig.Ignored},
		{Where: "a:2", Field: "two", Kind: modelconfig.Rejected, What: "no", Instead: "do that"},
	}
	for _, tt := range []struct {
		facts Facts
		want  string // a line of the findings
	}{
		{Facts{Library: Library{Path: "/lib/a.so", Version: "1.30.0"}}, "ok    ONNX Runtime: 1.30.0 at /lib/a.so"},
		{Facts{Library: Library{Err: gone}}, "warn  ONNX Runtime: it is gone; ONNX models cannot run without it"},
		{Facts{Library: Library{Err: gone}, Models: []repository.Inspection{model}}, `fail  ONNX Runtime: it is gone; model "m" cannot run without it`},
		{Facts{Cores: 2}, "ok    cores: 2"},
		{Facts{}, "warn  memory: unknown on this system; make sure that the models fit"},
		{Facts{Memory: machine.Memory{Limit: 2 << 30, Free: 1 << 30}}, "ok    memory: 1024 MiB free of the machine's 2048 MiB"},
		{Facts{Memory: machine.Memory{Limit: 512 << 20, Free: 1 << 20, Contained: true}}, "warn  memory: 1 MiB free of the container's 512 MiB; provide more memory, or stop other programs"},
		{Facts{Ports: []Port{{Protocol: "http", Address: "127.0.0.1:8000"}}}, "ok    http port: 127.0.0.1:8000 is free"},
		{Facts{Ports: []Port{{"grpc", "127.0.0.1:8001", "choose another with --grpc-port", gone, false}}}, "warn  grpc port: it is gone; if it is not used by Shoal itself, choose another with --grpc-port"},
		{Facts{Ports: []Port{{"grpc", "127.0.0.1:8000", "choose another with --grpc-port", nil, true}}}, "fail  grpc port: 127.0.0.1:8000 is the address of another port of the server, too; choose another with --grpc-port"},
		{Facts{Searched: true}, "fail  models: none found; specify a directory with a subdirectory for each model, or an .onnx file"},
		{Facts{Paths: gone}, "fail  models: it is gone; specify a directory with a subdirectory for each model, or an .onnx file"},
		{Facts{Models: []repository.Inspection{model}}, "ok    model m: version 1, 3 for onnxruntime"},
		{Facts{Models: []repository.Inspection{warned}}, "warn  model m: version 1, 3 for onnxruntime; config.pbtxt:3: optimization: has no effect: nobody uses it"},
		{Facts{Models: []repository.Inspection{unused}}, "ok    model m: version 1, 3 for onnxruntime; config.pbtxt:3: optimization: has no effect: nobody uses it"},
		{Facts{Models: []repository.Inspection{rejected}}, "fail  model m: a:1: one: no; a:2: two: no; do that"},
		{Facts{Library: Library{Err: gone}, Models: []repository.Inspection{model}}, "fail  model m: ONNX Runtime cannot be loaded; install it, or name it with --onnxruntime-library"},
		{Facts{Models: []repository.Inspection{broken}}, "fail  model m: it is gone; it is gone; change it, or serve the other models with --exit-on-error=false"},
	} {
		var lines []string
		for _, f := range tt.facts.Judge() {
			lines = append(lines, f.String())
		}
		if all := strings.Join(lines, "\n") + "\n"; !strings.Contains(all, tt.want+"\n") {
			t.Errorf("got\n%swant the line\n%s", all, tt.want)
		}
	}
}

func TestLookingLoadsNothing(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"good/config.pbtxt":             `backend: "onnxruntime"`,
		"good/1/model.onnx":             "no model at all",
		"large/1/model.onnx/model.onnx": "",
		"missing/1/model.onnx/net.onnx": "",
		"empty/config.pbtxt":            `backend: "onnxruntime"`,
		"empty/1/notes.txt":             "",
		"wrong/config.pbtxt":            `max_batch_sise: 8`,
		"wrong/1/model.onnx":            "",
		"strange/1/model.bin":           "",
		"plan/1/model.plan":             "",
		"none/config.pbtxt":             `backend: "onnxruntime"`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := Look(t.Context(), Options{Paths: []string{dir, "no/such/folder"}, Inspect: repository.InspectOptions{Backends: []string{onnx.Name}}, Library: "no/such/library"})
	if f.Library.Err == nil || f.Cores < 1 || f.Paths == nil || len(f.Ports) != 0 {
		t.Errorf("found %+v", f)
	}
	wants := map[string]string{
		"good": "", "large": "", "missing": "model.onnx/model.onnx: no such file", "empty": "the model's file cannot be read", "wrong": "max_batch_sise", "strange": `backend: not set, and no file of the model shows it; name the model's file model.onnx or model.py, or set backend to one of "onnxruntime"`,
		"plan": "model.plan: the format is not supported; export the model to ONNX. This is a TensorRT plan: export the model that it was built from",
		"none": "no version that its version policy selects",
	}
	for _, m := range f.Models {
		if want := wants[m.Name]; (m.Err == nil) != (want == "") || m.Err != nil && !strings.Contains(m.Err.Error(), want) {
			t.Errorf("%s: %v, want %q", m.Name, m.Err, want)
		}
		delete(wants, m.Name)
	}
	if len(wants) > 0 {
		t.Errorf("not found: %v", wants)
	}
}

func TestAModelForAGPUNeedsALibraryForGPUs(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "m", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config.pbtxt": `instance_group [ { kind: KIND_GPU } ]`, "1/model.onnx": "no model at all"} {
		if err := os.WriteFile(filepath.Join(dir, "m", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := Look(t.Context(), Options{Paths: []string{dir}, Inspect: repository.InspectOptions{Backends: []string{onnx.Name}}, Library: onnxtest.Library(t)})
	if f.Library.Err != nil || f.Library.CUDA {
		t.Skipf("the library is %+v, and this needs one for the CPU", f.Library)
	}
	if len(f.Models) != 1 || f.Models[0].Err == nil || !strings.Contains(f.Models[0].Err.Error(), "no CUDA provider") {
		t.Errorf("found %+v", f.Models)
	}
}

func TestThePortsAreTriedThatTheServerWouldOpen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	f := Look(t.Context(), Options{Ports: []Port{{Protocol: "http", Address: taken.Addr().String()}, {Protocol: "grpc", Address: "127.0.0.1:0"}}})
	if len(f.Ports) != 2 || f.Ports[0].Err == nil || f.Ports[1].Err != nil {
		t.Errorf("found %+v", f.Ports)
	}
}

func TestTwoPortsWithOneAddressAreFound(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	f := Look(t.Context(), Options{Ports: []Port{{Address: address}, {Address: address}, {Address: "0.0.0.0:" + port}, {Address: "127.0.0.1:0"}, {Address: "127.0.0.1:0"}}})
	var clash []bool
	for _, p := range f.Ports {
		if p.Err != nil {
			t.Errorf("%s: %v", p.Address, p.Err)
		}
		clash = append(clash, p.Clashes)
	}
	if !slices.Equal(clash, []bool{false, true, true, false, false}) {
		t.Errorf("ports that clash: %v", clash)
	}
}

func TestAModelWhoseLibraryIsMissingCannotRun(t *testing.T) {
	dir := t.TempDir()
	bare := filepath.Join(t.TempDir(), "python") // has numpy and nothing else
	if err := os.WriteFile(bare, []byte("#!/bin/sh\ntest \"$2\" = 'import numpy'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("parameters { key: \"python\" value { string_value: %q } }\n", bare)
	wants := map[string]string{} // the errors
	for _, m := range [][3]string{
		{"code", "model.py", ""},
		{"fitted", "model.joblib", "scikit-learn"},
		{"pickled", "model.pkl", "scikit-learn"},
		{"trees", "model.ubj", "xgboost"},
		{"traced", "model.pt", "torch"},
	} {
		name, file, library := m[0], m[1], m[2]
		path := filepath.Join(dir, name, "1", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644), os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644)); err != nil {
			t.Fatal(err)
		}
		if library != "" {
			wants[name] = fmt.Sprintf("%s needs %s, which %s does not have: install it with %s -m pip install %s; a model that is exported to ONNX needs no library", file, library, bare, bare, library)
		}
	}
	f := Look(t.Context(), Options{Paths: []string{dir}, Inspect: repository.InspectOptions{Backends: []string{python.Name}}})
	if len(f.Models) != 5 {
		t.Fatalf("found %+v", f.Models)
	}
	for _, m := range f.Models {
		if got := fmt.Sprint(m.Err); got != cmp.Or(wants[m.Name], "<nil>") {
			t.Errorf("%s: %s", m.Name, got)
		}
	}
}

func TestAnEnsembleCannotRunWithoutWhatItsMembersNeed(t *testing.T) {
	dir := t.TempDir()
	const tensors = `input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 } `
	of := func(member string) string {
		return `platform: "ensemble" ` + tensors + fmt.Sprintf(`ensemble_scheduling { step { model_name: %q model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }`, member)
	}
	for path, text := range map[string]string{
		"python":              "#!/bin/sh\nexit 1\n", // has no numpy
		"code/1/model.py":     "",
		"code/config.pbtxt":   fmt.Sprintf(`parameters { key: "python" value { string_value: %q } } `, filepath.Join(dir, "python")) + tensors,
		"net/1/model.onnx":    "",
		"net/config.pbtxt":    tensors,
		"works/1/none":        "",
		"works/config.pbtxt":  `backend: "simulated" ` + tensors,
		"ofcode/1/none":       "",
		"ofcode/config.pbtxt": of("code"),
		"ofnet/1/none":        "",
		"ofnet/config.pbtxt":  of("net"),
		"outer/1/none":        "",
		"outer/config.pbtxt":  of("ofnet"),
		"good/1/none":         "",
		"good/config.pbtxt":   of("works"),
	} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	f := Look(t.Context(), Options{Paths: []string{dir}, Inspect: repository.InspectOptions{Backends: []string{onnx.Name, python.Name, "ensemble", "simulated"}}, Library: "no/such/library"})
	member := map[string]string{"ofcode": "code", "ofnet": "net", "outer": "ofnet"} // that cannot be loaded
	for _, m := range f.Models {
		got := fmt.Sprint(m.Err)
		if want := member[m.Name]; m.Backend == "ensemble" && (want == "" && m.Err != nil || want != "" && !strings.HasSuffix(got, fmt.Sprintf("model %q is a step of the ensemble, and it cannot be loaded", want))) {
			t.Errorf("%s: %s", m.Name, got)
		}
	}
	if text := Summary(f.Judge()); text != "7 models: 2 unchanged, 0 with a difference, 5 cannot run" {
		t.Error(text)
	}
}
