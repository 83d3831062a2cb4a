package onnx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

func newEngine(t *testing.T, opts Options) *Engine {
	t.Helper()
	opts.Library = onnxtest.Library(t)
	e := New(opts)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// source is a version of a model whose file is one of the test models.
func source(model string, cfg *modelconfig.Config) engine.Source {
	cfg.Name, cfg.Backend = model, Name
	cfg.Proto = &configpb.ModelConfig{DefaultModelFilename: model + ".onnx"}
	return engine.Source{Config: cfg, Version: 1, Dir: filepath.Dir(onnxtest.Model(model))}
}

func floats(name string, dims ...int64) modelconfig.Tensor {
	return modelconfig.Tensor{Name: name, Type: tensor.FP32, Dims: dims}
}

func config(rows int, inputs, outputs []modelconfig.Tensor) *modelconfig.Config {
	return &modelconfig.Config{MaxBatchSize: rows, Inputs: inputs, Outputs: outputs}
}

type tensors = []modelconfig.Tensor

var sources = map[string]func() engine.Source{
	"mlp": func() engine.Source {
		return source("mlp", config(8, tensors{floats("x", 32)}, tensors{floats("y", 4)}))
	},
	"add_sub": func() engine.Source {
		// Not in the model's order, and an output less.
		return source("add_sub", config(8, tensors{floats("INPUT1", 16), floats("INPUT0", 16)}, tensors{floats("OUTPUT1", 16)}))
	},
	"strings": func() engine.Source {
		return source("strings", config(8, tensors{{Name: "in", Type: tensor.Bytes, Dims: []int64{1}}}, tensors{{Name: "out", Type: tensor.Bytes, Dims: []int64{1}}}))
	},
	"types": func() engine.Source {
		cfg := config(8, nil, nil)
		for typ := tensor.Bool; typ <= tensor.BF16; typ++ {
			cfg.Inputs = append(cfg.Inputs, modelconfig.Tensor{Name: "in_" + typ.String(), Type: typ, Dims: []int64{-1}})
			cfg.Outputs = append(cfg.Outputs, modelconfig.Tensor{Name: "out_" + typ.String(), Type: typ, Dims: []int64{-1}})
		}
		return source("types", cfg)
	},
	"rows": func() engine.Source {
		return source("rows", config(8, tensors{floats("x", 1)}, tensors{floats("y", 1)}))
	},
	"anyshape": func() engine.Source {
		return source("anyshape", config(8, tensors{floats("x", 3)}, tensors{floats("y", 3)}))
	},
	"passthrough": func() engine.Source {
		return source("passthrough", config(8, tensors{floats("x", 4)}, tensors{floats("x", 4)}))
	},
	"spin": func() engine.Source {
		return source("spin", config(8, tensors{floats("x", 64), {Name: "steps", Type: tensor.Int64, Dims: []int64{1}}}, tensors{floats("y", 64)}))
	},
	"fail_if": func() engine.Source {
		return source("fail_if", config(8, tensors{{Name: "index", Type: tensor.Int64, Dims: []int64{1}}}, tensors{floats("value", 1)}))
	},
}

func TestConforms(t *testing.T) {
	for _, model := range []string{"mlp", "add_sub", "strings", "types", "rows", "anyshape", "passthrough"} {
		t.Run(model, func(t *testing.T) { enginetest.Conform(t, newEngine(t, Options{Nice: 10}), sources[model]()) })
	}
	enginetest.ConformStop(t, newEngine(t, Options{Nice: 10}), sources["spin"](), spin(1<<40), spin(1))
}

func TestConformsWithMoreThreadsForExclusiveBatches(t *testing.T) {
	src := sources["mlp"]()
	src.ExclusiveThreads = 2
	enginetest.Conform(t, newEngine(t, Options{Nice: 10}), src)
	t.Run("exclusive", func(t *testing.T) { enginetest.Conform(t, exclusiveEngine{newEngine(t, Options{Nice: 10})}, src) })
}

// An exclusiveEngine runs all batches as exclusive ones.
type (
	exclusiveEngine   struct{ engine.Engine }
	exclusiveModel    struct{ engine.Model }
	exclusiveInstance struct{ engine.ExclusiveRunner }
)

func (e exclusiveEngine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	m, err := e.Engine.Load(ctx, src)
	return exclusiveModel{m}, err
}

func (m exclusiveModel) Instance(ctx context.Context) (engine.Instance, error) {
	inst, err := m.Model.Instance(ctx)
	return exclusiveInstance{inst.(engine.ExclusiveRunner)}, err
}

func (i exclusiveInstance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	return i.RunExclusive(ctx, in, out)
}

func TestExclusiveBatchesRunInASessionOfTheirOwn(t *testing.T) {
	e := newEngine(t, Options{})
	for exclusive, want := range map[int]int{0: 1, 2: 2} {
		src := sources["mlp"]()
		src.ExclusiveThreads = exclusive
		opened, unload := load(t, e, src)
		if inst := opened.(*instance); len(inst.calls) != want {
			t.Errorf("with %d threads for exclusive batches: %d sessions, want %d", exclusive, len(inst.calls), want)
		}
		unload()
	}
}

// open loads a model and opens an instance of it.
func open(t *testing.T, src engine.Source) engine.Instance {
	t.Helper()
	m, err := newEngine(t, Options{Nice: 10}).Load(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.Instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(inst.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return inst
}

func run(t *testing.T, inst engine.Instance, in ...tensor.Tensor) engine.Outputs {
	t.Helper()
	var out engine.Outputs
	if err := inst.Run(t.Context(), in, &out); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Memory.Release)
	return out
}

func TestInputsGoToTheModelByName(t *testing.T) {
	shape := []int64{1, 16}
	three, one := tensor.Data(slices.Repeat([]float32{3}, 16)), tensor.Data(slices.Repeat([]float32{1}, 16))
	out := run(t, open(t, sources["add_sub"]()),
		tensor.Tensor{Name: "INPUT1", Type: tensor.FP32, Shape: shape, Data: three},
		tensor.Tensor{Name: "INPUT0", Type: tensor.FP32, Shape: shape, Data: one})
	if want := tensor.Data(slices.Repeat([]float32{-2}, 16)); len(out.Tensors) != 1 || !bytes.Equal(out.Tensors[0].Data, want) {
		t.Errorf("1 less 3 is %v", out.Tensors)
	}
}

func TestOutputsOfUnknownShapeAreTakenAsTheyCome(t *testing.T) {
	src := source("nonzero", config(0, tensors{floats("x", -1, 2)}, tensors{{Name: "at", Type: tensor.Int64, Dims: []int64{2, -1}}}))
	out := run(t, open(t, src), tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{2, 2}, Data: tensor.Data([]float32{0, 1, 0, 1})})
	if x := out.Tensors[0]; !slices.Equal(x.Shape, []int64{2, 2}) || !bytes.Equal(x.Data, tensor.Data([]int64{0, 1, 1, 1})) {
		t.Errorf("got %v", x)
	}
}

func TestAScalarIsOneNumberInTheConfiguration(t *testing.T) {
	src := source("scalar", config(0, tensors{floats("x", 1)}, tensors{floats("y", 1)}))
	out := run(t, open(t, src), tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1}, Data: tensor.Data([]float32{21})})
	if x := out.Tensors[0]; !slices.Equal(x.Shape, []int64{1}) || !bytes.Equal(x.Data, tensor.Data([]float32{42})) {
		t.Errorf("got %v", x)
	}
}

func TestAnInputThatTheModelHasAValueForMayBeLeftOut(t *testing.T) {
	offset := floats("offset", 1)
	offset.Optional = true
	inst := open(t, source("optional", config(0, tensors{floats("x", 1), offset}, tensors{floats("y", 1)})))
	number := func(name string, n float32) tensor.Tensor {
		return tensor.Tensor{Name: name, Type: tensor.FP32, Shape: []int64{1}, Data: tensor.Data([]float32{n})}
	}
	for _, tt := range []struct {
		in   []tensor.Tensor
		want float32
	}{
		{[]tensor.Tensor{number("x", 1)}, 101},
		{[]tensor.Tensor{number("x", 1), number("offset", 5)}, 6},
		{[]tensor.Tensor{number("x", 2)}, 102}, // the value of the request before is gone
	} {
		if out := run(t, inst, tt.in...); !bytes.Equal(out.Tensors[0].Data, tensor.Data([]float32{tt.want})) {
			t.Errorf("%v gives %v, want %v", tt.in, out.Tensors, tt.want)
		}
	}
	if err := inst.Run(t.Context(), []tensor.Tensor{number("offset", 5)}, &engine.Outputs{}); err == nil {
		t.Error("a run without x ends well")
	}
}

// compileOperators compiles the library of the test operator, and returns its path.
func compileOperators(t *testing.T, dir string) string {
	t.Helper()
	library := filepath.Join(dir, "operators.so")
	out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-w", "-o", library, "testdata/operators.c").CombinedOutput()
	if err != nil {
		t.Skipf("The library of operators cannot be compiled: install a C compiler: %v\n%s", err, out)
	}
	return library
}

func TestAModelUsesOperatorsOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	compileOperators(t, dir)
	model, err := os.ReadFile(onnxtest.Model("own_operator"))
	if err != nil {
		t.Fatal(err)
	}
	version := filepath.Join(dir, "1")
	if err := errors.Join(os.Mkdir(version, 0o755), os.WriteFile(filepath.Join(version, "own_operator.onnx"), model, 0o644)); err != nil {
		t.Fatal(err)
	}
	load := func(library string) engine.Source {
		src := parsed(t, "own_operator", fmt.Sprintf("model_operations { op_library_filename: %q }", library))
		src.Dir = version
		return src
	}
	for _, library := range []string{"operators.so", filepath.Join(dir, "operators.so")} {
		x := tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{4}, Data: tensor.Data([]float32{1, 2, 3, 4})}
		if out := run(t, open(t, load(library)), x); !bytes.Equal(out.Tensors[0].Data, tensor.Data([]float32{2, 4, 6, 8})) {
			t.Errorf("%s: twice 1, 2, 3, 4 is %v", library, out.Tensors)
		}
	}
	_, err = newEngine(t, Options{}).Load(t.Context(), load("missing.so"))
	const want = "config.pbtxt:1: model_operations.op_library_filename: library of custom operators missing.so: "
	if infer.CodeOf(err) != infer.Invalid || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a library that is missing: %v", err)
	}
}

func spin(steps int64) []tensor.Tensor {
	return []tensor.Tensor{
		{Name: "x", Type: tensor.FP32, Shape: []int64{1, 64}, Data: make([]byte, 256)},
		{Name: "steps", Type: tensor.Int64, Shape: []int64{1, 1}, Data: tensor.Data([]int64{steps})},
	}
}

func TestALongBatchStopsWhenItsContextEnds(t *testing.T) {
	inst := open(t, sources["spin"]())
	live := buf.Live()
	for range 3 { // a stopped one leaves nothing behind that stops the next
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		var out engine.Outputs
		if err := inst.Run(ctx, spin(1<<40), &out); !errors.Is(err, context.DeadlineExceeded) || infer.CodeOf(err) != infer.Deadline {
			t.Errorf("ended with %v", err)
		}
		cancel()
		if err := inst.Run(t.Context(), spin(10), &out); err != nil {
			t.Errorf("the next batch: %v", err)
		}
		out.Memory.Release()
	}
	if now := buf.Live(); now != live {
		t.Errorf("%d buffers are left behind", now-live)
	}
}

// The scheduler uses one context for all batches, and it must end each of them.
func TestAContextThatComesAgainStopsALaterBatch(t *testing.T) {
	inst := open(t, sources["spin"]())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 3 {
		var out engine.Outputs
		if err := inst.Run(ctx, spin(1), &out); err != nil {
			t.Fatal(err)
		}
		out.Memory.Release()
	}
	timer := time.AfterFunc(20*time.Millisecond, cancel)
	defer timer.Stop()
	var out engine.Outputs
	if err := inst.Run(ctx, spin(1<<40), &out); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if err := inst.Run(ctx, spin(1), &out); !errors.Is(err, context.Canceled) {
		t.Errorf("a batch after the end: %v", err)
	}
}

func TestABatchAllocatesOnce(t *testing.T) {
	inst := open(t, sources["mlp"]())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in := []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)}}
	var out engine.Outputs
	allocs := testing.AllocsPerRun(1000, func() {
		if err := inst.Run(ctx, in, &out); err != nil {
			t.Fatal(err)
		}
		out.Memory.Release()
	})
	if allocs > 1 {
		t.Errorf("a batch allocates %v times, want once: the count of its outputs' users", allocs)
	}
}

func TestAFailureInTheModelIsTheRequestsFault(t *testing.T) {
	inst := open(t, sources["fail_if"]())
	index := func(i int64) []tensor.Tensor {
		return []tensor.Tensor{{Name: "index", Type: tensor.Int64, Shape: []int64{1, 1}, Data: tensor.Data([]int64{i})}}
	}
	var out engine.Outputs
	err := inst.Run(t.Context(), index(8), &out)
	if infer.CodeOf(err) != infer.Invalid || out.Memory != nil {
		t.Errorf("an index outside of the table: %v", err)
	}
	if e, ok := errors.AsType[*onnxruntime.Error](err); !ok || e.Code != onnxruntime.InvalidArgument {
		t.Errorf("the library's code is lost: %v", err)
	}
	run(t, inst, index(7)...)
}

func TestMemoryThatRanOutIsToldApart(t *testing.T) {
	for text, want := range map[string]bool{
		"Non-zero status code returned while running Conv node. bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 8589934592": true,
		"std::bad_alloc":                      true,
		"Got invalid dimensions for input: x": false,
	} {
		err := withCode(&onnxruntime.Error{Code: onnxruntime.Fail, Text: text})
		if errors.Is(err, engine.ErrExhausted) != want {
			t.Errorf("%q: memory ran out: %v, want %v", text, !want, want)
		}
	}
}

func TestOnlyTheFirstLoadsGoAsFastAsBatches(t *testing.T) {
	e := newEngine(t, Options{Nice: 10})
	first := e.loadNice(onnxruntime.SessionOptions{})
	if _, err := e.open(); err != nil {
		t.Fatal(err)
	}
	if later := e.loadNice(onnxruntime.SessionOptions{}); first != 10 || later != 19 {
		t.Errorf("niceness %d at first and %d later, want 10 and 19", first, later)
	}
}

// What is compared, and how it is worded, is for package modelconfig to test.
func TestAConfigurationThatIsNotTheModelsIsRefused(t *testing.T) {
	e := newEngine(t, Options{Nice: 10})
	for _, tt := range []struct{ model, text, want string }{
		{
			"mlp", "input { name: \"x\" data_type: TYPE_FP32 dims: 32 }\noutput { name: \"z\" data_type: TYPE_FP32 dims: 4 }",
			`config.pbtxt:3: output[0].name: found "z", expected one of the model's outputs, "y"`,
		},
		{
			"mlp", "input { name: \"x\"\ndata_type: TYPE_INT64 dims: 32 }\noutput { name: \"y\" data_type: TYPE_FP32 dims: 4 }",
			`config.pbtxt:3: input[0].data_type: found TYPE_INT64, expected TYPE_FP32, as in the model`,
		},
		{"fixed", "", `config.pbtxt:1: max_batch_size: found 8, expected 0, because input "x" of the model has shape [1,4], whose first dimension is fixed; to batch its requests, export it with a dynamic first dimension`},
		{
			"sequence", "output { name: \"parts\" data_type: TYPE_FP32 dims: 1 }",
			`config.pbtxt:2: output[0].data_type: output "parts" of the model is a sequence, which is not supported yet; remove it from config.pbtxt, or export the model without it`,
		},
	} {
		_, err := e.Load(t.Context(), parsed(t, tt.model, "max_batch_size: 8\n"+tt.text))
		if err == nil || infer.CodeOf(err) != infer.Invalid || err.Error() != tt.want {
			t.Errorf("%s: got  %v\nwant %s", tt.model, err, tt.want)
		}
	}
}

// parsed is a version of a test model with the text of a config.pbtxt.
func parsed(t *testing.T, model, text string) engine.Source {
	t.Helper()
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Proto.DefaultModelFilename = model + ".onnx"
	return engine.Source{Config: cfg, Dir: filepath.Dir(onnxtest.Model(model))}
}

func TestWhatCannotBeLoadedSaysWhy(t *testing.T) {
	e := newEngine(t, Options{Nice: 10})
	dir := t.TempDir()
	src := sources["mlp"]()
	src.Dir, src.Config.Proto = dir, nil
	if _, err := e.Load(t.Context(), src); infer.CodeOf(err) != infer.NotFound || !strings.Contains(err.Error(), filepath.Join(dir, "model.onnx")) {
		t.Errorf("no file: %v", err)
	}
	model, err := os.ReadFile(onnxtest.Model("mlp"))
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{"half a model": model[:len(model)/2], "a text": []byte("no model"), "nothing": {}} {
		if err := os.WriteFile(filepath.Join(dir, "model.onnx"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Load(t.Context(), src); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "model.onnx")) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestParametersAreTheModels(t *testing.T) {
	src := sources["mlp"]()
	src.Config.Parameters = map[string]string{
		"intra_op_thread_count": "2", "execution_mode": "1", "enable_mem_pattern": "0", "session.disable_prepacking": "1",
		"memory.enable_memory_arena_shrinkage": "cpu:0", "owner": "somebody",
	}
	run(t, open(t, src), tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)})
}

func TestMemoryIsNeverGivenBackIfTheModelSaysSo(t *testing.T) {
	src := sources["mlp"]()
	src.Config.Parameters = map[string]string{shrinkageKey: ""}
	run(t, open(t, src), tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)})
}

func TestWithoutTheLibraryLoadingSaysWhatToDo(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libonnxruntime.so.1")
	e := New(Options{Library: missing})
	_, err := e.Load(t.Context(), sources["mlp"]())
	if infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "set --onnxruntime-library or SHOAL_ONNXRUNTIME to the path of the library") {
		t.Errorf("got %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatTheConfigurationLeavesOutIsTakenFromTheModel(t *testing.T) {
	e := newEngine(t, Options{})
	load := func(model string) (*modelconfig.Config, error) {
		src := parsed(t, model, "")
		m, err := e.Load(t.Context(), src)
		if err != nil {
			return nil, err
		}
		return src.Config, m.Close()
	}
	for model, want := range map[string]modelconfig.Config{
		"mlp":     {Inputs: tensors{floats("x", 32)}, Outputs: tensors{floats("y", 4)}, MaxBatchSize: modelconfig.DefaultMaxBatch},
		"fixed":   {Inputs: tensors{floats("x", 1, 4)}, Outputs: tensors{floats("y", 1, 4)}},
		"scalar":  {Inputs: tensors{floats("x", 1)}, Outputs: tensors{floats("y", 1)}},
		"rows":    {Inputs: tensors{floats("x", 1)}, Outputs: tensors{floats("y", 1)}, MaxBatchSize: modelconfig.DefaultMaxBatch},
		"nonzero": {Inputs: tensors{floats("x", -1, -1)}, Outputs: tensors{{Name: "at", Type: tensor.Int64, Dims: []int64{2, -1}}}},
	} {
		got, err := load(model)
		if err != nil {
			t.Errorf("%s: %v", model, err)
			continue
		}
		if !reflect.DeepEqual(got.Inputs, want.Inputs) || !reflect.DeepEqual(got.Outputs, want.Outputs) || got.MaxBatchSize != want.MaxBatchSize {
			t.Errorf("%s is completed to %v, %v and %d rows, want %v, %v and %d", model,
				got.Inputs, got.Outputs, got.MaxBatchSize, want.Inputs, want.Outputs, want.MaxBatchSize)
		}
	}
	for _, model := range []string{"sequence", "anyshape"} {
		if _, err := load(model); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%s: %v", model, err)
		}
	}
}

// raggedConfig is the configuration of the model ragged, whose two outputs are a row
// and as many elements as its input for each request.
func raggedConfig() *modelconfig.Config {
	x := floats("x", -1)
	x.Ragged = true
	cfg := config(8, tensors{x}, tensors{floats("sum", 1), floats("rest", -1)})
	cfg.BatchInputs = []modelconfig.BatchInput{{Name: "ends", Type: tensor.Int32, Kind: modelconfig.AccumulatedCount}}
	cfg.BatchOutputs = []modelconfig.BatchOutput{{Output: 1, Dims: []int64{-1, -1}}}
	return cfg
}

func TestBatchInputsComeBehindThoseOfRequests(t *testing.T) {
	out := run(t, open(t, source("ragged", raggedConfig())),
		tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{7}, Data: tensor.Data([]float32{1, 2, 3, 4, 5, 6, 7})},
		tensor.Tensor{Name: "ends", Type: tensor.Int32, Shape: []int64{3}, Data: tensor.Data([]int32{2, 6, 7})})
	if x := out.Tensors[0]; !slices.Equal(x.Shape, []int64{3, 1}) || !bytes.Equal(x.Data, tensor.Data([]float32{3, 18, 7})) {
		t.Errorf("sums of 1 2 | 3 4 5 6 | 7 are %v", x)
	}
	if x := out.Tensors[1]; !slices.Equal(x.Shape, []int64{7}) || !bytes.Equal(x.Data, tensor.Data([]float32{2, 1, 15, 14, 13, 12, 0})) {
		t.Errorf("the rest of 1 2 | 3 4 5 6 | 7 is %v", x)
	}
}

func TestARaggedModelIsComparedWithItsConfiguration(t *testing.T) {
	e := newEngine(t, Options{})
	for want, change := range map[string]func(*modelconfig.Config){
		`input: found "x", expected all`: func(c *modelconfig.Config) { c.BatchInputs = nil },
		`target_name: found "starts"`: func(c *modelconfig.Config) {
			c.BatchInputs = append(c.BatchInputs, modelconfig.BatchInput{Name: "starts"})
		},
		`batch_input[0].data_type`: func(c *modelconfig.Config) { c.BatchInputs[0].Type = tensor.FP32 },
		`input[0].dims`:            func(c *modelconfig.Config) { c.Inputs[0].Ragged = false },
		`output[1].dims`:           func(c *modelconfig.Config) { c.BatchOutputs = nil },
	} {
		cfg := raggedConfig()
		change(cfg)
		m, err := e.Load(t.Context(), source("ragged", cfg))
		if err == nil {
			_ = m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
