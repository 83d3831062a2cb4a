package onnx

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// distinct writes a model of 48 MiB whose layers have different weights: the library keeps
// equal ones once.
func distinct(t *testing.T) engine.Source {
	t.Helper()
	const layers, width = 3, 2048
	src := dense(t, onnxtest.Dense{Rows: width, Columns: width, Layers: layers, External: true})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not for secrets
	for i := range layers {
		data := make([]byte, 0, 4*width*width)
		for range width * width {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(random.Float32()/64-1./256))
		}
		if err := os.WriteFile(filepath.Join(src.Dir, fmt.Sprintf("w%d", i)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return src
}

func TestAnExclusiveSessionSharesTheWeightsOfTheOther(t *testing.T) {
	e := newEngine(t, Options{})
	src := distinct(t)
	_, unload := load(t, e, sources["mlp"]()) // what the library needs for itself
	unload()
	before := resident(t)
	answers := map[int][]byte{}
	grown := map[int]int{}
	for _, threads := range []int{0, 2} {
		src.ExclusiveThreads = threads
		inst, unload := load(t, e, src)
		for _, run := range []runner{inst.Run, inst.(engine.ExclusiveRunner).RunExclusive} {
			x := rows(1, 2048)
			for i := range 2048 {
				binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(float32(i%7)))
			}
			var out engine.Outputs
			if err := run(t.Context(), []tensor.Tensor{x}, &out); err != nil {
				t.Fatal(err)
			}
			if have, ok := answers[0]; ok && !bytes.Equal(have, out.Tensors[0].Data) {
				t.Errorf("with %d threads for exclusive batches an answer differs", threads)
			}
			answers[0] = bytes.Clone(out.Tensors[0].Data)
			out.Memory.Release()
		}
		grown[threads] = resident(t) - before
		unload()
	}
	if grown[0] < 40 {
		t.Errorf("a model of 48 MiB took %d, so that this test shows nothing", grown[0])
	}
	if grown[2] > grown[0]+8 {
		t.Errorf("with an exclusive session a model of 48 MiB takes %d MiB, without %d", grown[2], grown[0])
	}
	if bytes.Count(answers[0], []byte{0}) == len(answers[0]) {
		t.Error("all answers are 0, so that this test compares nothing")
	}
	if left := resident(t) - before; left > 16 {
		t.Errorf("after it was unloaded, a model of 48 MiB leaves %d", left)
	}
}

type runner = func(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error

func TestSessionsThatCannotShareWeightsHaveTheirOwn(t *testing.T) {
	var log bytes.Buffer
	e := newEngine(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	src := sources["mlp"]()
	src.ExclusiveThreads = 2
	m, err := e.Load(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	if d := m.(*model).devices[0]; d.exclusive == nil || d.weights != nil {
		t.Errorf("loaded as %+v, want two sessions without shared weights", d)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "cannot share weights") {
		t.Errorf("no warning in\n%s", &log)
	}
}

func TestSharedWeightsLeaveNoFiles(t *testing.T) {
	e := newEngine(t, Options{})
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	src := sources["mlp"]()
	src.ExclusiveThreads = 2
	m, err := e.Load(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	if d := m.(*model).devices[0]; d.weights == nil {
		t.Error("the sessions do not share weights")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

var weights = flag.String("weights", "", "directory with minilm and resnet50, to measure what an exclusive session costs")

// onlyResident is set in a process that loads one model and reports its memory.
const onlyResident = "SHOAL_TEST_RESIDENT"

func TestMemoryOfRealModelsWithAnExclusiveSession(t *testing.T) {
	if text := os.Getenv(onlyResident); text != "" {
		reportResident(t, text)
		return
	}
	if *weights == "" {
		t.Skip("Needs models of real size: make measure WHAT=weights.")
	}
	library, err := filepath.Abs(onnxtest.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"minilm", "resnet50"} {
		loaded, ran, peak := map[int]int{}, map[int]int{}, map[int]int{}
		for _, threads := range []int{0, 2} {
			child := exec.CommandContext(t.Context(), program, "-test.run", "^TestMemoryOfRealModelsWithAnExclusiveSession$", "-test.v")
			child.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", onlyResident, threads, filepath.Join(*weights, name, "1")), "SHOAL_ONNXRUNTIME="+library)
			out, err := child.CombinedOutput()
			_, line, _ := strings.Cut(string(out), "resident ")
			var a, b, c int
			if n, _ := fmt.Sscan(line, &a, &b, &c); err != nil || n != 3 {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			loaded[threads], ran[threads], peak[threads] = a, b, c
		}
		t.Logf("%s: loaded %d MiB, with an exclusive session %d (%.2f times); after a batch in each %d and %d (%.2f times); at most %d and %d", name,
			loaded[0], loaded[2], float64(loaded[2])/float64(loaded[0]), ran[0], ran[2], float64(ran[2])/float64(ran[0]), peak[0], peak[2])
		if float64(loaded[2]) > 1.1*float64(loaded[0]) || float64(ran[2]) > 1.1*float64(ran[0]) {
			t.Errorf("%s: more than 1.1 times", name)
		}
	}
}

func reportResident(t *testing.T, text string) {
	t.Helper()
	var threads int
	var dir string
	if _, err := fmt.Sscan(text, &threads, &dir); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, Options{})
	inst, unload := load(t, e, engine.Source{Config: read(t, "max_batch_size: 8"), Version: 1, Dir: dir, ExclusiveThreads: threads})
	defer unload()
	loaded := resident(t)
	for _, run := range []runner{inst.Run, inst.(engine.ExclusiveRunner).RunExclusive} {
		var in []tensor.Tensor
		for _, p := range inst.(*instance).model.cfg.Inputs {
			in = append(in, zeros(p))
		}
		var out engine.Outputs
		if err := run(t.Context(), in, &out); err != nil {
			t.Fatal(err)
		}
		out.Memory.Release()
	}
	t.Logf("resident %d %d %d", loaded, resident(t), highest(t))
}

// zeros returns an input of one row. Dimensions of any size have 128.
func zeros(p modelconfig.Tensor) tensor.Tensor {
	shape, n := []int64{1}, int64(p.Type.Size())
	for _, d := range p.Dims {
		if d < 0 {
			d = 128
		}
		shape, n = append(shape, d), n*d
	}
	return tensor.Tensor{Name: p.Name, Type: p.Type, Shape: shape, Data: make([]byte, n)}
}
