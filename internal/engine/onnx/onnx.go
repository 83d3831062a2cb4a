// Package onnx runs ONNX models with ONNX Runtime, on CPUs.
//
// A model is loaded once, however many instances it has: the library lets any
// number of threads run a session, so an instance is the right to run one batch
// on it, and weights are in memory once. A batch is computed by the thread that
// calls for it, unless the configuration asks for more.
//
// What the library is and where it comes from is for package onnxruntime.
package onnx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Name is the backend that a model's configuration asks for.
const Name = "onnxruntime"

// Instances is how many batches of a model may run at once if its configuration
// does not say, as in Triton.
const Instances = 2

// defaultFile is the model's file, if its configuration names no other.
const defaultFile = "model.onnx"

// Options say how models run. The zero Options work.
type Options struct {
	// Library is the path of ONNX Runtime; "" means that it is looked for, as
	// onnxruntime.Find says.
	Library string

	// Threads is the size of a pool that all models compute with, except those
	// whose configuration has an intra_op_thread_count. 0 means that there is
	// none, and each batch is computed by one thread.
	Threads int

	// Nice is the niceness of threads that compute: while all cores are busy with
	// batches, the server's own threads shall not wait for them. 0 leaves threads
	// as they are.
	Nice int

	Log *slog.Logger // nil means nobody
}

// An Engine implements [engine.Engine]. It opens the library when the first model
// is loaded, so that a server without ONNX models does not need it.
type Engine struct {
	opts Options

	mu      sync.Mutex // guards the following
	runtime *onnxruntime.Runtime
}

var _ engine.Engine = (*Engine)(nil)

// New makes an engine. The caller closes it after all its models.
func New(opts Options) *Engine {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{opts: opts}
}

// Close gives back what the engine holds.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runtime != nil {
		e.runtime.Close()
		e.runtime = nil
	}
	return nil
}

// open opens the library, if that is not done yet. A failure is not remembered:
// the library may be there next time.
func (e *Engine) open() (*onnxruntime.Runtime, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runtime != nil {
		return e.runtime, nil
	}
	library, err := onnxruntime.Find(e.opts.Library)
	if err != nil {
		return nil, infer.Errorf(infer.Unavailable, "%w", err)
	}
	r, err := onnxruntime.Open(onnxruntime.Options{Library: library, Threads: e.opts.Threads, Log: e.opts.Log})
	if err != nil {
		return nil, infer.Errorf(infer.Unavailable, "%w", err)
	}
	e.opts.Log.Info("ONNX Runtime opened", "version", r.Version(), "library", library)
	e.runtime = r
	return r, nil
}

// Load implements [engine.Engine]. It reads the file that the configuration
// names, and refuses a configuration that says other things of the model than
// its file. Of the configuration's parameters it knows those of Triton that make
// sense here; see [sessionOptions].
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	session, call, err := sessionOptions(src.Config.Parameters)
	if err != nil {
		return nil, err
	}
	file := src.Config.Proto.GetDefaultModelFilename()
	if file == "" {
		file = defaultFile
	}
	file = filepath.Join(src.Dir, file)
	s, err := e.load(ctx, file, session)
	if err != nil {
		return nil, err
	}
	m := &model{cfg: src.Config, session: s, call: call, nice: e.opts.Nice}
	if src.Config.Incomplete() {
		err = complete(src.Config, s)
	}
	if err == nil {
		err = m.check()
	}
	if err != nil {
		s.Close()
		return nil, infer.Errorf(infer.Invalid, "%s: %w", file, err)
	}
	return m, nil
}

// load reads a model's file on a thread of low priority, which it also gives to
// the threads that the library starts for the model.
func (e *Engine) load(ctx context.Context, file string, opts onnxruntime.SessionOptions) (s *onnxruntime.Session, err error) {
	if _, err := os.Stat(file); err != nil {
		return nil, infer.Errorf(infer.NotFound, "the model's file cannot be read: %w", err)
	}
	lowered(e.opts.Nice, func() {
		var r *onnxruntime.Runtime
		if r, err = e.open(); err == nil {
			s, err = r.Load(ctx, file, opts)
		}
	})
	if err != nil {
		return nil, coded(fmt.Errorf("%s: %w", file, err))
	}
	return s, nil
}

// sessionOptions reads a model's parameters:
//
//	intra_op_thread_count                  threads that compute one batch; 0 or nothing means one, or the shared pool
//	enable_mem_arena, enable_mem_pattern   "0" switches them off
//	memory.enable_memory_arena_shrinkage   "cpu:0" gives memory back after each batch
//	session.KEY                            any setting of ONNX Runtime whose key begins so
//
// Others are left alone: they may be meant for somebody else.
func sessionOptions(parameters map[string]string) (opts onnxruntime.SessionOptions, call onnxruntime.CallOptions, err error) {
	opts.Config, call.Config = map[string]string{}, map[string]string{}
	for key, value := range parameters {
		switch {
		case key == "intra_op_thread_count":
			opts.Threads, err = strconv.Atoi(value)
			if err != nil || opts.Threads < 0 {
				return opts, call, badParameter(key, value, "a number of threads")
			}
		case key == "enable_mem_arena":
			opts.NoArena, err = isOff(key, value)
		case key == "enable_mem_pattern":
			opts.NoPattern, err = isOff(key, value)
		case key == "memory.enable_memory_arena_shrinkage":
			call.Config[key] = value
		case strings.HasPrefix(key, "session."):
			opts.Config[key] = value
		}
		if err != nil {
			return opts, call, err
		}
	}
	return opts, call, nil
}

func isOff(key, value string) (bool, error) {
	if value != "0" && value != "1" {
		return false, badParameter(key, value, "0 or 1")
	}
	return value == "0", nil
}

func badParameter(key, value, expected string) error {
	return infer.Errorf(infer.Invalid, "parameter %s: found %q, expected %s", key, value, expected)
}

// coded gives an error of the library the code that says what a client should do.
// Others stay as they are.
func coded(err error) error {
	e, ok := errors.AsType[*onnxruntime.Error](err)
	if !ok {
		return err
	}
	code := infer.Internal
	switch e.Code {
	case onnxruntime.InvalidArgument: // an input's shape or content: also from within the model
		code = infer.Invalid
	case onnxruntime.NoSuchFile:
		code = infer.NotFound
	case onnxruntime.InvalidProtobuf, onnxruntime.InvalidGraph, onnxruntime.NoModel:
		code = infer.Invalid
	case onnxruntime.NotImplemented:
		code = infer.Unsupported
	}
	if exhausted(e.Text) {
		return infer.Errorf(infer.Internal, "%w: %w", engine.ErrExhausted, err)
	}
	return infer.Errorf(code, "%w", err)
}

// exhausted reports whether a text of the library says that memory ran out. It has
// no code for that.
func exhausted(text string) bool {
	return strings.Contains(text, "bad_alloc") || strings.Contains(text, "bad allocation") || strings.Contains(text, "Failed to allocate memory")
}

// complete takes what a configuration leaves out from the model itself.
func complete(cfg *modelconfig.Config, s *onnxruntime.Session) error {
	d := modelconfig.Description{Batchable: batches(s.Inputs) && batches(s.Outputs)}
	var err error
	if d.Inputs, err = describe("input", s.Inputs); err != nil {
		return err
	}
	if d.Outputs, err = describe("output", s.Outputs); err != nil {
		return err
	}
	return cfg.Complete(d)
}

// batches reports whether the first dimension may have any size everywhere, so
// that it can be the batch dimension.
func batches(ports []onnxruntime.Port) bool {
	return !slices.ContainsFunc(ports, func(p onnxruntime.Port) bool { return len(p.Dims) == 0 || p.Dims[0] != -1 })
}

func describe(what string, ports []onnxruntime.Port) (tensors []modelconfig.Tensor, err error) {
	for _, p := range ports {
		switch {
		case p.Type == tensor.Invalid:
			return nil, fmt.Errorf("%s %q: found %s, expected a tensor of a type that can be served", what, p.Name, p.Kind)
		case p.AnyShape:
			return nil, fmt.Errorf("%s %q: the model does not say how many dimensions it has, so the configuration must", what, p.Name)
		}
		tensors = append(tensors, modelconfig.Tensor{Name: p.Name, Type: p.Type, Dims: p.Dims})
	}
	return tensors, nil
}
