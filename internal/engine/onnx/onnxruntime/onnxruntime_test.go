package onnxruntime_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

func open(t testing.TB, opts onnxruntime.Options) *onnxruntime.Runtime {
	t.Helper()
	opts.Library = onnxtest.Library(t)
	r, err := onnxruntime.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func load(t testing.TB, model string) *onnxruntime.Session {
	t.Helper()
	s, err := open(t, onnxruntime.Options{}).Load(t.Context(), onnxtest.Model(model), onnxruntime.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// call prepares runs with all inputs and outputs of a model.
func call(t testing.TB, s *onnxruntime.Session) *onnxruntime.Call {
	t.Helper()
	var inputs, outputs []string
	for _, p := range s.Inputs {
		inputs = append(inputs, p.Name)
	}
	for _, p := range s.Outputs {
		outputs = append(outputs, p.Name)
	}
	c, err := s.NewCall(inputs, outputs, onnxruntime.CallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// run returns the outputs of one run, copied.
func run(t testing.TB, c *onnxruntime.Call, in ...tensor.Tensor) []tensor.Tensor {
	t.Helper()
	out, memory, err := c.Run(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Release()
	for i := range out {
		if err := out[i].Check(); err != nil {
			t.Errorf("output %s: %v", out[i].Name, err)
		}
		out[i].Data, out[i].Shape = bytes.Clone(out[i].Data), slices.Clone(out[i].Shape)
	}
	return out
}

func floats(name string, shape []int64, values ...float32) tensor.Tensor {
	return tensor.Tensor{Name: name, Type: tensor.FP32, Shape: shape, Data: tensor.Data(values)}
}

func TestAModelTellsItsInputsWithTheNamesOfTheirDimensions(t *testing.T) {
	s := load(t, "types")
	if len(s.Inputs) != 14 || len(s.Outputs) != 14 {
		t.Fatalf("%d inputs and %d outputs, want 14 each", len(s.Inputs), len(s.Outputs))
	}
	for _, p := range s.Inputs {
		if want := "in_" + p.Type.String(); p.Name != want || !slices.Equal(p.Dims, []int64{-1, -1}) || !slices.Equal(p.Symbols, []string{"N", "D"}) {
			t.Errorf("input is %+v, want the name %s and dimensions N and D", p, want)
		}
	}
	if p := load(t, "sequence").Outputs[0]; p.Type != tensor.Invalid || p.Kind != "sequence" {
		t.Errorf("a sequence is %+v", p)
	}
	if p := load(t, "scalar").Inputs[0]; p.Type != tensor.FP32 || len(p.Dims) != 0 || p.AnyShape {
		t.Errorf("a scalar is %+v", p)
	}
	if p := load(t, "anyshape").Inputs[0]; p.Type != tensor.FP32 || !p.AnyShape {
		t.Errorf("what may have any shape is %+v", p)
	}
}

func TestStringsOfAnyBytesComeThrough(t *testing.T) {
	c := call(t, load(t, "strings"))
	for _, texts := range [][]string{{"a\x00b\x00"}, {"", "\x00", "\xff\xfe", "", strings.Repeat("x", 5000), "ü"}, {"", ""}, {}} {
		in := tensor.Tensor{Name: "in", Type: tensor.Bytes, Shape: []int64{int64(len(texts)), 1}}
		for _, s := range texts {
			in.Data = tensor.AppendString(in.Data, s)
		}
		out := run(t, c, in)[0]
		if out.Type != tensor.Bytes || !slices.Equal(out.Shape, in.Shape) || !bytes.Equal(out.Data, in.Data) {
			t.Errorf("%q became %v %v %q", texts, out.Type, out.Shape, out.Data)
		}
	}
}

func TestStringsThatEndTooSoonAreRefused(t *testing.T) {
	c := call(t, load(t, "strings"))
	for _, data := range [][]byte{{1, 0}, {2, 0, 0, 0, 'a'}} {
		_, _, err := c.Run([]tensor.Tensor{{Name: "in", Type: tensor.Bytes, Shape: []int64{1, 1}, Data: data}}, nil)
		if e, ok := errors.AsType[*onnxruntime.Error](err); !ok || e.Code != onnxruntime.InvalidArgument {
			t.Errorf("%v: %v", data, err)
		}
	}
}

func TestEveryTypeComesThroughBitForBit(t *testing.T) {
	s := load(t, "types")
	c := call(t, s)
	for _, shape := range [][]int64{{1, 3}, {4, 5}, {0, 3}, {2, 0}} {
		n, _ := tensor.Elements(shape)
		var in []tensor.Tensor
		for _, p := range s.Inputs {
			x := tensor.Tensor{Name: p.Name, Type: p.Type, Shape: shape}
			for k := range n {
				switch {
				case p.Type == tensor.Bytes:
					x.Data = tensor.AppendString(x.Data, string(rune('a'+k)))
				case p.Type == tensor.Bool:
					x.Data = append(x.Data, byte(k%2))
				default: // any bits: not-a-numbers of FP16 and BF16 among them
					x.Data = append(x.Data, bytes.Repeat([]byte{byte(0xff - k)}, p.Type.Size())...)
				}
			}
			in = append(in, x)
		}
		for i, out := range run(t, c, in...) {
			if out.Type != in[i].Type || !slices.Equal(out.Shape, shape) || !bytes.Equal(out.Data, in[i].Data) {
				t.Errorf("%s: %v of shape %v came back as %v of shape %v", out.Name, in[i].Data, shape, out.Data, out.Shape)
			}
		}
	}
}

func TestAScalarHasNoDimensions(t *testing.T) {
	out := run(t, call(t, load(t, "scalar")), floats("x", nil, 21))[0]
	if got, _ := tensor.View[float32](&out); len(out.Shape) != 0 || !slices.Equal(got, []float32{42}) {
		t.Errorf("twice 21 is %v of shape %v", got, out.Shape)
	}
}

func TestOutputsHaveTheShapeThatTheDataGives(t *testing.T) {
	c := call(t, load(t, "nonzero"))
	out := run(t, c, floats("x", []int64{2, 2}, 0, 1, 1, 0))[0]
	if got, _ := tensor.View[int64](&out); !slices.Equal(out.Shape, []int64{2, 2}) || !slices.Equal(got, []int64{0, 1, 1, 0}) {
		t.Errorf("found %v of shape %v", got, out.Shape)
	}
	if out := run(t, c, floats("x", []int64{1, 2}, 0, 0))[0]; !slices.Equal(out.Shape, []int64{2, 0}) || len(out.Data) != 0 {
		t.Errorf("nothing has shape %v and %d bytes", out.Shape, len(out.Data))
	}
}

// An output that is an input would be the caller's memory, or a copy of it, which
// are used again.
func TestAnInputThatIsHandedThroughIsCopied(t *testing.T) {
	c := call(t, load(t, "passthrough"))
	values := []float32{1, 2, 3, 4}
	for where, data := range map[string][]byte{
		"in place":    tensor.Data(slices.Clone(values)),
		"not aligned": append([]byte{0}, tensor.Data(values)...)[1:],
	} {
		in := []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 4}, Data: data}}
		out, memory, err := c.Run(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		clear(data)
		_, other, err := c.Run(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := tensor.View[float32](&out[0]); !slices.Equal(got, values) {
			t.Errorf("%s: it changed with the input to %v", where, got)
		}
		if got, _ := tensor.View[float32](&out[1]); !slices.Equal(got, []float32{-1, -2, -3, -4}) {
			t.Errorf("%s: what was computed is %v", where, got)
		}
		memory.Release()
		other.Release()
	}
}

func TestOutputsOutliveTheSession(t *testing.T) {
	s, err := open(t, onnxruntime.Options{}).Load(t.Context(), onnxtest.Model("passthrough"), onnxruntime.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.NewCall([]string{"x"}, []string{"y", "c"}, onnxruntime.CallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, memory, err := c.Run([]tensor.Tensor{floats("x", []int64{1, 4}, 1, 2, 3, 4)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	constant := bytes.Clone(out[1].Data)
	c.Close()
	s.Close()
	if got, _ := tensor.View[float32](&out[0]); !slices.Equal(got, []float32{-1, -2, -3, -4}) || !bytes.Equal(out[1].Data, constant) {
		t.Errorf("they changed to %v and %v", got, out[1].Data)
	}
	memory.Release()
}

func TestInputsAreReadWhereverTheyLie(t *testing.T) {
	c := call(t, load(t, "add_sub"))
	one, two := slices.Repeat([]float32{1}, 16), slices.Repeat([]float32{2}, 16)
	odd := append([]byte{0}, tensor.Data(one)...)[1:]
	mapped, err := syscall.Mmap(-1, 0, 64, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Munmap(mapped); err != nil {
			t.Error(err)
		}
	}()
	copy(mapped, tensor.Data(two))
	shape := []int64{1, 16}
	out := run(t, c, tensor.Tensor{Name: "INPUT0", Type: tensor.FP32, Shape: shape, Data: odd},
		tensor.Tensor{Name: "INPUT1", Type: tensor.FP32, Shape: shape, Data: mapped})
	if got, _ := tensor.View[float32](&out[0]); !slices.Equal(got, slices.Repeat([]float32{3}, 16)) {
		t.Errorf("1 and 2 are %v", got)
	}
}

func TestManyGoroutinesOnOneSessionGetTheSameBits(t *testing.T) {
	s := load(t, "mlp")
	input := func(seed int) tensor.Tensor {
		values := make([]float32, 3*32)
		for i := range values {
			values[i] = float32(math.Sin(float64(i * (seed + 1))))
		}
		return floats("x", []int64{3, 32}, values...)
	}
	var wg sync.WaitGroup
	for g := range 16 {
		c := call(t, s)
		want := run(t, c, input(g))[0]
		wg.Go(func() {
			for range 200 {
				out, memory, err := c.Run([]tensor.Tensor{input(g)}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(out[0].Data, want.Data) {
					t.Error("a run beside others has another result")
				}
				memory.Release()
			}
		})
	}
	wg.Wait()
}

func spin(steps int64) []tensor.Tensor {
	return []tensor.Tensor{
		floats("x", []int64{1, 64}, make([]float32, 64)...),
		{Name: "steps", Type: tensor.Int64, Shape: []int64{1, 1}, Data: tensor.Data([]int64{steps})},
	}
}

func TestTerminateStopsTheRunThatIsUnderWay(t *testing.T) {
	c := call(t, load(t, "spin"))
	timer := time.AfterFunc(20*time.Millisecond, func() { c.Terminate(true) })
	defer timer.Stop()
	began := time.Now()
	_, _, err := c.Run(spin(1<<40), nil)
	if err == nil || time.Since(began) > 30*time.Second {
		t.Fatalf("ended with %v after %v", err, time.Since(began))
	}
	if _, _, err := c.Run(spin(1), nil); err == nil {
		t.Error("the next run was not stopped")
	}
	c.Terminate(false)
	run(t, c, spin(1)...)
}

func TestTerminateAfterCloseIsHarmless(t *testing.T) {
	s := load(t, "spin")
	c, err := s.NewCall([]string{"x", "steps"}, []string{"y"}, onnxruntime.CallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	c.Terminate(true)
	c.Close()
}

func TestErrorsKeepTheirCode(t *testing.T) {
	r := open(t, onnxruntime.Options{})
	corrupt := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(corrupt, []byte("this is no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]onnxruntime.Code{corrupt: onnxruntime.InvalidProtobuf, corrupt + "x": onnxruntime.NoSuchFile} {
		_, err := r.Load(t.Context(), file, onnxruntime.SessionOptions{})
		if e, ok := errors.AsType[*onnxruntime.Error](err); !ok || e.Code != want {
			t.Errorf("%s: %v, want code %v", file, err, want)
		}
	}
	_, _, err := call(t, load(t, "fail_if")).Run([]tensor.Tensor{{Name: "index", Type: tensor.Int64, Shape: []int64{1, 1}, Data: tensor.Data([]int64{8})}}, nil)
	if e, ok := errors.AsType[*onnxruntime.Error](err); !ok || e.Code != onnxruntime.InvalidArgument || !strings.Contains(e.Text, "out of data bounds") {
		t.Errorf("an index outside of the table: %v", err)
	}
	if got := onnxruntime.Code(99).String(); got != "Code(99)" {
		t.Errorf("an unknown code prints as %s", got)
	}
}

func TestDataThatIsNotThatOfTheShapeIsRefused(t *testing.T) {
	c := call(t, load(t, "anyshape"))
	for _, shape := range [][]int64{{5}, {2, 3}, {-1}, {1 << 40, 1 << 40}} {
		_, _, err := c.Run([]tensor.Tensor{floats("x", shape, 1, 2, 3, 4)}, nil)
		if _, ok := errors.AsType[*onnxruntime.Error](err); !ok {
			t.Errorf("four numbers of shape %v: %v", shape, err)
		}
	}
	if _, _, err := c.Run(nil, nil); err == nil {
		t.Error("it ran without its input")
	}
	texts := tensor.AppendString(tensor.AppendString(nil, "a"), "b")
	if _, _, err := call(t, load(t, "strings")).Run([]tensor.Tensor{{Name: "in", Type: tensor.Bytes, Shape: []int64{1, 1}, Data: texts}}, nil); err == nil {
		t.Error("two strings were taken for one")
	}
}

// Without a release of each value, the runs would hold a gigabyte.
func TestRunsLeaveNoMemoryBehind(t *testing.T) {
	numbers, texts := call(t, load(t, "anyshape")), call(t, load(t, "strings"))
	in := floats("x", []int64{1 << 17}, make([]float32, 1<<17)...)
	text := tensor.Tensor{Name: "in", Type: tensor.Bytes, Shape: []int64{1, 1}, Data: tensor.AppendString(nil, make([]byte, 1<<19))}
	runs := func(n int) {
		for range n {
			for _, r := range []func() ([]tensor.Tensor, *buf.Buf, error){
				func() ([]tensor.Tensor, *buf.Buf, error) { return numbers.Run([]tensor.Tensor{in}, nil) },
				func() ([]tensor.Tensor, *buf.Buf, error) { return texts.Run([]tensor.Tensor{text}, nil) },
			} {
				_, memory, err := r()
				if err != nil {
					t.Fatal(err)
				}
				memory.Release()
			}
		}
	}
	runs(20)
	before := resident(t)
	runs(1000)
	if grown := resident(t) - before; grown > 200<<20 {
		t.Errorf("a thousand runs took %d MB", grown>>20)
	}
}

// resident returns how much memory the process has, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skipf("The system does not tell how much memory the process has: %v.", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

func TestAnUnknownNameIsFoundBeforeTheFirstRun(t *testing.T) {
	s := load(t, "mlp")
	if _, err := s.NewCall([]string{"z"}, []string{"y"}, onnxruntime.CallOptions{}); err == nil || !strings.Contains(err.Error(), `no input "z"`) {
		t.Errorf("input z: %v", err)
	}
	if _, err := s.NewCall([]string{"x"}, []string{"z"}, onnxruntime.CallOptions{}); err == nil || !strings.Contains(err.Error(), `no output "z"`) {
		t.Errorf("output z: %v", err)
	}
}

func TestLoadingEndsWithItsContext(t *testing.T) {
	r := open(t, onnxruntime.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Load(ctx, onnxtest.Model("mlp"), onnxruntime.SessionOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestSettingsReachTheLibrary(t *testing.T) {
	r := open(t, onnxruntime.Options{})
	if v := r.Version(); !strings.HasPrefix(v, "1.") {
		t.Errorf("version is %q", v)
	}
	for _, opts := range []onnxruntime.SessionOptions{
		{},
		{Threads: 2, Optimise: onnxruntime.OptimiseNothing},
		{Parallel: 2, Optimise: onnxruntime.OptimiseExtended},
		{NoArena: true, NoPattern: true, Optimise: onnxruntime.OptimiseBasic, Config: map[string]string{"session.use_env_allocators": "0"}},
	} {
		s, err := r.Load(t.Context(), onnxtest.Model("mlp"), opts)
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.NewCall([]string{"x"}, []string{"y"}, onnxruntime.CallOptions{Config: map[string]string{"memory.enable_memory_arena_shrinkage": "cpu:0"}})
		if err != nil {
			t.Fatal(err)
		}
		if !opts.NoArena { // there is nothing to shrink without it, and the library says so
			run(t, c, floats("x", []int64{1, 32}, make([]float32, 32)...))
		}
		c.Close()
		s.Close()
	}
	if _, err := r.Load(t.Context(), onnxtest.Model("mlp"), onnxruntime.SessionOptions{Config: map[string]string{"": "1"}}); err == nil {
		t.Error("an empty key was taken")
	}
}

func TestAGPUThatTheLibraryCannotUseIsAnError(t *testing.T) {
	r := open(t, onnxruntime.Options{})
	if r.CUDA() {
		t.Skip("The library can compute on GPUs.")
	}
	_, err := r.Load(t.Context(), onnxtest.Model("mlp"), onnxruntime.SessionOptions{CUDA: new(int)})
	_, tensorRT := r.Load(t.Context(), onnxtest.Model("mlp"), onnxruntime.SessionOptions{CUDA: new(int), TensorRT: map[string]string{"trt_fp16_enable": "1"}})
	if !errors.Is(tensorRT, onnxruntime.ErrTensorRT) || !strings.Contains(tensorRT.Error(), "TensorRT on device 0") {
		t.Errorf("got %v", tensorRT)
	}
	if !errors.Is(err, onnxruntime.ErrCUDA) || !strings.Contains(err.Error(), "CUDA device 0") {
		t.Errorf("ended with %v", err)
	}
}

func TestTheLibrarysLogGoesToTheLogger(t *testing.T) {
	var text logtest.Log
	r := open(t, onnxruntime.Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	nowhere := map[string]string{"session.intra_op_thread_affinities": "100000"} // a core that there is not
	s, err := r.Load(t.Context(), onnxtest.Model("mlp"), onnxruntime.SessionOptions{Threads: 2, Config: nowhere})
	if err != nil {
		t.Fatal(err)
	}
	s.Close() // its threads have said what they had to say
	if got := text.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "engine=onnxruntime") {
		t.Errorf("logged %q", got)
	}
}

// A client that sends bad requests would fill the log.
func TestAnErrorOfARunIsReturnedAndNotLogged(t *testing.T) {
	var text logtest.Log
	r := open(t, onnxruntime.Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	s, err := r.Load(t.Context(), onnxtest.Model("fail_if"), onnxruntime.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := call(t, s).Run([]tensor.Tensor{{Name: "index", Type: tensor.Int64, Shape: []int64{1, 1}, Data: tensor.Data([]int64{8})}}, nil); err == nil {
		t.Fatal("it did not fail")
	}
	if got := text.String(); got != "" {
		t.Errorf("logged %q", got)
	}
}

// The one that is left is the count of the outputs' users.
func TestARunAllocatesOnce(t *testing.T) {
	c := call(t, load(t, "add_sub"))
	in := []tensor.Tensor{
		floats("INPUT0", []int64{1, 16}, make([]float32, 16)...),
		floats("INPUT1", []int64{1, 16}, make([]float32, 16)...),
	}
	var out []tensor.Tensor
	allocs := testing.AllocsPerRun(1000, func() {
		tensors, memory, err := c.Run(in, out[:0])
		if err != nil {
			t.Fatal(err)
		}
		out = tensors
		memory.Release()
	})
	if allocs > 1 {
		t.Errorf("a run allocates %v times, want once", allocs)
	}
}

func TestWhatIsNotTheLibraryIsRefused(t *testing.T) {
	if !onnxruntime.Built {
		t.Skip("Without cgo there is no binding to ONNX Runtime: install a C compiler.")
	}
	file := filepath.Join(t.TempDir(), "libonnxruntime.so.1")
	if err := os.WriteFile(file, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := onnxruntime.Open(onnxruntime.Options{Library: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a text: %v", err)
	}
}

func TestFindSaysWhereItLookedAndWhatToDo(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "lib.so")
	t.Setenv(onnxruntime.Variable, "")
	for name, find := range map[string]func() (string, error){
		"given": func() (string, error) { return onnxruntime.Find(missing) },
		"environment": func() (string, error) {
			t.Setenv(onnxruntime.Variable, missing)
			defer t.Setenv(onnxruntime.Variable, "")
			return onnxruntime.Find("")
		},
	} {
		if _, err := find(); err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "make deps") {
			t.Errorf("%s: %v", name, err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := onnxruntime.Find(""); err == nil || !strings.Contains(err.Error(), filepath.Dir(program)) || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("beside the program: %v", err)
	}
	if err := os.WriteFile(missing, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if path, err := onnxruntime.Find(missing); err != nil || path != missing {
		t.Errorf("found %q, %v", path, err)
	}
}
