package simulated

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

func config(parameters map[string]string) *modelconfig.Config {
	return &modelconfig.Config{
		Name: "sim", Backend: Name, MaxBatchSize: 8, Parameters: parameters,
		Inputs:  []modelconfig.Tensor{{Name: "in", Type: tensor.FP32, Dims: []int64{3}}, {Name: "more", Type: tensor.Int64, Dims: []int64{-1}}},
		Outputs: []modelconfig.Tensor{{Name: "out", Type: tensor.FP32, Dims: []int64{2, 4}}, {Name: "flag", Type: tensor.Bool, Dims: []int64{1}}},
	}
}

func TestConforms(t *testing.T) {
	p := pacer.New()
	defer p.Close()
	enginetest.Conform(t, &Engine{Pacer: p}, engine.Source{Config: config(map[string]string{"fixed_us": "500", "per_row_us": "100"})})
	slow := config(map[string]string{"per_row_us": "200000"})
	enginetest.ConformStop(t, &Engine{Pacer: p}, engine.Source{Config: slow}, enginetest.Rows(slow, 8), enginetest.Rows(slow, 1))
}

// load opens instances of a model in fake time.
func load(t *testing.T, n int, parameters map[string]string) []engine.Instance {
	t.Helper()
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	m, err := (&Engine{Pacer: p}).Load(t.Context(), engine.Source{Config: config(parameters)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	var all []engine.Instance
	for range n {
		inst, err := m.Instance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, inst)
	}
	return all
}

func TestInputsMayBeOmitted(t *testing.T) {
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	cfg := config(map[string]string{"fixed_us": "1", "per_element_us": "1"})
	cfg.MaxBatchSize, cfg.Outputs[0].Dims = 0, []int64{-1, 4}
	cfg.Inputs[0].Optional, cfg.Inputs[1].Optional = true, true
	cfg.Inputs[0].Dims = []int64{-1}
	m, err := (&Engine{Pacer: p}).Load(t.Context(), engine.Source{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.Instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := tensor.Tensor{Name: "more", Type: tensor.Int64, Shape: []int64{2}, Data: bytes.Repeat([]byte{7}, 16)}
	for _, in := range [][]tensor.Tensor{nil, {second}} {
		var out engine.Outputs
		if err := inst.Run(t.Context(), in, &out); err != nil {
			t.Fatalf("%d inputs: %v", len(in), err)
		}
		if got := out.Tensors[0]; !slices.Equal(got.Shape, []int64{1, 4}) || !bytes.Equal(got.Data, make([]byte, 16)) {
			t.Errorf("%d inputs: the first output is %v", len(in), got)
		}
		out.Memory.Release()
	}
	if err := errors.Join(inst.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

func rows(n int64, fill byte) []tensor.Tensor {
	return []tensor.Tensor{
		{Name: "in", Type: tensor.FP32, Shape: []int64{n, 3}, Data: bytes.Repeat([]byte{fill}, int(n)*12)},
		{Name: "more", Type: tensor.Int64, Shape: []int64{n, 1}, Data: make([]byte, n*8)},
	}
}

func run(t *testing.T, inst engine.Instance, n int64, want time.Duration) {
	t.Helper()
	began := time.Now()
	var out engine.Outputs
	if err := inst.Run(t.Context(), rows(n, 1), &out); err != nil {
		t.Error(err)
		return
	}
	out.Memory.Release()
	if took := time.Since(began); took != want {
		t.Errorf("%d rows took %v, want %v", n, took, want)
	}
}

func TestABatchTakesTheTimeThatIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := load(t, 1, map[string]string{"fixed_us": "1921", "per_row_us": "59.3"})[0]
		run(t, line, 1, 1980300*time.Nanosecond)
		run(t, line, 8, 2395400*time.Nanosecond)
		table := load(t, 1, map[string]string{"table_us": "1:100, 4:130"})[0]
		run(t, table, 3, 120*time.Microsecond)
	})
}

func TestInstancesOfAModelSlowEachOtherDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		insts := load(t, 2, map[string]string{"fixed_us": "1000", "slowdown": "1, 1.5"})
		var wg sync.WaitGroup
		for _, inst := range insts {
			wg.Go(func() { run(t, inst, 1, 1500*time.Microsecond) })
		}
		wg.Wait()
		run(t, insts[0], 1, time.Millisecond)
	})
}

func TestAModelGetsSlowerAndFasterWhenItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := load(t, 1, map[string]string{"fixed_us": "1000", "drift_ms": "10:2, 20.5:0.5"})[0]
		run(t, inst, 1, time.Millisecond)
		time.Sleep(9 * time.Millisecond)
		run(t, inst, 1, 2*time.Millisecond)
		time.Sleep(8500 * time.Microsecond)
		run(t, inst, 1, 500*time.Microsecond)
	})
}

func TestAStoppedBatchMakesWayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		insts := load(t, 2, map[string]string{"fixed_us": "1000", "slowdown": "1, 2"})
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
		defer cancel()
		wg.Go(func() {
			var out engine.Outputs
			if err := insts[0].Run(ctx, rows(1, 1), &out); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a stopped batch ended with %v", err)
			}
		})
		// Half speed for 500µs leaves 750µs of work for full speed.
		wg.Go(func() { run(t, insts[1], 1, 1250*time.Microsecond) })
		wg.Wait()
	})
}

func TestEachRowOfAnOutputRepeatsItsRowOfTheInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := load(t, 1, nil)[0]
		in := rows(2, 1)
		copy(in[0].Data[12:], bytes.Repeat([]byte{2}, 12))
		var out engine.Outputs
		if err := inst.Run(t.Context(), in, &out); err != nil {
			t.Fatal(err)
		}
		defer out.Memory.Release()
		want := append(bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)...)
		if !bytes.Equal(out.Tensors[0].Data, want) {
			t.Errorf("output is %v", out.Tensors[0].Data)
		}
	})
}

func TestAModelThatTakesOrGivesNothingIsRefused(t *testing.T) {
	cfg := config(nil)
	cfg.Inputs = nil
	if _, err := (&Engine{}).Load(t.Context(), engine.Source{Config: cfg}); err == nil || !strings.Contains(err.Error(), "input") {
		t.Errorf("a model without inputs: %v", err)
	}
}

func TestParametersThatMakeNoSenseAreRefusedByName(t *testing.T) {
	for name, value := range map[string]string{
		"fixed_us": "-1", "per_row_us": "x", "per_element_us": "nan", "table_us": "4:1, 4:2", "slowdown": "0.5", "speed": "1", "drift_ms": "5:2, 4:1",
	} {
		_, err := ParseSpeed(map[string]string{name: value})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s %q: %v", name, value, err)
		}
	}
	if _, err := ParseSpeed(map[string]string{"fixed_us": "1", "table_us": "1:1"}); err == nil {
		t.Error("a line and a table were taken together")
	}
}

func TestModelsOfOneDeviceShareItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		e := &Engine{Pacer: p}
		on := func(device string) engine.Instance {
			m, err := e.Load(t.Context(), engine.Source{Config: config(map[string]string{"fixed_us": "10000", "device": device})})
			if err != nil {
				t.Fatal(err)
			}
			inst, err := m.Instance(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return inst
		}
		both := func(x, y engine.Instance, want time.Duration) {
			var done sync.WaitGroup
			done.Go(func() { run(t, x, 1, want) })
			done.Go(func() { run(t, y, 1, want) })
			done.Wait()
		}
		both(on("a"), on("b"), 10*time.Millisecond)
		both(on("a"), on("a"), 20*time.Millisecond)
	})
}
