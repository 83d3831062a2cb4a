// Package enginetest has the suite that every engine passes, and an engine that
// computes nothing, for tests and for measuring the server's own cost.
package enginetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Conform runs the suite that every engine passes. The model must have a batch
// dimension of at least 4 rows, and give each row the same answer whatever rows
// are beside it.
func Conform(t *testing.T, eng engine.Engine, src engine.Source) {
	t.Helper()
	s := suite{src.Config, nil}
	model, err := eng.Load(t.Context(), src)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	s.model = model
	t.Run("outputs are what the configuration says", s.outputsAsConfigured)
	t.Run("rows answer the same alone and together", s.rowsAreIndependent)
	t.Run("inputs are left alone", s.inputsUnchanged)
	t.Run("outputs outlive the next run", s.outputsOutliveTheNextRun)
	t.Run("outputs outlive their instance", s.outputsOutliveTheInstance)
	t.Run("instances run at the same time", s.instancesTogether)
	t.Run("a run ends with its context", s.runEndsWithContext)
	t.Run("an instance works after a stopped run", s.worksAfterStop)
	closeModel(t, model)
	t.Run("loading gives up when its context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m, err := eng.Load(ctx, src)
		if err == nil {
			closeModel(t, m)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a load whose context had ended returned %v, want the context's error", err)
		}
	})
}

// ConformStop checks that a run that has begun ends with its context, and that the
// instance is free and right afterwards. The model must take some seconds for the rows
// in slow, and little for those in quick.
func ConformStop(t *testing.T, eng engine.Engine, src engine.Source, slow, quick []tensor.Tensor) {
	t.Helper()
	model, err := eng.Load(t.Context(), src)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	defer closeModel(t, model)
	s := suite{src.Config, model}
	t.Run("a run that has begun is stopped", func(t *testing.T) {
		inst := s.open(t)
		before := s.run(t, inst, quick)
		defer before.Memory.Release()
		for range 3 {
			const begun = 50 * time.Millisecond
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), begun)
			var out engine.Outputs
			err := inst.Run(ctx, slow, &out)
			took := time.Since(began)
			cancel()
			if err == nil {
				out.Memory.Release()
			}
			if !errors.Is(err, context.DeadlineExceeded) || took < begun || took > begun+time.Second {
				t.Fatalf("returned %v after %v, want the context's error after %v", err, took, begun)
			}
			after := s.run(t, inst, quick)
			for i := range after.Tensors {
				if !bytes.Equal(after.Tensors[i].Data, before.Tensors[i].Data) {
					t.Errorf("output %s differs from what it was before a run was stopped", after.Tensors[i].Name)
				}
			}
			after.Memory.Release()
		}
	})
}

type suite struct {
	cfg   *modelconfig.Config
	model engine.Model
}

func (s *suite) open(t *testing.T) engine.Instance {
	t.Helper()
	inst, err := s.model.Instance(t.Context())
	if err != nil {
		t.Fatalf("instance: %v", err)
	}
	t.Cleanup(func() { closeInstance(t, inst) })
	return inst
}

func closeModel(t *testing.T, m engine.Model) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func closeInstance(t *testing.T, inst engine.Instance) {
	t.Helper()
	if err := inst.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// Rows returns random rows for a model, for [ConformStop].
func Rows(cfg *modelconfig.Config, rows int) []tensor.Tensor {
	return (&suite{cfg: cfg}).inputs(rows, 1)
}

// inputs makes random rows, different ones for each seed.
func (s *suite) inputs(rows int, seed uint64) []tensor.Tensor {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var in []tensor.Tensor
	for _, spec := range s.cfg.Inputs {
		x := tensor.Tensor{Name: spec.Name, Type: spec.Type, Shape: []int64{int64(rows)}}
		for _, d := range spec.Dims {
			x.Shape = append(x.Shape, max(d, 1))
		}
		n, _ := tensor.Elements(x.Shape)
		for range n {
			x.Data = appendElement(x.Data, spec.Type, rnd)
		}
		in = append(in, x)
	}
	return in
}

// appendElement appends a small number, which every type can hold.
func appendElement(data []byte, t tensor.Type, rnd *rand.Rand) []byte {
	n := rnd.IntN(100)
	switch t {
	case tensor.Bytes:
		return tensor.AppendString(data, string(rune('a'+n%26)))
	case tensor.FP32:
		return append(data, tensor.Data([]float32{float32(n) / 100})...)
	case tensor.FP64:
		return append(data, tensor.Data([]float64{float64(n) / 100})...)
	case tensor.Bool:
		return append(data, byte(n%2))
	case tensor.FP16, tensor.BF16:
		return append(data, tensor.Data([]uint16{uint16(n)})...)
	}
	return append(data, append([]byte{byte(n)}, make([]byte, t.Size()-1)...)...)
}

func (s *suite) run(t *testing.T, inst engine.Instance, in []tensor.Tensor) engine.Outputs {
	t.Helper()
	var out engine.Outputs
	if err := inst.Run(t.Context(), in, &out); err != nil {
		t.Fatalf("run: %v", err)
	}
	return out
}

func (s *suite) outputsAsConfigured(t *testing.T) {
	inst := s.open(t)
	for _, rows := range []int{1, 3, 4} {
		out := s.run(t, inst, s.inputs(rows, 1))
		if len(out.Tensors) != len(s.cfg.Outputs) {
			t.Fatalf("%d outputs, want %d", len(out.Tensors), len(s.cfg.Outputs))
		}
		for i, x := range out.Tensors {
			want := s.cfg.Outputs[i]
			if x.Name != want.Name || x.Type != want.Type {
				t.Errorf("output %d is %s of %v, want %s of %v", i, x.Name, x.Type, want.Name, want.Type)
			}
			if err := x.Check(); err != nil {
				t.Errorf("output %s: %v", x.Name, err)
			}
			if x.Rows() != rows {
				t.Errorf("output %s has %d rows for %d", x.Name, x.Rows(), rows)
			}
		}
		out.Memory.Release()
	}
}

func (s *suite) rowsAreIndependent(t *testing.T) {
	inst := s.open(t)
	const rows = 4
	batch := s.inputs(rows, 2)
	together := s.run(t, inst, batch)
	defer together.Memory.Release()
	want := split(together.Tensors, rows)
	for row, one := range split(batch, rows) {
		alone := s.run(t, inst, one)
		for i := range alone.Tensors {
			if !bytes.Equal(alone.Tensors[i].Data, want[row][i].Data) {
				t.Errorf("row %d of output %s differs from what it is alone", row, alone.Tensors[i].Name)
			}
		}
		alone.Memory.Release()
	}
}

// split returns the tensors of each row by itself.
func split(batch []tensor.Tensor, rows int) [][]tensor.Tensor {
	parts := make([][]tensor.Tensor, rows)
	for i := range batch {
		cut := tensor.Split(&batch[i])
		for row := range parts {
			one := batch[i]
			one.Shape = slices.Clone(one.Shape)
			one.Shape[0], one.Data = 1, cut.Next(1)
			parts[row] = append(parts[row], one)
		}
	}
	return parts
}

func (s *suite) inputsUnchanged(t *testing.T) {
	in, before := s.inputs(3, 3), s.inputs(3, 3)
	out := s.run(t, s.open(t), in)
	out.Memory.Release()
	for i := range in {
		if !bytes.Equal(in[i].Data, before[i].Data) || !slices.Equal(in[i].Shape, before[i].Shape) {
			t.Errorf("input %s was changed", in[i].Name)
		}
	}
}

func (s *suite) outputsOutliveTheNextRun(t *testing.T) {
	inst := s.open(t)
	first := s.run(t, inst, s.inputs(2, 4))
	kept := bytes.Clone(first.Tensors[0].Data)
	second := s.run(t, inst, s.inputs(2, 5))
	if !bytes.Equal(first.Tensors[0].Data, kept) {
		t.Error("the first run's output changed in the second")
	}
	first.Memory.Release()
	second.Memory.Release()
}

func (s *suite) outputsOutliveTheInstance(t *testing.T) {
	inst, err := s.model.Instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := s.run(t, inst, s.inputs(2, 6))
	kept := bytes.Clone(out.Tensors[0].Data)
	closeInstance(t, inst)
	if !bytes.Equal(out.Tensors[0].Data, kept) {
		t.Error("the output changed when its instance was closed")
	}
	out.Memory.Release()
}

func (s *suite) instancesTogether(t *testing.T) {
	var wg sync.WaitGroup
	for n := range 3 {
		inst := s.open(t)
		want := s.run(t, inst, s.inputs(2, uint64(n)))
		wg.Go(func() {
			defer want.Memory.Release()
			for range 5 {
				var out engine.Outputs
				if err := inst.Run(t.Context(), s.inputs(2, uint64(n)), &out); err != nil {
					t.Errorf("run: %v", err)
					return
				}
				if !bytes.Equal(out.Tensors[0].Data, want.Tensors[0].Data) {
					t.Error("an instance answered differently beside others")
				}
				out.Memory.Release()
			}
		})
	}
	wg.Wait()
}

// runEndsWithContext asks that a run whose context has ended returns, and leaves
// no memory behind. It may have been too fast to be stopped.
func (s *suite) runEndsWithContext(t *testing.T) {
	inst := s.open(t)
	live := buf.Live()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var out engine.Outputs
	err := inst.Run(ctx, s.inputs(4, 7), &out)
	switch {
	case err == nil:
		out.Memory.Release()
	case !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("error is %v, want the context's", err)
	}
	if now := buf.Live(); now != live {
		t.Errorf("%d buffers are left behind", now-live)
	}
}

// worksAfterStop stops runs before they begin, and, as far as the model is slow enough, at
// any time while they run.
func (s *suite) worksAfterStop(t *testing.T) {
	inst := s.open(t)
	began := time.Now()
	want := s.run(t, inst, s.inputs(4, 8))
	took := time.Since(began)
	defer want.Memory.Release()
	const tries = 8
	for i := range tries {
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(i)/tries)
		var out engine.Outputs
		err := inst.Run(ctx, s.inputs(4, 9), &out)
		cancel()
		if err == nil {
			out.Memory.Release()
		}
		if i == 0 && !errors.Is(err, context.DeadlineExceeded) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a run whose context ended after %v returned %v, want the context's error", took*time.Duration(i)/tries, err)
		}
		after := s.run(t, inst, s.inputs(4, 8))
		for n := range after.Tensors {
			if !bytes.Equal(after.Tensors[n].Data, want.Tensors[n].Data) {
				t.Errorf("output %s differs from what it was before a run was stopped", after.Tensors[n].Name)
			}
		}
		after.Memory.Release()
	}
}
