package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/tensor"
)

// A setting is how a model is run: so many workers, each of so many threads, and
// batches of so many rows at most, for which a request waits so long.
type setting struct {
	workers, threads, rows int
	wait                   time.Duration
}

func (s setting) String() string {
	text := fmt.Sprintf("%d×%d", s.workers, s.threads)
	if s.rows > 1 {
		text += fmt.Sprintf(", batches of %d, %g ms", s.rows, s.wait.Seconds()*1000)
	}
	return text
}

// A subject is a model that is measured.
type subject struct {
	name string
	// peers is how all other servers run it: what the bare engine does best on two
	// cores, and the wait of 5 ms that their documentation begins with.
	peers setting
	hand  setting // how Shoal runs it when it is set by hand

	in, out []tensor.Tensor // one row, and what the bare engine makes of it

	log string // of what is run, if there is no model and a batch only takes its time
}

const usualWait = 5 * time.Millisecond

func subjects() []*subject {
	return []*subject{
		{name: "text_recognition", peers: setting{1, 2, 8, usualWait}, hand: setting{2, 1, 4, 0}},
		{name: "ppocrv4_rec", peers: setting{2, 1, 1, 0}, hand: setting{2, 1, 1, 0}},
		{name: "minilm", peers: setting{2, 1, 8, usualWait}, hand: setting{2, 1, 16, 0}},
		{name: "wide_mlp", peers: setting{1, 2, 32, usualWait}, hand: setting{3, 1, 32, 3 * time.Millisecond}},
		{name: tinyModel, peers: setting{1, 1, 16, usualWait}, hand: setting{1, 1, 32, 0}},
	}
}

// A server is one that can be measured.
type server struct {
	name  string   // as it is shown
	about string   // is said beside its figures
	get   []string // the command that installs it
	where []string // what it takes on the disk
	ours  bool
	waits bool // a request that is alone waits, where batches are made
	// tiny is how many times its throughput is promised over HTTP with a model that
	// takes no time; 0 means no more than with any other.
	tiny    float64
	wires   map[string]*wire // by protocol
	prepare func(*launch) error
}

// A launch is one start of a server with a model.
type launch struct {
	*subject
	root, folder string // of the repository, and of what the server writes
	ports        []int  // HTTP, gRPC, and further ones

	args, env []string
	register  string // is posted to the third port before the model is there
	settled   func(log string) (measured, known bool)
}

const (
	protocolHTTP = "HTTP"
	protocolGRPC = "gRPC"
)

const untouched = "Shoal untouched"

// packages is where onnxruntime is that all peers run, beside numpy.
const packages = "bin/peers/onnxruntime"

func servers() []*server {
	kserve := map[string]*wire{protocolHTTP: kserveBinary, protocolGRPC: kserveGRPC}
	return []*server{
		{
			name: untouched, about: "a bare file, nothing set", where: []string{"bin/shoal", "lib"}, ours: true,
			wires: kserve, prepare: (*launch).shoal,
		},
		{
			name: "Shoal by hand", about: "config.pbtxt, --batching=triton", where: []string{"bin/shoal", "lib"}, ours: true,
			wires: kserve, prepare: (*launch).shoalByHand,
		},
		{
			name: "Triton 2.51", about: "Python backend with ONNX Runtime, which is all that its package has", get: []string{"tools/get-tritonserver"},
			where: []string{"bin/tritonserver", packages}, wires: kserve, prepare: (*launch).triton,
		},
		{
			name: "MMS 1.1.11", about: "bytes", get: []string{"tools/get-mms"}, where: []string{"bin/peers/mms"}, waits: true, tiny: timesMMS,
			wires: map[string]*wire{protocolHTTP: asBytes("/predictions/" + modelName)}, prepare: (*launch).mms,
		},
		{
			name: "TorchServe 0.12", about: "bytes", get: []string{"tools/get-torchserve"}, where: []string{"bin/peers/torchserve", packages}, waits: true,
			wires:   map[string]*wire{protocolHTTP: asBytes("/predictions/" + modelName), protocolGRPC: torchserveGRPC},
			prepare: (*launch).torchserve,
		},
		{
			name: "LitServe 0.2.19", about: "base64 in JSON, bytes back", get: []string{"tools/get-peer", "litserve"}, where: []string{"bin/peers/litserve", packages},
			waits: true, tiny: timesScripted, wires: map[string]*wire{protocolHTTP: litserve}, prepare: (*launch).litserve,
		},
		{
			name: "BentoML 1.4.40", about: "base64 in JSON, both ways; waits as it finds best", get: []string{"tools/get-peer", "bentoml"},
			where: []string{"bin/peers/bentoml", packages}, tiny: timesScripted, wires: map[string]*wire{protocolHTTP: bentoml}, prepare: (*launch).bentoml,
		},
		{
			name: "MLServer 1.7.1", about: "numbers in JSON, bytes over gRPC", get: []string{"tools/get-peer", "mlserver"}, where: []string{"bin/peers/mlserver", packages},
			waits: true, tiny: timesScripted, wires: map[string]*wire{protocolHTTP: kserveJSON, protocolGRPC: kserveGRPC}, prepare: (*launch).mlserver,
		},
		{
			name: "Ray Serve 2.60", about: "bytes", get: []string{"tools/get-peer", "ray"}, where: []string{"bin/peers/ray", packages},
			waits: true, tiny: timesScripted, wires: map[string]*wire{protocolHTTP: asBytes("/")}, prepare: (*launch).ray,
		},
	}
}

// file returns the model's.
func (l *launch) file() string { return filepath.Join(l.root, "models", l.name, "1", "model.onnx") }

func (l *launch) port(n int) string { return strconv.Itoa(l.ports[n]) }

// repository makes a model repository with a configuration, or with none, and the
// file that the model is.
func (l *launch) repository(config, file, name string) (string, error) {
	folder := filepath.Join(l.folder, "models")
	version := filepath.Join(folder, modelName, "1")
	if err := os.MkdirAll(version, 0o755); err != nil {
		return "", err
	}
	if config != "" {
		if err := os.WriteFile(filepath.Join(folder, modelName, "config.pbtxt"), []byte(config), 0o644); err != nil {
			return "", err
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return folder, os.WriteFile(filepath.Join(version, name), content, 0o644)
}

func (l *launch) shoal() error {
	repository, err := l.repository("", l.file(), "model.onnx")
	l.serve(repository)
	// What is found best is measured while the model serves already.
	l.settled = l.measured
	return err
}

// measured reports whether the log of a server says that the model was measured, and runs
// as was found best; and whether that was with rows of the shape that is sent, which a
// model that takes any sees in its traffic.
func (l *launch) measured(log string) (measured, known bool) {
	const how, manner = `msg="model measured" model=` + modelName + " ", `msg="reloaded with tuned settings" model=` + modelName + " "
	at := strings.LastIndex(log, how)
	if at < 0 {
		return false, false
	}
	line, after, whole := strings.Cut(log[at:], "\n")
	_, shape, _ := strings.Cut(line, " shape=")
	known = true
	for one := range strings.FieldsSeq(strings.Trim(shape, `"`)) {
		known = known && slices.ContainsFunc(l.in, func(t tensor.Tensor) bool {
			return one == t.Name+tensor.ShapeText(t.Shape[1:])
		})
	}
	return whole && (strings.Contains(line, " in_use=true ") || strings.Contains(after, manner)), known
}

func (l *launch) shoalByHand() error {
	s := l.hand
	config := fmt.Sprintf("max_batch_size: %d\ninstance_group [ { count: %d } ]\nparameters { key: \"intra_op_thread_count\" value { string_value: \"%d\" } }\n", s.rows, s.workers, s.threads)
	if s.rows > 1 {
		config += fmt.Sprintf("dynamic_batching { max_queue_delay_microseconds: %d }\n", s.wait.Microseconds())
	}
	repository, err := l.repository(config, l.file(), "model.onnx")
	l.serve(repository, "--batching=triton")
	return err
}

func (l *launch) serve(repository string, more ...string) {
	l.args = append([]string{
		filepath.Join(l.root, "bin/shoal"), "serve", "--model-repository", repository, "--calibration-dir=",
		"--http-port", l.port(0), "--grpc-port", l.port(1), "--metrics-port", l.port(2),
	}, more...)
}

func (l *launch) triton() error {
	repository, err := l.python("")
	if err != nil {
		return err
	}
	l.args = []string{
		filepath.Join(l.root, "bin/tritonserver/tritonserver"), "--model-repository=" + repository, "--allow-gpu-metrics=false", "--disable-auto-complete-config",
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
		"--http-port=" + l.port(0), "--grpc-port=" + l.port(1), "--metrics-port=" + l.port(2),
	}
	return l.script()
}

// shoalPython is for what is no ONNX model.
func (l *launch) shoalPython() error {
	repository, err := l.python(`parameters { key: "retry_apart" value { string_value: "true" } }` + "\n")
	if err != nil {
		return err
	}
	l.serve(repository)
	l.env = append(l.env, "PATH="+filepath.Join(l.root, "bin/worker/bin")+":"+os.Getenv("PATH"))
	return l.script()
}

// python makes a repository with a model for Triton's Python backend.
func (l *launch) python(more string) (string, error) {
	s := l.peers
	ports := func(kind string, all []tensor.Tensor) (text string) {
		for _, t := range all {
			text += fmt.Sprintf("%s [ { name: %q data_type: TYPE_%s dims: %s } ]\n", kind, t.Name, t.Type, strings.ReplaceAll(fmt.Sprint(t.Shape[1:]), " ", ", "))
		}
		return text
	}
	config := fmt.Sprintf("name: %q\nbackend: \"python\"\nmax_batch_size: %d\ninstance_group [ { count: %d kind: KIND_CPU } ]\n", modelName, s.rows, s.workers) +
		ports("input", l.in) + ports("output", l.out[:1]) + more
	switch {
	case l.log != "":
		config += "dynamic_batching { default_queue_policy { max_queue_size: 100 } }\n"
	case s.rows > 1:
		config += "dynamic_batching { }\n" // without a wait, as it is meant
	}
	return l.repository(config, filepath.Join(l.root, scripts, "triton_model.py"), "model.py")
}

// scripts is where the Python files of the servers are.
const scripts = "test/compare/servers"

// script tells a Python server what to run.
func (l *launch) script() error {
	type input struct {
		Name  string  `json:"name"`
		Type  string  `json:"type"`
		Shape []int64 `json:"shape"` // of a row
	}
	var inputs []input
	for _, t := range l.in {
		kind := map[tensor.Type]string{tensor.FP32: "float32", tensor.Int64: "int64"}[t.Type]
		inputs = append(inputs, input{t.Name, kind, t.Shape[1:]})
	}
	s := l.peers
	what := map[string]any{
		"onnx": l.file(), "inputs": inputs, "output": l.out[0].Name, "port": l.ports[0], "folder": l.folder,
		"workers": s.workers, "threads": s.threads, "rows": s.rows, "wait": s.wait.Seconds(),
	}
	if l.log != "" {
		what["log"], what["seconds"], what["slow"] = l.log, batchTakes.Seconds(), filepath.Join(l.root, "test/peers")
	}
	about, err := json.Marshal(what)
	if err != nil {
		return err
	}
	l.env = append(l.env,
		"COMPARE_MODEL="+filepath.Join(l.folder, "model.json"), "COMPARE_SERVERS="+filepath.Join(l.root, scripts),
		"COMPARE_PACKAGES="+filepath.Join(l.root, packages, "lib/python3.11/site-packages"), "PYTHONPATH="+filepath.Join(l.root, scripts), "PYTHONDONTWRITEBYTECODE=1",
		"BENTOML_DO_NOT_TRACK=True", "RAY_USAGE_STATS_ENABLED=0", "HOME="+l.folder)
	return os.WriteFile(filepath.Join(l.folder, "model.json"), about, 0o644)
}

// peer returns a program of a server's environment.
func (l *launch) peer(name, program string) string {
	return filepath.Join(l.root, "bin/peers", name, "bin", program)
}

func (l *launch) litserve() error {
	l.args = []string{l.peer("litserve", "python"), filepath.Join(l.root, scripts, "litserve_server.py")}
	return l.script()
}

func (l *launch) bentoml() error {
	l.args = []string{
		l.peer("bentoml", "bentoml"), "serve", "bentoml_service:Service",
		"--working-dir", filepath.Join(l.root, scripts), "--host", "127.0.0.1", "--port", l.port(0),
	}
	return l.script()
}

func (l *launch) mlserver() error {
	settings := map[string]any{
		"host": "127.0.0.1", "http_port": l.ports[0], "grpc_port": l.ports[1], "metrics_port": l.ports[2], "parallel_workers": l.peers.workers, "debug": false,
	}
	model := map[string]any{"name": modelName, "implementation": "mlserver_runtime.Runtime"}
	if l.peers.rows > 1 {
		model["max_batch_size"], model["max_batch_time"] = l.peers.rows, l.peers.wait.Seconds()
	}
	for name, content := range map[string]any{"settings.json": settings, "model-settings.json": model} {
		text, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(l.folder, name), text, 0o644); err != nil {
			return err
		}
	}
	l.args = []string{l.peer("mlserver", "mlserver"), "start", l.folder}
	return l.script()
}

func (l *launch) ray() error {
	l.args = []string{l.peer("ray", "python"), filepath.Join(l.root, scripts, "ray_app.py")}
	return l.script()
}

func (l *launch) mms() error {
	return l.java("mms", []string{"model-archiver", "--model-path", l.folder + "/handler", "--handler", "mar_handler:handle", "--runtime", "python"},
		[]string{"multi-model-server", "--foreground", "--start", "--mms-config"}, "preload_model=false\n")
}

func (l *launch) torchserve() error {
	return l.java("torchserve", []string{"torch-model-archiver", "--version", "1.0", "--handler", l.folder + "/handler/mar_handler.py"},
		[]string{"torchserve", "--foreground", "--start", "--ncs", "--disable-token-auth", "--enable-model-api", "--ts-config"},
		fmt.Sprintf("metrics_address=http://127.0.0.1:%d\ngrpc_inference_port=%d\ngrpc_management_port=%d\ndisable_system_metrics=true\n", l.ports[3], l.ports[1], l.ports[4]))
}

// java prepares a server in Java: an archive of the handler, the settings, and the
// folders that it writes to. The torch that TorchServe imports and does not bring is
// an empty module.
func (l *launch) java(name string, archive, serve []string, properties string) error {
	if err := l.script(); err != nil {
		return err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return fmt.Errorf("found no java, which it needs (Debian: openjdk-17-jre-headless): %w", err)
	}
	if java, err = filepath.EvalSymlinks(java); err != nil {
		return err
	}
	for _, folder := range []string{"tmp", "store", "handler", "torch"} {
		if err := os.Mkdir(filepath.Join(l.folder, folder), 0o755); err != nil {
			return err
		}
	}
	handler, err := os.ReadFile(filepath.Join(l.root, scripts, "mar_handler.py"))
	if err != nil {
		return err
	}
	store, config := filepath.Join(l.folder, "store"), filepath.Join(l.folder, "config.properties")
	for file, content := range map[string]string{
		"handler/mar_handler.py": string(handler),
		"torch/__init__.py":      "class Tensor:\n    pass\n",
		"config.properties": fmt.Sprintf("inference_address=http://127.0.0.1:%d\nmanagement_address=http://127.0.0.1:%d\nnumber_of_netty_threads=2\nvmargs=-Djava.io.tmpdir=%s/tmp\n",
			l.ports[0], l.ports[2], l.folder) + properties,
	} {
		if err := os.WriteFile(filepath.Join(l.folder, file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	l.env = append(l.env,
		"JAVA_HOME="+filepath.Dir(filepath.Dir(java)), "PATH="+filepath.Join(l.root, "bin/peers", name, "bin")+":"+os.Getenv("PATH"), "TEMP="+l.folder+"/tmp",
		"PYTHONPATH="+filepath.Join(l.root, scripts)+":"+l.folder, "LOG_LOCATION="+l.folder+"/logs", "METRICS_LOCATION="+l.folder+"/logs")
	archiver := exec.Command(l.peer(name, archive[0]), append(archive[1:], "--model-name", modelName, "--export-path", store)...)
	archiver.Env = append(os.Environ(), l.env...)
	if out, err := archiver.CombinedOutput(); err != nil {
		return fmt.Errorf("no archive was made: %w\n%s", err, out)
	}
	l.args = append(append([]string{l.peer(name, serve[0])}, serve[1:]...), config, "--model-store", store)
	s := l.peers
	l.register = fmt.Sprintf("/models?url=%s.mar&model_name=%s&batch_size=%d&max_batch_delay=%d&initial_workers=%d&synchronous=true",
		modelName, modelName, s.rows, max(1, s.wait.Milliseconds()), s.workers)
	return nil
}

// byName returns the server of that name, which is one of them.
func byName(all []*server, name string) *server {
	return all[slices.IndexFunc(all, func(s *server) bool { return s.name == name })]
}
