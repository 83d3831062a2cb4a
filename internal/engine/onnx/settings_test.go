package onnx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func parameter(key, value string) string {
	return fmt.Sprintf("parameters { key: %q value { string_value: %q } }\n", key, value)
}

func read(t *testing.T, text string) *modelconfig.Config {
	t.Helper()
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestSettingsAreThoseOfTriton(t *testing.T) {
	type session = onnxruntime.SessionOptions
	for text, want := range map[string]settings{
		"": {call: onnxruntime.CallOptions{CanShrink: true}},
		parameter("intra_op_thread_count", "3") + parameter("owner", "somebody"):        {session{Threads: 3}, onnxruntime.CallOptions{CanShrink: true}},
		parameter("inter_op_thread_count", "3"):                                         {call: onnxruntime.CallOptions{CanShrink: true}}, // one operator after the other
		parameter("execution_mode", "1") + parameter("inter_op_thread_count", "3"):      {session{Parallel: 3}, onnxruntime.CallOptions{CanShrink: true}},
		parameter("execution_mode", "1"):                                                {session{Parallel: 7}, onnxruntime.CallOptions{CanShrink: true}},
		parameter("enable_mem_arena", "0") + parameter("enable_mem_pattern", "0"):       {session: session{NoArena: true, NoPattern: true}},
		parameter("enable_mem_arena", "False") + parameter("enable_mem_pattern", "OFF"): {session: session{NoArena: true, NoPattern: true}},
		parameter("enable_mem_arena", "true") + parameter("enable_mem_pattern", "On"):   {call: onnxruntime.CallOptions{CanShrink: true}},
		parameter("enable_mem_arena", "1"):                                              {call: onnxruntime.CallOptions{CanShrink: true}},
		parameter(shrinkageKey, "cpu:0"):                                                {call: onnxruntime.CallOptions{Config: map[string]string{shrinkageKey: "cpu:0"}}},
		"optimization { graph { level: -1 } }":                                          {session{Optimise: onnxruntime.OptimiseBasic}, onnxruntime.CallOptions{CanShrink: true}},
		"optimization { graph { level: 1 } }":                                           {session{Optimise: onnxruntime.OptimiseExtended}, onnxruntime.CallOptions{CanShrink: true}},
		"optimization { graph { level: 2 } }":                                           {session{Optimise: onnxruntime.OptimiseNothing}, onnxruntime.CallOptions{CanShrink: true}},
		parameter("session.disable_cpu", "yes"):                                         {session{Config: map[string]string{"session.disable_cpu": "yes"}}, onnxruntime.CallOptions{CanShrink: true}},
		parameter("intra_op_thread_count", "0"):                                         {call: onnxruntime.CallOptions{CanShrink: true}},
		"optimization { eager_batching: true }":                                         {call: onnxruntime.CallOptions{CanShrink: true}},
		"optimization { graph { level: 0 } }\n":                                         {call: onnxruntime.CallOptions{CanShrink: true}},
	} {
		got, err := readSettings(read(t, text), 7)
		for _, s := range []*settings{&got, &want} { // no settings are as good as none
			if len(s.session.Config) == 0 {
				s.session.Config = nil
			}
			if len(s.call.Config) == 0 {
				s.call.Config = nil
			}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestASettingThatMakesNoSenseIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		parameter("owner", "x") + parameter("intra_op_thread_count", "-1"): `config.pbtxt:2: parameters[intra_op_thread_count]: found "-1", expected a number of threads`,
		parameter("inter_op_thread_count", "two"):                          `config.pbtxt:1: parameters[inter_op_thread_count]: found "two", expected a number of threads`,
		parameter("execution_mode", "2"):                                   `config.pbtxt:1: parameters[execution_mode]: found "2", expected 0 or 1`,
		parameter("enable_mem_arena", "yes"):                               `config.pbtxt:1: parameters[enable_mem_arena]: found "yes", expected true, on or 1, or false, off or 0`,
		parameter("enable_mem_pattern", ""):                                `config.pbtxt:1: parameters[enable_mem_pattern]: found "", expected true, on or 1, or false, off or 0`,
		"optimization {\n graph {\n level: 3 } }":                          `config.pbtxt:3: optimization.graph.level: found 3, expected 0 (all optimizations), 1 (extended), -1 (basic) or 2 (none)`,
	} {
		if _, err := readSettings(read(t, text), 1); err == nil || err.Error() != want || infer.CodeOf(err) != infer.Invalid {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestInstancesArePlacedWhereTheirGroupsSay(t *testing.T) {
	for _, tt := range []struct {
		text string
		cuda bool
		want string // each device with its share of the instances and the field that insists on it; or the error
	}{
		{"", false, "the CPU 1 "},
		{"", true, "GPU 0 1 "},
		{"instance_group { kind: KIND_AUTO }", true, "GPU 0 1 "},
		{"instance_group { kind: KIND_AUTO gpus: 3 }", true, "GPU 3 1 "},
		{"instance_group { kind: KIND_AUTO gpus: 3 }", false, "the CPU 1 "},
		{"instance_group { kind: KIND_CPU count: 4 }", true, "the CPU 4 "},
		{"instance_group { kind: KIND_MODEL }", true, "the CPU 1 "},
		{"instance_group { kind: KIND_GPU }", true, "GPU 0 1 instance_group[0].kind"},
		{"instance_group [ { count: 2 }, { kind: KIND_GPU gpus: [ 0, 0 ] } ]", true, "GPU 0 4 instance_group[1].kind"},
		{"instance_group { kind: KIND_GPU gpus: [ 0, 1 ] count: 2 }", true, "GPU 0 2 instance_group[0].kind, GPU 1 2 instance_group[0].kind"},
		{"instance_group [ { kind: KIND_GPU gpus: 1 }, { kind: KIND_GPU gpus: 2 passive: true } ]", true, "GPU 1 1 instance_group[0].kind"},
		{"instance_group [ { kind: KIND_CPU count: 3 }, { kind: KIND_GPU gpus: 2 } ]", true, "the CPU 3 , GPU 2 1 instance_group[1].kind"},
		{
			"instance_group [ { kind: KIND_CPU },\n{\nkind: KIND_GPU } ]", false,
			"config.pbtxt:3: instance_group[1].kind: found KIND_GPU, expected KIND_CPU, because the ONNX Runtime at lib/libonnxruntime.so.1 has no CUDA provider; " +
				"install the library of onnxruntime-gpu, and name it with --onnxruntime-library",
		},
	} {
		places, err := choosePlacements(read(t, tt.text), tt.cuda, "lib/libonnxruntime.so.1")
		var all []string
		for _, p := range places {
			all = append(all, fmt.Sprintf("%v %d %s", p, p.share, p.field))
		}
		got := strings.Join(all, ", ")
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

func TestInstancesAreSpreadOverTheDevicesByTheirShare(t *testing.T) {
	devices := []*device{{placement: placement{share: 2}}, {placement: placement{share: 1}}}
	var order string
	for range 6 {
		d := leastUsed(devices)
		d.open++
		order += fmt.Sprint(slices.Index(devices, d))
	}
	if order != "010010" || devices[0].open != 4 || devices[1].open != 2 {
		t.Errorf("order %s, %d and %d instances", order, devices[0].open, devices[1].open)
	}
	devices[1].open-- // one failed, and is replaced
	if leastUsed(devices) != devices[1] {
		t.Error("the new instance is not where the old one was")
	}
}

func TestOptionsOfGPUsAreThoseOfTheProviders(t *testing.T) {
	const accelerators = "optimization { execution_accelerators { gpu_execution_accelerator "
	for _, tt := range []struct{ text, want string }{
		{"", "cuda map[] tensorrt map[] false"},
		{
			`parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } } parameters { key: "gpu_mem_limit" value { string_value: "1000" } } parameters { key: "arena_extend_strategy" value { string_value: "1" } }`,
			"cuda map[arena_extend_strategy:kSameAsRequested cudnn_conv_algo_search:HEURISTIC gpu_mem_limit:1000] tensorrt map[] false",
		},
		{accelerators + `{ name: "cuda" parameters { key: "use_tf32" value: "0" } } } }`, "cuda map[use_tf32:0] tensorrt map[] false"},
		{accelerators + `{ name: "tensorrt" } } }`, "cuda map[] tensorrt map[] true"},
		{
			accelerators + `{ name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } parameters { key: "max_workspace_size_bytes" value: "99" } parameters { key: "trt_engine_cache_enable" value: "1" } } } }`,
			"cuda map[] tensorrt map[trt_engine_cache_enable:1 trt_fp16_enable:1 trt_max_workspace_size:99] true",
		},
		{accelerators + `{ name: "tensorrt" parameters { key: "precision_mode" value: "FP32" } } } }`, "cuda map[] tensorrt map[] true"},
		{
			`parameters { key: "cudnn_conv_algo_search" value { string_value: "fast" } }`,
			`config.pbtxt:1: parameters[cudnn_conv_algo_search]: found "fast", expected 0 (exhaustive), 1 (heuristic) or 2 (default)`,
		},
		{
			accelerators + `{ name: "auto_io_casting" } } }`,
			`config.pbtxt:1: optimization.execution_accelerators.gpu_execution_accelerator[0].name: found "auto_io_casting", expected "cuda" or "tensorrt"; or remove it`,
		},
		{
			accelerators + "{\n name: \"tensorrt\"\n parameters { key: \"precision_mode\" value: \"FP8\" } } } }",
			`config.pbtxt:3: optimization.execution_accelerators.gpu_execution_accelerator[0].parameters[precision_mode]: found "FP8", expected FP32, FP16, BF16 or INT8`,
		},
		{
			accelerators + `{ name: "tensorrt" parameters { key: "fast" value: "1" } } } }`,
			"config.pbtxt:1: optimization.execution_accelerators.gpu_execution_accelerator[0].parameters[fast]: not an option of TensorRT; " +
				"use precision_mode, int8_calibration_table_name, int8_use_native_calibration_table, max_workspace_size_bytes, or one that begins with trt_",
		},
		{
			accelerators + `{ name: "cuda" parameters { key: "device_id" value: "1" } } } }`,
			"config.pbtxt:1: optimization.execution_accelerators.gpu_execution_accelerator[0].parameters[device_id]: instance_group.gpus says which GPUs are used; remove it",
		},
	} {
		set, err := readSettings(read(t, tt.text), 1)
		got := fmt.Sprintf("cuda %v tensorrt %v %t", set.session.CUDAOptions, set.session.TensorRT, set.session.TensorRT != nil)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

// gpus is a library that was built for GPUs, and loads nothing.
type gpus struct {
	broken error // what comes of loading on one
	loaded []string
}

func (*gpus) CUDA() bool      { return true }
func (*gpus) Library() string { return "lib/libonnxruntime.so.1" }

func (g *gpus) Load(_ context.Context, _ string, opts onnxruntime.SessionOptions) (*onnxruntime.Session, error) {
	g.loaded = append(g.loaded, placement{gpu: opts.CUDA}.String())
	if opts.CUDA != nil && g.broken != nil {
		return nil, g.broken
	}
	return &onnxruntime.Session{}, nil
}

func (*gpus) Save(context.Context, string, string, string, onnxruntime.SessionOptions) error {
	return errors.New("cannot be saved")
}

func (*gpus) NewWeights([]onnxruntime.Weight) (*onnxruntime.Weights, error) {
	return nil, errors.New("nothing was saved")
}

func TestWithoutAGPUOnlyThoseModelsLoadThatDoNotInsist(t *testing.T) {
	noDriver := fmt.Errorf("%w 0: no driver", onnxruntime.ErrCUDA)
	for _, tt := range []struct {
		text   string
		broken error
		loaded []string
		err    string
	}{
		{"", nil, []string{"GPU 0"}, ""},
		{"", noDriver, []string{"GPU 0", "the CPU"}, ""},
		{"instance_group { kind: KIND_CPU }", noDriver, []string{"the CPU"}, ""},
		{"instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", nil, []string{"GPU 0", "GPU 1"}, ""},
		{"instance_group { kind: KIND_AUTO gpus: [ 0, 1 ] }", noDriver, []string{"GPU 0", "the CPU", "GPU 1"}, ""},
		{
			"instance_group { kind: KIND_GPU }", fmt.Errorf("%w 0: no option", onnxruntime.ErrTensorRT),
			[]string{"GPU 0"},
			"config.pbtxt: optimization.execution_accelerators.gpu_execution_accelerator: TensorRT on device 0: no option; correct its parameters, or remove the accelerator to run the model with CUDA only",
		},
		{
			"instance_group {\n kind: KIND_GPU }", noDriver,
			[]string{"GPU 0"},
			"config.pbtxt:2: instance_group[0].kind: found KIND_GPU, expected KIND_CPU, because the GPU cannot be used: CUDA device 0: no driver",
		},
		{
			"instance_group { kind: KIND_GPU }", &onnxruntime.Error{Code: onnxruntime.InvalidGraph, Text: "a loop"},
			[]string{"GPU 0"},
			"model.onnx: ONNX Runtime: INVALID_GRAPH: a loop",
		},
	} {
		library := &gpus{broken: tt.broken}
		_, err := New(Options{}).loadOnDevices(t.Context(), library, read(t, tt.text), "model.onnx", []onnxruntime.SessionOptions{{}})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != tt.err || !slices.Equal(library.loaded, tt.loaded) || err != nil && infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%s, %v: loaded %q, %v; want %q, %q", tt.text, tt.broken, library.loaded, err, tt.loaded, tt.err)
		}
	}
}

func TestOptionsOfGPUsHaveNoEffectOnTheCPU(t *testing.T) {
	var log bytes.Buffer
	e := newEngine(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	m, err := e.Load(t.Context(), parsed(t, "mlp", "instance_group { kind: KIND_CPU }\noptimization { execution_accelerators { gpu_execution_accelerator { name: \"tensorrt\" } } }"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "have no effect because the model runs on the CPU") || !strings.Contains(log.String(), "config.pbtxt:2") {
		t.Errorf("no warning with its line in\n%s", &log)
	}
}

func TestTheLibraryIsAskedForItsGPUs(t *testing.T) {
	e := newEngine(t, Options{})
	m, err := e.Load(t.Context(), parsed(t, "mlp", "instance_group { kind: KIND_GPU }"))
	if err == nil {
		t.Skip("There is a GPU.", m.Close())
	}
	if infer.CodeOf(err) != infer.Invalid || !strings.HasPrefix(err.Error(), "config.pbtxt:1: instance_group[0].kind: found KIND_GPU, expected KIND_CPU, because ") {
		t.Errorf("got %v", err)
	}
}

func TestThreadsThatNobodyWroteDown(t *testing.T) {
	for spin, want := range map[string]string{"": "0", "1": "1"} {
		cfg := &modelconfig.Config{Parameters: map[string]string{}}
		if spin != "" {
			cfg.Parameters[spinningKey] = spin
		}
		set, err := readSettings(cfg, 2)
		if err != nil {
			t.Fatal(err)
		}
		set.useThreads(2)
		if set.session.Threads != 2 || set.session.Config[spinningKey] != want {
			t.Errorf("spinning %q: %+v", spin, set.session)
		}
	}
	written := &modelconfig.Config{Parameters: map[string]string{"intra_op_thread_count": "0"}}
	if New(Options{}).AnyThreads(written) || !New(Options{}).AnyThreads(&modelconfig.Config{}) {
		t.Error("what is written is not kept")
	}
	src := sources["mlp"]()
	src.Threads = 2
	run(t, open(t, src), tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)})
}
