// Package bare measures the bare engine: ONNX Runtime through the binding, with
// nothing of the server around it. That is the most a server can reach on the same
// machine, and what it is held against in the same run.
//
// It knows models by their files alone, and makes up what it gives them.
package bare

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/tensor"
)

// File returns the path of a model in a folder that `make models` filled.
func File(models, name string) string { return filepath.Join(models, name, "1", "model.onnx") }

// A Model is a model's file, loaded once for each number of threads that is asked
// for. It is used by one goroutine.
type Model struct {
	Name string

	file     string
	runtime  *onnxruntime.Runtime
	sessions map[int]*onnxruntime.Session // by the number of threads
}

// Open opens a model of a folder that `make models` filled. The caller closes it,
// and keeps the runtime until then.
func Open(runtime *onnxruntime.Runtime, models, name string) *Model {
	return &Model{Name: name, file: File(models, name), runtime: runtime, sessions: map[int]*onnxruntime.Session{}}
}

// Close unloads the model.
func (m *Model) Close() {
	for _, s := range m.sessions {
		s.Close()
	}
}

func (m *Model) session(threads int) (*onnxruntime.Session, error) {
	if s := m.sessions[threads]; s != nil {
		return s, nil
	}
	opts := onnxruntime.SessionOptions{Threads: threads}
	if threads > 1 {
		// The server's threads do not spin; the bare engine gets what is best for it.
		opts.Config = map[string]string{"session.intra_op.allow_spinning": "1"}
	}
	s, err := m.runtime.Load(context.Background(), m.file, opts)
	if err != nil {
		return nil, err
	}
	m.sessions[threads] = s
	return s, nil
}

// A Setting is a way to run a model: batches of so many rows, each computed by so
// many threads, by so many callers of one session at a time.
type Setting struct{ Rows, Threads, Callers int }

func (s Setting) String() string {
	return fmt.Sprintf("%d rows, %d threads, %d callers", s.Rows, s.Threads, s.Callers)
}

// Settings returns the ways to run batches of these sizes that are worth trying on
// so many cores: they fill one of them, or all.
func Settings(rows []int, cores int) (all []Setting) {
	for threads := 1; threads <= cores; threads *= 2 {
		for _, callers := range slices.Compact([]int{1, cores / threads}) {
			for _, n := range rows {
				all = append(all, Setting{n, threads, callers})
			}
		}
	}
	return all
}

// A Result is what a setting gave.
type Result struct {
	Setting
	Takes         time.Duration // a batch, the median
	CPU           time.Duration // of the whole process for a batch
	RowsPerSecond float64
}

// Best returns the result of the largest throughput.
func Best(results []Result) Result {
	return slices.MaxFunc(results, func(a, b Result) int { return cmp.Compare(a.RowsPerSecond, b.RowsPerSecond) })
}

// Measure runs the model for a while, and each caller twice before.
func (m *Model) Measure(s Setting, d time.Duration) (Result, error) {
	session, err := m.session(s.Threads)
	if err != nil {
		return Result{}, err
	}
	var callers []*caller
	defer func() {
		for _, c := range callers {
			c.call.Close()
		}
	}()
	for range s.Callers {
		c, err := newCaller(m.Name, session, s.Rows)
		if err != nil {
			return Result{}, err
		}
		callers = append(callers, c)
	}
	cpu := processCPU()
	began := time.Now()
	var running sync.WaitGroup
	for _, c := range callers {
		running.Go(func() { c.loop(began.Add(d)) })
	}
	running.Wait()
	took := time.Since(began)
	cpu = processCPU() - cpu
	var runs []time.Duration
	var errs []error
	for _, c := range callers {
		runs = append(runs, c.runs...)
		errs = append(errs, c.err)
	}
	slices.Sort(runs)
	return Result{
		Setting: s, Takes: runs[len(runs)/2], CPU: cpu / time.Duration(len(runs)),
		RowsPerSecond: float64(len(runs)*s.Rows) / took.Seconds(),
	}, errors.Join(errs...)
}

// Run gives the model inputs, and returns what it makes of them.
func (m *Model) Run(in []tensor.Tensor) ([]tensor.Tensor, error) {
	s, err := m.session(1)
	if err != nil {
		return nil, err
	}
	call, err := s.NewCall(names(s.Inputs), names(s.Outputs), onnxruntime.CallOptions{})
	if err != nil {
		return nil, err
	}
	defer call.Close()
	out, memory, err := call.Run(in, nil)
	if err != nil {
		return nil, err
	}
	defer memory.Release()
	for i := range out {
		out[i].Data = bytes.Clone(out[i].Data)
	}
	return out, nil
}

type caller struct {
	call *onnxruntime.Call
	in   []tensor.Tensor
	out  []tensor.Tensor
	runs []time.Duration
	err  error
}

func newCaller(model string, s *onnxruntime.Session, rows int) (*caller, error) {
	in, err := inputs(model, s.Inputs, rows, 1)
	if err != nil {
		return nil, err
	}
	call, err := s.NewCall(names(s.Inputs), names(s.Outputs), onnxruntime.CallOptions{})
	if err != nil {
		return nil, err
	}
	c := &caller{call: call, in: in}
	for range 2 { // the first is slow, since it plans its memory
		if err := c.run(); err != nil {
			call.Close()
			return nil, err
		}
	}
	return c, nil
}

func names(ports []onnxruntime.Port) (all []string) {
	for _, p := range ports {
		all = append(all, p.Name)
	}
	return all
}

func (c *caller) run() error {
	out, memory, err := c.call.Run(c.in, c.out[:0])
	c.out = out
	if err == nil {
		memory.Release()
	}
	return err
}

func (c *caller) loop(until time.Time) {
	for now := time.Now(); len(c.runs) == 0 || now.Before(until); {
		if c.err = c.run(); c.err != nil {
			return
		}
		then := time.Now()
		c.runs = append(c.runs, then.Sub(now))
		now = then
	}
}

func processCPU() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0 // it fails for no reason that could be met here
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// free are the sizes that are taken for dimensions that a model leaves open, after
// the batch dimension: a line of text of usual length, and a sentence.
var free = map[string][]int64{"ppocrv4_rec": {3, 48, 320}, "minilm": {16}}

// Inputs makes up inputs of the model: numbers between 0 and 1 that follow from the
// seed, and 1 where the model wants integers.
func (m *Model) Inputs(rows int, seed uint64) ([]tensor.Tensor, error) {
	s, err := m.session(1)
	if err != nil {
		return nil, err
	}
	return inputs(m.Name, s.Inputs, rows, seed)
}

func inputs(model string, ports []onnxruntime.Port, rows int, seed uint64) (in []tensor.Tensor, err error) {
	random := rand.New(rand.NewPCG(seed, 0))
	for _, p := range ports {
		shape := slices.Clone(p.Dims)
		if len(shape) == 0 {
			return nil, fmt.Errorf("input %q of %s has no batch dimension", p.Name, model)
		}
		shape[0] = int64(rows)
		copy(shape[1:], free[model])
		elements, err := tensor.Elements(shape)
		if err != nil {
			return nil, fmt.Errorf("input %q of %s: %w", p.Name, model, err)
		}
		t := tensor.Tensor{Name: p.Name, Type: p.Type, Shape: shape}
		switch p.Type {
		case tensor.FP32:
			for range elements {
				t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(random.Float32()))
			}
		case tensor.Int32:
			for range elements {
				t.Data = binary.LittleEndian.AppendUint32(t.Data, 1)
			}
		case tensor.Int64:
			for range elements {
				t.Data = binary.LittleEndian.AppendUint64(t.Data, 1)
			}
		default:
			return nil, fmt.Errorf("input %q of %s has type %v, expected FP32, INT32 or INT64", p.Name, model, p.Type)
		}
		in = append(in, t)
	}
	return in, nil
}
