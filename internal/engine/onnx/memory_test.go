package onnx

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

const mib = 1 << 20

// dense writes a model that is too large to be kept.
func dense(t *testing.T, d onnxtest.Dense) engine.Source {
	t.Helper()
	dir := t.TempDir()
	d.Write(t, dir)
	return engine.Source{Config: read(t, "max_batch_size: 4096"), Version: 1, Dir: dir}
}

func rows(n, columns int) tensor.Tensor {
	return tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{int64(n), int64(columns)}, Data: make([]byte, 4*n*columns)}
}

// resident returns how much memory the process has, in MiB, without what Go keeps
// for itself.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skipf("The system does not tell how much memory the process has: %v.", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() / mib
}

// load loads a model, and returns an instance and what closes both.
func load(t *testing.T, e *Engine, src engine.Source) (engine.Instance, func()) {
	t.Helper()
	m, err := e.Load(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.Instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inst, func() {
		if err := errors.Join(inst.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	}
}

func runRows(t *testing.T, inst engine.Instance, n, columns int) {
	t.Helper()
	var out engine.Outputs
	if err := inst.Run(t.Context(), []tensor.Tensor{rows(n, columns)}, &out); err != nil {
		t.Fatal(err)
	}
	out.Memory.Release()
}

func TestAnUnloadedModelGivesItsMemoryBack(t *testing.T) {
	e := newEngine(t, Options{})
	src := dense(t, onnxtest.Dense{Rows: 4096, Columns: 4096, External: true}) // 64 MiB
	_, unload := load(t, e, sources["mlp"]())                                  // what the library needs for itself
	unload()
	before := resident(t)
	for range 3 {
		inst, unload := load(t, e, src)
		if grown := resident(t) - before; grown < 48 {
			t.Errorf("a model of 64 MiB took %d, so that this test shows nothing", grown)
		}
		runRows(t, inst, 16, 4096)
		unload()
		if left := resident(t) - before; left > 24 {
			t.Errorf("after it was unloaded, a model of 64 MiB leaves %d", left)
		}
	}
}

func TestALargeBatchGivesItsMemoryBackWithASmallOne(t *testing.T) {
	e := newEngine(t, Options{})
	inst, unload := load(t, e, dense(t, onnxtest.Dense{Rows: 16, Columns: 8192, External: true}))
	defer unload()
	runRows(t, inst, 1, 16)
	before := resident(t)
	for range 3 {
		runRows(t, inst, 4096, 16) // 128 MiB inside
		if grown := resident(t) - before; grown < 96 {
			t.Errorf("a batch of 128 MiB took %d, so that this test shows nothing", grown)
		}
		runRows(t, inst, 1, 16)
		if left := resident(t) - before; left > 48 {
			t.Errorf("after a small batch, one of 128 MiB leaves %d", left)
		}
	}
}

func TestMemoryIsGivenBackByTheFirstBatchOfLessThanHalf(t *testing.T) {
	var p batchPeak
	for i, tt := range []struct {
		size int64
		want bool
	}{{10, false}, {100, false}, {100, false}, {50, false}, {49, true}, {49, false}, {25, false}, {24, true}, {30, false}, {14, true}, {0, true}, {0, false}} {
		if got := p.observe(tt.size); got != tt.want {
			t.Errorf("batch %d, of %d bytes: %v", i, tt.size, got)
		}
	}
}

func TestTheSizeOfAModelIsThatOfItsFiles(t *testing.T) {
	e := New(Options{})
	for _, external := range []bool{false, true} {
		src := dense(t, onnxtest.Dense{Rows: 1000, Columns: 1000, External: external}) // 4 MB
		if err := os.WriteFile(filepath.Join(src.Dir, "other.onnx"), make([]byte, mib), 0o644); err != nil {
			t.Fatal(err)
		}
		size, err := e.Size(src)
		if err != nil || size < 9_000_000 || size > 9_002_000 {
			t.Errorf("external weights %v: %d bytes, %v, want a little more than 9 MB", external, size, err)
		}
	}
	for model := range sources {
		if size, err := e.Size(sources[model]()); err != nil || size <= 0 {
			t.Errorf("%s: %d bytes, %v", model, size, err)
		}
	}
}

func TestAModelMayBeADirectoryWithItsFiles(t *testing.T) {
	e := newEngine(t, Options{})
	for configured, name := range map[string]string{"": "model.onnx", `default_model_filename: "net"`: "net"} {
		src := engine.Source{Config: read(t, "max_batch_size: 8\n"+configured), Version: 1, Dir: t.TempDir()}
		dir := filepath.Join(src.Dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		onnxtest.Dense{Rows: 1000, Columns: 100, External: true}.Write(t, dir) // 0.4 MB
		if size, err := e.Size(src); err != nil || size < 900_000 || size > 902_000 {
			t.Errorf("%s: %d bytes, %v, want a little more than 0.9 MB", name, size, err)
		}
		inst, unload := load(t, e, src)
		runRows(t, inst, 2, 1000)
		unload()
	}
}

func TestLoadingTakesAboutWhatTheSizeSays(t *testing.T) {
	e := newEngine(t, Options{})
	_, unload := load(t, e, sources["mlp"]())
	unload()
	for _, tt := range []struct {
		external  bool
		exclusive int
	}{{false, 0}, {true, 0}, {false, 2}, {true, 2}} {
		src := dense(t, onnxtest.Dense{Rows: 4096, Columns: 4096, External: tt.external})
		src.ExclusiveThreads = tt.exclusive
		size, err := e.Size(src)
		if err != nil {
			t.Fatal(err)
		}
		before := resident(t)
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			t.Skipf("The peak cannot be set back: %v.", err)
		}
		_, unload := load(t, e, src)
		took, want := highest(t)-before, int(size/mib)
		unload()
		if took > want+8 || took < want/2 {
			t.Errorf("external weights %v, %d threads for exclusive batches: loading took %d MiB, said were %d", tt.external, tt.exclusive, took, want)
		}
	}
}

// highest returns the most memory that the process has had, in MiB.
func highest(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	if n, err = strconv.Atoi(strings.Fields(line)[0]); err != nil {
		t.Fatal(err)
	}
	return n / 1024
}

func TestTheSizeOfWhatIsNoModelIsNotKnown(t *testing.T) {
	e := New(Options{})
	src := engine.Source{Config: &modelconfig.Config{}, Dir: t.TempDir()}
	if _, err := e.Size(src); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("no file: %v", err)
	}
	onnxtest.Dense{Rows: 100, Columns: 100}.Write(t, src.Dir)
	model, err := os.ReadFile(fileOf(src))
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{"half a model": model[:len(model)/2], "a text": []byte("no model"), "a length without end": {0x3a, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		if err := os.WriteFile(fileOf(src), data, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Size(src); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "model.onnx") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestLoadingALargeModelEndsWithItsContext(t *testing.T) {
	e := newEngine(t, Options{Nice: 10})
	_, unload := load(t, e, sources["mlp"]())
	unload()
	before := resident(t)
	src := dense(t, onnxtest.Dense{Rows: 1024, Columns: 1024, Layers: 32, External: true}) // 128 MiB
	began := time.Now()
	_, unload = load(t, e, src)
	whole := time.Since(began)
	unload()
	// The best of several: on a busy machine a thread that is to end may wait for a core. A
	// load that does not end takes all of the time in each.
	best := whole
	for ended := 0; ended < 5; {
		ctx, cancel := context.WithTimeout(t.Context(), whole/20)
		began = time.Now()
		m, err := e.Load(ctx, src)
		took := time.Since(began)
		cancel()
		switch {
		case err == nil && took < whole/2:
			// The machine was busy with something else at the first load, and is not any more.
			whole, best = took, took
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		case !errors.Is(err, context.DeadlineExceeded) || infer.CodeOf(err) != infer.Deadline:
			t.Fatalf("ended with %v", err)
		default:
			best = min(best, took)
			ended++
		}
	}
	if best > whole/2 {
		t.Errorf("ended after %v, want the twentieth part of the %v that all of it takes", best, whole)
	}
	if left := resident(t) - before; left > 24 {
		t.Errorf("half a model of 128 MiB leaves %d", left)
	}
}

func TestOtherModelsRunWhileOneIsLoaded(t *testing.T) {
	e := newEngine(t, Options{Nice: 10})
	inst, unload := load(t, e, sources["mlp"]())
	defer unload()
	src := dense(t, onnxtest.Dense{Rows: 8192, Columns: 4096, External: true})
	loaded := make(chan error)
	go func() {
		m, err := e.Load(t.Context(), src)
		if err == nil {
			err = m.Close()
		}
		loaded <- err
	}()
	for ran := 0; ; ran++ {
		select {
		case err := <-loaded:
			// Some of them may have come before the library began; a lock that
			// is held while it loads would leave no more than those.
			if err != nil || ran < 100 {
				t.Errorf("%d batches ran while a model was loaded: %v", ran, err)
			}
			return
		default:
			runRows(t, inst, 1, 32)
		}
	}
}
