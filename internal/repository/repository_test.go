package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/engine/ensemble"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

const echoConfig = `
backend: "echo"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
`

// A disk is a repository's directory that a test changes.
type disk struct {
	t   *testing.T
	dir string
}

func newDisk(t *testing.T) disk { return disk{t, t.TempDir()} }

// write writes files by their paths. A path that ends in a slash is a directory.
func (d disk) write(files map[string]string) disk {
	d.t.Helper()
	for path, text := range files {
		whole := filepath.Join(d.dir, path)
		dir := filepath.Dir(whole)
		if strings.HasSuffix(path, "/") {
			dir = whole
		}
		err := os.MkdirAll(dir, 0o755)
		if err == nil && dir != whole {
			err = os.WriteFile(whole, []byte(text), 0o644)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
	return d
}

// model writes a model with one configuration and some versions.
func (d disk) model(name, config string, versions ...string) disk {
	d.t.Helper()
	d.write(map[string]string{name + "/config.pbtxt": config})
	for _, v := range versions {
		d.write(map[string]string{name + "/" + v + "/": ""})
	}
	return d
}

func (d disk) remove(path string) {
	d.t.Helper()
	if err := os.RemoveAll(filepath.Join(d.dir, path)); err != nil {
		d.t.Fatal(err)
	}
}

// tracked is an engine that counts what is open.
type tracked struct {
	enginetest.Echo

	mu      sync.Mutex // guards the following
	fail    error
	open    int
	loading chan struct{}            // if not nil, loads wait here until their context ends
	takes   time.Duration            // of each load
	gates   map[string]chan struct{} // loads of these models send to theirs, and then receive from it
	size    int64                    // that versions are said to take
	sources []engine.Source
}

func (e *tracked) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	time.Sleep(e.takes)
	if gate := e.gates[src.Config.Name]; gate != nil {
		gate <- struct{}{}
		<-gate
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loading != nil {
		e.loading <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if e.fail != nil {
		return nil, e.fail
	}
	e.open++
	e.sources = append(e.sources, src)
	return e, nil
}

func (e *tracked) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	return nil
}

func (e *tracked) Size(engine.Source) (int64, error) { return e.size, nil }

func (e *tracked) breaks(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = err
}

// start starts a repository over a disk, and closes it at the end, when nothing
// may be open any more.
func start(t *testing.T, d disk, eng *tracked, opts setup) (*running, error) {
	t.Helper()
	p := pacer.New()
	t.Cleanup(p.Close)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Paths == nil {
		opts.Paths = []string{d.dir}
	}
	opts.Pacer, opts.Cores = p, 3
	ensembles := &ensemble.Engine{Log: opts.Log}
	opts.Runners = map[string]servable.Runner{"echo": {Engine: eng}, "onnxruntime": {Engine: eng}, ensemble.Name: {Engine: ensembles, Instances: 4}}
	r := opts.open()
	ensembles.Members = r.Server
	t.Cleanup(func() {
		if err := r.Close(); err != nil || eng.open != 0 {
			t.Errorf("close: %v; %d models are still open", err, eng.open)
		}
	})
	return r, r.Start(t.Context())
}

func mustStart(t *testing.T, d disk, eng *tracked, opts setup) *running {
	t.Helper()
	r, err := start(t, d, eng, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// serving returns the numbers of the versions that serve.
func serving(r *running, name string) (numbers []int64) {
	for _, v := range r.Versions(name) {
		numbers = append(numbers, v.Number())
	}
	return numbers
}

func index(r *running) string {
	var lines []string
	for _, e := range r.Index(false) {
		lines = append(lines, strings.Join(strings.Fields(strings.Join([]string{e.Name, e.Version, e.State, e.Reason}, " ")), " "))
	}
	return strings.Join(lines, "; ")
}

func TestEveryModelOfADirectoryIsLoaded(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1", "3", "2", "notes", "04").model("b", echoConfig, "1", "3").write(map[string]string{".git/x": ""})
	r := mustStart(t, d, &tracked{}, setup{})
	for _, name := range []string{"a", "b"} {
		v, err := r.Find(name, "")
		if err != nil || v.Number() != 3 || v.Config.Name != name {
			t.Errorf("model %s: found %+v, %v; want version 3", name, v, err)
		}
	}
	if got, want := index(r), "a 3 READY; b 3 READY"; got != want {
		t.Errorf("index %q, want %q", got, want)
	}
}

func TestASettingWithoutEffectIsLogged(t *testing.T) {
	var log bytes.Buffer
	d := newDisk(t).model("a", echoConfig+"optimization { eager_batching: true }", "1")
	mustStart(t, d, &tracked{}, setup{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	got := log.String()
	want := "model=a version=1 at=" + filepath.Join(d.dir, "a", "config.pbtxt") + ":6 field=optimization.eager_batching"
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("logged %q, want one line with %q", got, want)
	}
}

func TestAModelFileIsEnough(t *testing.T) {
	d := newDisk(t).write(map[string]string{"in.dir/1/model.onnx": "", "alone.onnx": "", "notes.txt": ""})
	lone := filepath.Join(newDisk(t).write(map[string]string{"elsewhere.onnx": ""}).dir, "elsewhere.onnx")
	eng := &tracked{}
	r := mustStart(t, d, eng, setup{Paths: []string{d.dir, lone}})
	for name, file := range map[string]string{"in.dir": "", "alone": "alone.onnx", "elsewhere": "elsewhere.onnx"} {
		v, err := r.Find(name, "1")
		if err != nil || v.Config.Backend != "onnxruntime" || v.Config.Proto.GetDefaultModelFilename() != file {
			t.Errorf("%s: found %+v, %v", name, v, err)
		}
	}
	for _, src := range eng.sources {
		if src.Config.Name == "elsewhere" && src.Dir != filepath.Dir(lone) {
			t.Errorf("loaded from %s", src.Dir)
		}
	}
}

func TestAModelIsFoundByItsNameOnly(t *testing.T) {
	d := newDisk(t).write(map[string]string{"a.onnx": "", "b/1/model.onnx": "", "b.onnx/1/model.onnx": ""})
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit})
	if err := r.Load(t.Context(), "a.onnx", override{}); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("by the name of its file: %v", err)
	}
	for _, name := range []string{"a", "b", "b.onnx"} {
		if err := r.Load(t.Context(), name, override{}); err != nil {
			t.Error(err)
		}
	}
}

func TestAModelThatCannotBeReadIsNotSaidToBeMissing(t *testing.T) {
	d := newDisk(t)
	if err := os.Symlink("a", filepath.Join(d.dir, "a")); err != nil { // following it fails
		t.Fatal(err)
	}
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit})
	if err := r.Load(t.Context(), "a", override{}); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("loaded with %v, want that it is unavailable", err)
	}
}

func TestTheFirstVersionOfAModelFileMayHaveAnyNumber(t *testing.T) {
	for _, first := range []string{"0", "2"} {
		d := newDisk(t).write(map[string]string{"a/" + first + "/model.onnx": "", "a/7/model.onnx": ""})
		r := mustStart(t, d, &tracked{}, setup{})
		if v, err := r.Find("a", "7"); err != nil || v.Config.Backend != "onnxruntime" {
			t.Errorf("with first version %s: found %+v, %v", first, v, err)
		}
	}
}

func TestAModelFileIsServedAndInspectedWithTheConfigurationForFiles(t *testing.T) {
	d := newDisk(t).model("with", echoConfig, "1").write(map[string]string{"alone.onnx": ""})
	const fileConfig = `{"max_batch_size": 3}`
	r := mustStart(t, d, &tracked{}, setup{Paths: []string{d.dir}, FileConf: fileConfig})
	inspected, err := Inspect([]string{d.dir}, InspectOptions{Backends: []string{"echo", "onnxruntime"}, FileConfig: fileConfig})
	if err != nil || len(inspected) != 2 {
		t.Fatalf("inspected %+v, %v", inspected, err)
	}
	for i, want := range []struct {
		name string
		rows int
	}{{"alone", 3}, {"with", 4}} { // a model with a config.pbtxt keeps its own
		v, err := r.Find(want.name, "")
		if err != nil || v.Config.MaxBatchSize != want.rows {
			t.Errorf("%s: found %+v, %v", want.name, v, err)
		}
		if got := inspected[i]; got.Name != want.name || got.Err != nil || got.Config.MaxBatchSize != want.rows {
			t.Errorf("inspected %+v, want %+v", got, want)
		}
	}
	// What a server would refuse, an inspection refuses.
	inspected, err = Inspect([]string{d.dir}, InspectOptions{Backends: []string{"echo", "onnxruntime"}, FileConfig: `{"backend": "none"}`})
	if err != nil || inspected[0].Err == nil || inspected[1].Err != nil {
		t.Errorf("inspected %+v, %v", inspected, err)
	}
}

func TestTheVersionPolicyPicksTheVersions(t *testing.T) {
	for policy, want := range map[string][]int64{
		"": {10},
		"version_policy { latest { num_versions: 2 } }":      {2, 10},
		"version_policy { all { } }":                         {1, 2, 10},
		"version_policy { specific { versions: [ 1, 7 ] } }": {1},
	} {
		r := mustStart(t, newDisk(t).model("a", echoConfig+policy, "1", "2", "10"), &tracked{}, setup{})
		if got := serving(r, "a"); !slices.Equal(got, want) {
			t.Errorf("%s: versions %v, want %v", policy, got, want)
		}
	}
}

func TestAVersionThatDoesNotServeIsNotFound(t *testing.T) {
	r := mustStart(t, newDisk(t).model("a", echoConfig, "1").model("b", echoConfig, "1"), &tracked{}, setup{Mode: Explicit, Models: []string{"a", "b"}})
	if err := r.Unload("b"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, version string
		code          infer.Code
		text          string
	}{
		{"c", "", infer.NotFound, "Request for unknown model: 'c' is not found"},
		{"a", "7", infer.NotFound, "Request for unknown model: 'a' version 7 is not found"},
		{"a", "x", infer.NotFound, "Request for unknown model: 'a' version x is not found"},
		{"b", "", infer.NotFound, "Request for unknown model: 'b' has no available versions"},
		{"b", "1", infer.Unavailable, "Request for unknown model: 'b' version 1 is not at ready state"},
	} {
		if _, err := r.Find(tt.name, tt.version); infer.CodeOf(err) != tt.code || kserve.TritonError(err, nil).Error() != tt.text {
			t.Errorf("%s %s: %v, want %q", tt.name, tt.version, err, tt.text)
		}
	}
}

// Every case says what is wrong, where, and what was expected, to whoever asked for
// the load.
func TestALoadThatFailsSaysWhy(t *testing.T) {
	for name, tt := range map[string]struct {
		disk func(disk) disk
		fail error
		code infer.Code
		want []string
	}{
		"another name": {
			func(d disk) disk { return d.model("m", `name: "c"`+echoConfig, "1") }, nil, infer.Invalid,
			[]string{"failed to load 'm'", "m/config.pbtxt:1: name", `found "c"`, `expected "m"`},
		},
		"no such backend": {
			func(d disk) disk { return d.model("m", strings.Replace(echoConfig, `"echo"`, `"none"`, 1), "1") }, nil, infer.Invalid,
			[]string{`m/config.pbtxt:2: backend: "none" is not supported; run the model from a Python model (docs/reference/python-models.md). Supported are "echo"`},
		},
		"no versions": {
			func(d disk) disk { return d.model("m", echoConfig, "x") }, nil, infer.Invalid,
			[]string{"at least one version must be available under the version policy of model 'm'", ": m has no version directory; put the model's file into "},
		},
		"a file beside the versions": {
			func(d disk) disk { return d.write(map[string]string{"m/model.onnx": ""}) }, nil, infer.Invalid,
			[]string{": m has no version directory; move model.onnx to ", "m/1/model.onnx"},
		},
		"a misnamed file": {
			func(d disk) disk { return d.write(map[string]string{"m/1/net.onnx": ""}) }, nil, infer.Invalid,
			[]string{`: m/1: rename net.onnx to model.onnx, or set default_model_filename: "net.onnx" in config.pbtxt`},
		},
		"a version policy that selects none": {
			func(d disk) disk {
				return d.model("m", echoConfig+"version_policy { specific { versions: 7 } }", "1", "2")
			}, nil, infer.Invalid,
			[]string{": m has the versions [1 2], and version_policy in config.pbtxt selects none of them"},
		},
		"a backend of Triton": {
			func(d disk) disk {
				return d.model("m", strings.Replace(echoConfig, `backend: "echo"`, `platform: "tensorrt_plan"`, 1), "1")
			}, nil, infer.Invalid,
			[]string{`m/config.pbtxt:2: platform: "tensorrt_plan" is not supported; export the model that the plan was built from to ONNX`},
		},
		"a misspelt backend": {
			func(d disk) disk { return d.model("m", strings.Replace(echoConfig, `"echo"`, `"onxruntime"`, 1), "1") }, nil, infer.Invalid,
			[]string{`m/config.pbtxt:2: backend: found "onxruntime", expected one of "echo", "ensemble", "onnxruntime"; did you mean onnxruntime?`},
		},
		"a broken model": {
			func(d disk) disk { return d.model("m", echoConfig, "1") }, errors.New("no weights"), infer.Invalid,
			[]string{"load failed for model 'm': version 1 is at UNAVAILABLE state: no weights;"},
		},
		"no library": {
			func(d disk) disk { return d.model("m", echoConfig, "1") }, infer.Errorf(infer.Unavailable, "no library"), infer.Unavailable,
			[]string{"no library"},
		},
		"preferred above max": { // cases 52 to 54 of those recorded from Triton, which tells clients nothing
			func(d disk) disk {
				return d.model("m", echoConfig+"dynamic_batching { preferred_batch_size: [ 16 ] }", "1")
			}, nil, infer.Invalid,
			[]string{"failed to load 'm', failed to poll from model repository", "m/config.pbtxt:6: dynamic_batching.preferred_batch_size[0]: found 16, expected at most max_batch_size (4)"},
		},
		"preferred zero": {
			func(d disk) disk {
				return d.model("m", echoConfig+"dynamic_batching { preferred_batch_size: [ 0 ] }", "1")
			}, nil, infer.Invalid,
			[]string{"dynamic_batching.preferred_batch_size[0]: found 0, expected at least 1"},
		},
		"an optional input": {
			func(d disk) disk {
				return d.model("m", strings.Replace(echoConfig, "dims: [ 2 ]", "dims: [ 2 ] optional: true", 1), "1")
			}, nil, infer.Invalid,
			[]string{`input[0].optional: models of backend "echo" with a batch dimension need all their inputs; set max_batch_size: 0, remove optional, or use a Python model (docs/reference/python-models.md)`},
		},
		"not a configuration": {
			func(d disk) disk { return d.model("m", "max_batch_size: what", "1") }, nil, infer.Invalid, []string{"m/config.pbtxt:1"},
		},
		"nothing there": {
			func(d disk) disk { return d }, nil, infer.NotFound, []string{"failed to load 'm'", "no directory m and no file m.onnx in "},
		},
		"twice": {
			func(d disk) disk { return d.model("m", echoConfig, "1").write(map[string]string{"m.onnx": ""}) }, nil, infer.Invalid,
			[]string{`model "m" exists twice, at `},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t).model("other", echoConfig, "1")
			eng := &tracked{}
			r := mustStart(t, d, eng, setup{Mode: Explicit, Models: []string{"other"}})
			tt.disk(d)
			eng.breaks(tt.fail)
			err := kserve.TritonError(r.Load(t.Context(), "m", override{}), nil)
			if infer.CodeOf(err) != tt.code {
				t.Errorf("code %v, want %v", infer.CodeOf(err), tt.code)
			}
			for _, w := range tt.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("error is %q, want it to tell %q", err, w)
				}
			}
			if strings.Contains(err.Error(), d.dir) {
				t.Errorf("error is %q, which names a directory of the server", err)
			}
			if !r.Ready() || len(serving(r, "other")) != 1 {
				t.Error("a model that never served has stopped the others")
			}
		})
	}
}

func TestAMisspeltModelIsSuggested(t *testing.T) {
	d := newDisk(t).model("resnet50", echoConfig, "1").write(map[string]string{"bert.onnx": ""})
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit})
	for name, want := range map[string]string{"resnet51": "; did you mean resnet50?", "brt": "; did you mean bert?", "gpt": d.dir} {
		if err := r.Load(t.Context(), name, override{}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want it to end in %q", name, err, want)
		}
	}
}

func TestAPathThatIsNoRepositorySaysWhatIsExpected(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1").write(map[string]string{"notes.txt": "", "a.mar": ""})
	for path, want := range map[string]string{
		"nowhere":   "no such file",
		"a":         "/a is the directory of a single model; name the directory that contains it, " + d.dir,
		"notes.txt": "expected a directory of models, or a file that ends in one of",
		"a.mar":     "a.mar is an archive of Multi Model Server or TorchServe; serve it with --model-store=" + d.dir + " --models=a.mar",
	} {
		_, err := start(t, d, &tracked{}, setup{Paths: []string{filepath.Join(d.dir, path)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to tell %q", path, err, want)
		}
	}
}

func TestANumberIsTheNameOfAModelIfThatHasVersions(t *testing.T) {
	d := newDisk(t).model("7", echoConfig, "1").write(map[string]string{"8/2/weights": "", "8/config.pbtxt": echoConfig, "8/3": "a file"})
	r := mustStart(t, d, &tracked{}, setup{})
	if got := index(r); got != "7 1 READY; 8 2 READY" {
		t.Errorf("the index has %s", got)
	}
}

func TestARemoteRepositorySaysWhatIsSupported(t *testing.T) {
	for path, want := range map[string]string{
		"s3://bucket/models":    `model repository: s3://bucket/models: only "shoal serve" reads buckets; copy it with "aws s3 sync s3://bucket/models models", or mount it, and name the local directory`,
		"gs://bucket/models":    `copy it with "gcloud storage rsync --recursive gs://bucket/models models", or mount it, and name the local directory`,
		"as://account/models":   `only "shoal serve" reads buckets; download it, or mount it`,
		"https://host/m.onnx":   "https:// is not supported; download it, or mount it, and name the local directory",
		"file:///srv/models/m1": "URLs are not supported; name the path, /srv/models/m1",
	} {
		_, err := start(t, newDisk(t), &tracked{}, setup{Paths: []string{path}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", path, err, want)
		}
	}
}

func TestModelsThatFailAtTheStartLeaveTheOthersAndAreNotReady(t *testing.T) {
	d := newDisk(t).model("bad", "max_batch_size: what", "1").model("good", echoConfig, "1")
	r, err := start(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"*"}})
	if err == nil || len(serving(r, "good")) != 1 {
		t.Fatalf("%v; good serves %v", err, serving(r, "good"))
	}
	if r.Ready() {
		t.Error("ready, although a model that should serve does not")
	}
	// Who gives up on it has a server that is ready.
	if err := r.Unload("bad"); err != nil || !r.Ready() {
		t.Errorf("%v; ready %t", err, r.Ready())
	}
}

func TestAServerStartsWithoutAModelThatIsNotSupportedYet(t *testing.T) {
	d := newDisk(t).model("sealed", echoConfig+"model_repository_agents { agents { name: \"checksum\" } }", "1").model("good", echoConfig, "1")
	r, err := start(t, d, &tracked{}, setup{})
	if err != nil || !r.Ready() {
		t.Fatalf("%v; ready %t", err, r.Ready())
	}
	e := r.Index(false)[1]
	if e.Name != "sealed" || e.State != "UNAVAILABLE" || !strings.Contains(e.Reason, "repository agents are not supported yet; check or decrypt") {
		t.Errorf("index %+v", e)
	}
}

func TestAServerWithNothingButUnsupportedModelsDoesNotStart(t *testing.T) {
	d := newDisk(t).model("sealed", echoConfig+"model_repository_agents { agents { name: \"checksum\" } }", "1")
	if _, err := start(t, d, &tracked{}, setup{}); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("%v, want an error that names the field", err)
	}
}

func TestTheIndexSaysWhyAModelWasRefused(t *testing.T) {
	d := newDisk(t).model("bad", "max_batch_size: -1", "1").model("good", echoConfig, "1").model("other", echoConfig, "1")
	r, err := start(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"bad", "good"}})
	if err == nil {
		t.Fatal("a model with an invalid configuration was loaded")
	}
	const mistake = "config.pbtxt:1: max_batch_size: found -1, expected at least 0"
	index := func(name string) catalog.IndexEntry {
		for _, e := range r.Index(false) {
			if e.Name == name {
				return e
			}
		}
		return catalog.IndexEntry{}
	}
	if e := index("bad"); e.State != "UNAVAILABLE" || !strings.HasSuffix(e.Reason, mistake) || e.Version != "" {
		t.Errorf("refused at startup: %+v", e)
	}
	if e := index("other"); e != (catalog.IndexEntry{Name: "other"}) {
		t.Errorf("never loaded: %+v", e)
	}
	d.model("good", "max_batch_size: -1", "1")
	d.model("other", "max_batch_size: -1", "1")
	for _, name := range []string{"good", "other", "nosuch"} {
		if err := r.Load(t.Context(), name, override{}); err == nil {
			t.Errorf("%s was loaded", name)
		}
	}
	if e := index("good"); e.State != "READY" || !strings.Contains(e.Reason, "still serves") || !strings.HasSuffix(e.Reason, mistake) {
		t.Errorf("refused while another version serves: %+v", e)
	}
	if e := index("other"); e.State != "UNAVAILABLE" || !strings.HasSuffix(e.Reason, mistake) {
		t.Errorf("refused for a client: %+v", e)
	}
	if e := index("nosuch"); e != (catalog.IndexEntry{}) {
		t.Errorf("not on disk: %+v", e)
	}
	d.model("bad", echoConfig, "1")
	if err := r.Load(t.Context(), "bad", override{}); err != nil {
		t.Fatal(err)
	}
	if e := index("bad"); e.State != "READY" || e.Reason != "" {
		t.Errorf("loaded after it was refused: %+v", e)
	}
	if err := r.Unload("other"); err != nil {
		t.Fatal(err)
	}
	if e := index("other"); e != (catalog.IndexEntry{Name: "other"}) {
		t.Errorf("unloaded: %+v", e)
	}
}

func TestAReloadThatFailsKeepsWhatServes(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	eng := &tracked{}
	r := mustStart(t, d, eng, setup{Mode: Explicit, Models: []string{"a"}})
	before, _ := r.Find("a", "")
	eng.breaks(errors.New("no weights"))
	d.model("a", echoConfig+"\n", "1")
	if err := r.Load(t.Context(), "a", override{}); err == nil {
		t.Fatal("loaded")
	}
	after, err := r.Find("a", "")
	if after != before || err != nil || !r.Ready() {
		t.Errorf("%v; ready %t", err, r.Ready())
	}
	if got, want := index(r), "a 1 READY the version that was loaded before still serves, because the last load failed: no weights"; got != want {
		t.Errorf("index %q, want %q", got, want)
	}
	eng.breaks(nil)
	if err := r.Load(t.Context(), "a", override{}); err != nil || index(r) != "a 1 READY" {
		t.Errorf("%v; index %q", err, index(r))
	}
	if after, _ := r.Find("a", ""); after == before {
		t.Error("the old version still serves")
	}
}

func TestALoadOfWhatHasNotChangedDoesNothing(t *testing.T) {
	d := newDisk(t).model("a", echoConfig+"version_policy { latest { num_versions: 2 } }", "1")
	eng := &tracked{}
	r := mustStart(t, d, eng, setup{Mode: Explicit, Models: []string{"a"}})
	if err := r.Load(t.Context(), "a", override{}); err != nil || len(eng.sources) != 1 {
		t.Errorf("%v; loaded %d times", err, len(eng.sources))
	}
	// A version that is added is loaded, and the one beside it is left alone.
	d.write(map[string]string{"a/2/": ""})
	if err := r.Load(t.Context(), "a", override{}); err != nil || len(eng.sources) != 2 || !slices.Equal(serving(r, "a"), []int64{1, 2}) {
		t.Errorf("%v; loaded %d times, serving %v", err, len(eng.sources), serving(r, "a"))
	}
	d.write(map[string]string{"a/3/": ""})
	if err := r.Load(t.Context(), "a", override{}); err != nil || !slices.Equal(serving(r, "a"), []int64{2, 3}) {
		t.Errorf("%v; serving %v", err, serving(r, "a"))
	}
}

func TestARunningRequestEndsWhenItsModelIsUnloaded(t *testing.T) {
	eng := &tracked{}
	running, end := make(chan struct{}), make(chan struct{})
	eng.Fails = func([]tensor.Tensor) error {
		close(running)
		<-end
		return nil
	}
	r := mustStart(t, newDisk(t).model("a", echoConfig, "1"), eng, setup{Mode: Explicit, Models: []string{"a"}})
	v, _ := r.Find("a", "")
	done := make(chan error, 1)
	go func() {
		var resp infer.Response
		req := &infer.Request{Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 2}, Data: tensor.Data([]float32{1, 2})}}}
		err := v.Scheduler.Submit(t.Context(), req, &resp)
		if err == nil {
			resp.Release()
		}
		done <- err
	}()
	<-running
	if err := r.Unload("a"); err != nil || index(r) != "a 1 UNLOADING" {
		t.Errorf("%v; index %q", err, index(r))
	}
	close(end)
	if err := <-done; err != nil {
		t.Errorf("the request got %v", err)
	}
	if err := r.Unload("never heard of"); err != nil {
		t.Error(err)
	}
}

func TestUnloadingEndsALoad(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	eng := &tracked{loading: make(chan struct{})}
	r := mustStart(t, d, eng, setup{Mode: Explicit})
	done := make(chan error, 1)
	go func() { done <- r.Load(t.Context(), "a", override{}) }()
	<-eng.loading
	if _, err := r.Find("a", ""); infer.CodeOf(err) != infer.Unavailable || index(r) != "a 1 LOADING" {
		t.Errorf("%v; index %q", err, index(r))
	}
	if err := r.Unload("a"); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, servable.ErrUnloading) {
		t.Errorf("the load got %v", err)
	}
}

// What a client sent is charged to its request, and a load holds it until it ends.
func TestALoadWhoseClientLeavesReturnsWhenItEnds(t *testing.T) {
	explicit := func(o *setup) { o.Mode = Explicit }
	demanding(t, newDisk(t).models("a", "b"), 2, explicit, func(t *testing.T, r *running, _ *slow) {
		ctx, leave := context.WithTimeout(t.Context(), time.Second/4)
		defer leave()
		began := time.Now()
		if err := r.Load(ctx, "a", override{}); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want the end of the load after 1s", err, time.Since(began))
		}
		time.AfterFunc(time.Second/2, r.Drain) // requests end when the server stops
		began = time.Now()
		if err := r.Load(ctx, "b", override{}); infer.CodeOf(err) != infer.Cancelled || time.Since(began) != time.Second/2 {
			t.Errorf("%v after %v, want an error after 0.5s", err, time.Since(began))
		}
	})
}

func TestLoadsOfClientsAreBounded(t *testing.T) {
	r := mustStart(t, newDisk(t).model("a", echoConfig, "1"), &tracked{}, setup{Mode: Explicit})
	r.source.loads = maxLoads
	err := r.Load(t.Context(), "a", override{})
	if e, ok := errors.AsType[*infer.Error](err); !ok || e.Code != infer.Overloaded || e.RetryAfter == 0 {
		t.Errorf("%v, want one to retry later", err)
	}
	r.source.loads = 0
	long := override{Config: echoConfig + strings.Repeat(" ", maxConfig)}
	if err := r.Load(t.Context(), "a", long); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "may have 1048576") {
		t.Errorf("a configuration of more than 1 MiB: %v", err)
	}
	if err := r.Load(t.Context(), "a", override{}); err != nil || r.source.loads != 0 {
		t.Errorf("%v; %d loads are under way", err, r.source.loads)
	}
}

func TestOnlyInModeExplicitClientsChangeModels(t *testing.T) {
	for _, mode := range []Mode{None, Poll} {
		r := mustStart(t, newDisk(t).model("a", echoConfig, "1"), &tracked{}, setup{Mode: mode})
		for _, err := range []error{r.Load(t.Context(), "a", override{}), r.Unload("a")} {
			if infer.CodeOf(err) != infer.Unavailable {
				t.Errorf("mode %d: %v", mode, err)
			}
		}
	}
}

func TestAClientMaySendTheConfigurationAndTheFiles(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	eng := &tracked{}
	r := mustStart(t, d, eng, setup{Mode: Explicit, Models: []string{"a"}})
	const config = `{"backend":"echo","max_batch_size":2,
		"input":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}],"output":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}]}`
	load := func(with override) *servable.Version {
		t.Helper()
		if err := r.Load(t.Context(), "a", with); err != nil {
			t.Fatal(err)
		}
		v, err := r.Find("a", "")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := load(override{Config: config}); v.Config.MaxBatchSize != 2 {
		t.Errorf("max_batch_size %d, want that of the client", v.Config.MaxBatchSize)
	}
	if v := load(override{}); v.Config.MaxBatchSize != 2 {
		t.Errorf("max_batch_size %d after a plain load of the same files, want that of the client", v.Config.MaxBatchSize)
	}
	v := load(override{Config: config, Files: map[string][]byte{"7/model.bin": []byte("weights")}})
	if v.Number() != 7 || !slices.Equal(serving(r, "a"), []int64{7}) {
		t.Errorf("serving %v, want the version of the client alone", serving(r, "a"))
	}
	if dir := eng.sources[len(eng.sources)-1].Dir; exists(dir) {
		t.Errorf("%s was left behind", dir)
	}
	if v := load(override{}); v.Number() != 1 || v.Config.MaxBatchSize != 4 {
		t.Errorf("version %d, max_batch_size %d after a plain load, want those on disk", v.Number(), v.Config.MaxBatchSize)
	}
	for text, with := range map[string]override{
		"'config' must be specified":   {Files: map[string][]byte{"7/x": nil}},
		"the path must be below":       {Config: config, Files: map[string][]byte{"../../etc/x": nil}},
		"the configuration that was":   {Config: `{"no_such_field": 1}`},
		"at least one version must be": {Config: config, Files: map[string][]byte{"x": nil}},
	} {
		if err := kserve.TritonError(r.Load(t.Context(), "a", with), nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want it to tell %q", with, err, text)
		}
	}
}

func TestFilesThatAClientSentDoNotStayInMemory(t *testing.T) {
	r := mustStart(t, newDisk(t), &tracked{}, setup{Mode: Explicit})
	load := func() weak.Pointer[byte] {
		content := make([]byte, 1<<20)
		const config = `{"backend":"echo","input":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}],"output":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}]}`
		if err := r.Load(t.Context(), "a", override{Config: config, Files: map[string][]byte{"1/model.bin": content}}); err != nil {
			t.Fatal(err)
		}
		return weak.Make(&content[0])
	}
	content := load()
	for range 100 { // the goroutine of the load may hold them for a moment
		runtime.GC()
		if content.Value() == nil {
			return
		}
	}
	t.Error("the files are in memory while the model is loaded")
}

func TestOnlyWithConsentClientsSendCode(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"a"}, NoCode: true})
	const config = `{"backend":"echo","max_batch_size":2,%s
		"input":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}],"output":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}]}`
	plain := fmt.Sprintf(config, "")
	files := map[string][]byte{"1/model.py": []byte("print()")}
	for name, with := range map[string]override{
		"files":          {Config: plain, Files: files},
		"an interpreter": {Config: fmt.Sprintf(config, `"parameters":{"python":{"string_value":"/bin/ls"}},`)},
		"an environment": {Config: fmt.Sprintf(config, `"parameters":{"EXECUTION_ENV_PATH":{"string_value":"/tmp"}},`)},
		"operators":      {Config: fmt.Sprintf(config, `"model_operations":{"op_library_filename":["evil.so"]},`)},
		"plugins":        {Config: fmt.Sprintf(config, `"optimization":{"execution_accelerators":{"gpu_execution_accelerator":[{"name":"tensorrt","parameters":{"trt_extra_plugin_lib_paths":"evil.so"}}]}},`)},
	} {
		if err := r.Load(t.Context(), "a", with); infer.CodeOf(err) != infer.Forbidden || !strings.Contains(err.Error(), "--allow-model-uploads") {
			t.Errorf("%s: %v, want a refusal that names the flag", name, err)
		}
	}
	if err := r.Load(t.Context(), "a", override{Config: plain}); err != nil {
		t.Errorf("a configuration without code: %v", err)
	}
	if err := r.source.LoadModel(t.Context(), "a", plain, files); err != nil {
		t.Errorf("a model that loads another: %v", err)
	}
}

// waitForLoads returns when nothing is being loaded or drained any more.
func waitForLoads(t *testing.T, r *running) {
	t.Helper()
	r.source.work.Wait()
	for strings.Contains(index(r), "LOADING") { // also UNLOADING
		time.Sleep(time.Millisecond)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestAPollFollowsTheDisk(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	eng := &tracked{}
	r := mustStart(t, d, eng, setup{Mode: Explicit, Models: []string{"*"}}) // no timer polls here
	poll := func() {
		t.Helper()
		for range 2 { // a change counts when it is seen twice
			if _, err := r.source.lookAround(); err != nil {
				t.Fatal(err)
			}
		}
		waitForLoads(t, r)
	}
	poll()
	if len(eng.sources) != 1 {
		t.Errorf("loaded %d times, although nothing has changed", len(eng.sources))
	}
	d.model("b", echoConfig, "1").write(map[string]string{"a/2/": ""})
	poll()
	if got, want := index(r), "a 1 UNAVAILABLE unloaded; a 2 READY; b 1 READY"; got != want {
		t.Errorf("index %q, want %q", got, want)
	}
	d.model("a", "max_batch_size: what")
	poll()
	poll()
	if !slices.Equal(serving(r, "a"), []int64{2}) || !r.Ready() {
		t.Errorf("serving %v after a bad change, want what served before", serving(r, "a"))
	}
	d.remove("a")
	poll()
	if got, want := index(r), "b 1 READY"; got != want || !r.Ready() {
		t.Errorf("index %q, want %q; ready %t", got, want, r.Ready())
	}
}

func TestARepositoryThatVanishesLeavesItsModels(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"*"}})
	d.remove("")
	for range 3 {
		if _, err := r.source.lookAround(); err == nil {
			t.Error("nobody noticed")
		}
	}
	if len(serving(r, "a")) != 1 || !r.Ready() {
		t.Errorf("serving %v, ready %t", serving(r, "a"), r.Ready())
	}
}

func TestAModelIsWarmedUpBeforeItServes(t *testing.T) {
	warmup := func(text string) string { return echoConfig + "model_warmup { name: \"w\" " + text + " }" }
	input := func(data string) string {
		return `inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 ` + data + ` } }`
	}
	eng := &tracked{}
	d := newDisk(t).model("a", warmup("batch_size: 3 count: 2 "+input(`input_data_file: "w"`))+"instance_group { count: 2 }", "1").
		write(map[string]string{"a/warmup/w": "12345678"})
	r := mustStart(t, d, eng, setup{Mode: Explicit, Models: []string{"a"}})
	if got := eng.Batches(); !slices.Equal(got, []int{3, 3, 3, 3}) {
		t.Errorf("warmed up with %v rows, want 3 two times on each of two instances", got)
	}
	for text, want := range map[string]string{
		warmup("batch_size: 1 " + input(`input_data_file: "none"`)):                                       "no such file",
		warmup("batch_size: 1 " + input(``)):                                                              "expected zero_data, random_data or input_data_file",
		warmup("batch_size: 9 " + input(`zero_data: true`)):                                               "batch-size must be <= 4",
		warmup("batch_size: 1"):                                                                           "expected 1 inputs but got 0",
		strings.Replace(warmup("batch_size: 1 "+input(`zero_data: true`)), "2 z", "3 z", 1):               "unexpected shape for input 'x'",
		warmup("batch_size: 4294967295 " + input(`random_data: true`)):                                    "the inputs of the sample have more than 1024 MiB",
		strings.Replace(warmup("batch_size: 1 "+input(`random_data: true`)), "2 r", "4398046511104 r", 1): "the inputs of the sample have more than 1024 MiB",
		strings.Replace(strings.Replace(warmup("batch_size: 1 "+input(`zero_data: true`)), "2 z", "2305843009213693952 z", 1), "FP32 dims: 23", "STRING dims: 23", 1): "more bytes than can be counted",
	} {
		d.model("a", text, "1")
		if err := r.Load(t.Context(), "a", override{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to tell %q", text, err, want)
		}
	}
	eng.Fails = func([]tensor.Tensor) error { return errors.New("cold") }
	d.model("a", warmup("batch_size: 1 "+input(`random_data: true`)), "1")
	if err := r.Load(t.Context(), "a", override{}); err == nil || !strings.Contains(err.Error(), `model_warmup "w": the model failed: cold`) {
		t.Errorf("%v", err)
	}
	if len(serving(r, "a")) != 1 || !r.Ready() {
		t.Error("what was loaded before does not serve any more")
	}
}

func TestAModelThatDoesNotFitIsRefusedWithBothFigures(t *testing.T) {
	const mib = 1 << 20
	eng := &tracked{size: 240 * mib}
	free := int64(300 * mib)
	r := mustStart(t, newDisk(t).model("a", echoConfig, "1").model("b", echoConfig, "1"), eng, setup{
		Mode: Explicit, Models: []string{"a"}, Memory: func() machine.Memory { return machine.Memory{Limit: 512 * mib, Free: free, Contained: true} },
	})
	if v, err := r.Find("a", ""); err != nil || v.Memory != eng.size {
		t.Errorf("%+v, %v", v, err)
	}
	free = 100 * mib
	err := r.Load(t.Context(), "b", override{})
	if want := "needs about 240 MiB of memory, and of the container's 512 MiB only 100 MiB are free"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want it to tell %q", err, want)
	}
	free = 300 * mib // which is for one more, if nothing is claimed for those that are not being loaded
	if err := r.Load(t.Context(), "b", override{}); err != nil || len(serving(r, "a")) != 1 {
		t.Errorf("%v; a serves %v", err, serving(r, "a"))
	}
}

func TestModelsAreNotForModelsToLoad(t *testing.T) {
	r := mustStart(t, newDisk(t).model("a", echoConfig, "1"), &tracked{}, setup{}).source
	if err := r.LoadModel(t.Context(), "a", "", nil); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("load: %v", err)
	}
	if err := r.LoadModel(t.Context(), "a", "", map[string][]byte{"../model.py": nil}); infer.CodeOf(err) != infer.Invalid {
		t.Errorf("load with a file outside: %v", err)
	}
	if err := r.UnloadModel(t.Context(), "a"); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("unload: %v", err)
	}
}

func TestControlRequestsOfALowerEpochAreRefused(t *testing.T) {
	r, err := start(t, newDisk(t).model("a", echoConfig, "1"), &tracked{}, setup{Mode: Explicit})
	if err != nil {
		t.Fatal(err)
	}
	load := func(epoch uint64) error {
		return r.source.Load(t.Context(), "a", catalog.LoadOptions{Epoch: epoch})
	}
	unload := func(epoch uint64) error {
		return r.source.Unload(t.Context(), "a", catalog.UnloadOptions{Epoch: epoch})
	}
	for _, c := range []struct {
		do    func(uint64) error
		epoch uint64
		want  bool // it is refused
	}{{load, 3, false}, {unload, 2, true}, {load, 3, false}, {load, 0, false}, {unload, 7, false}, {load, 3, true}, {unload, 3, true}, {load, 8, false}} {
		if err := c.do(c.epoch); (infer.CodeOf(err) == infer.Outdated) != c.want || err != nil && !c.want {
			t.Errorf("epoch %d: %v", c.epoch, err)
		}
	}
	if all := r.Index(true); len(all) != 1 {
		t.Errorf("ready are %+v, want the model of the last load", all)
	}
}

func TestTheEpochIsKnownAfterARestart(t *testing.T) {
	disk, file := newDisk(t).model("a", echoConfig, "1"), filepath.Join(t.TempDir(), "new", "epoch")
	for i, c := range []struct {
		epoch uint64
		want  bool // it is refused
	}{{7, false}, {6, true}, {7, false}, {8, false}, {7, true}} {
		r, err := start(t, disk, &tracked{}, setup{Mode: Explicit, EpochFile: file})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.source.Load(t.Context(), "a", catalog.LoadOptions{Epoch: c.epoch}); (infer.CodeOf(err) == infer.Outdated) != c.want {
			t.Errorf("process %d, epoch %d: %v", i, c.epoch, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
