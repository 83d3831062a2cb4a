// Package onnx runs ONNX models with ONNX Runtime, on CPUs, and on a GPU where the
// library can.
//
// A model is loaded once, however many instances it has: the library lets any
// number of threads run a session, so an instance is the right to run one batch
// on it, and weights are in memory once. A batch is computed by the thread that
// calls for it, unless the configuration asks for more, or whoever loads the model
// does: for all batches, or only for those that have the engine to themselves. The
// latter run in a session of their own, because a session's threads are as many as
// they are.
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
	"strings"
	"sync"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
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

var (
	_ engine.Engine   = (*Engine)(nil)
	_ engine.Sizer    = (*Engine)(nil)
	_ engine.Threader = (*Engine)(nil)
	_ engine.Releaser = (*Engine)(nil)
)

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
// sense here; see [readSettings].
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	set, err := readSettings(src.Config, machine.Cores(machine.Root()))
	if err != nil {
		return nil, err
	}
	left := e.AnyThreads(src.Config)
	if src.Threads > 1 && left {
		set.useThreads(src.Threads)
	}
	s, err := e.load(ctx, src, set.session)
	if err != nil {
		return nil, err
	}
	m := &model{cfg: src.Config, shared: &session{Session: s}, call: set.call, nice: e.opts.Nice}
	if err := src.Config.Complete(modelconfig.Description{Inputs: ports(s.Inputs), Outputs: ports(s.Outputs), Batchable: true}); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.inputs = m.scalars(src.Config.Inputs, s.Inputs)
	m.outputs = m.scalars(src.Config.Outputs, s.Outputs)
	if src.ExclusiveThreads > max(1, src.Threads) && left {
		set.useThreads(src.ExclusiveThreads)
		if s, err = e.load(ctx, src, set.session); err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.exclusive = &session{Session: s}
	}
	return m, nil
}

// AnyThreads implements [engine.Threader].
func (e *Engine) AnyThreads(cfg *modelconfig.Config) bool {
	_, told := cfg.Parameters["intra_op_thread_count"]
	return !told && e.opts.Threads == 0
}

// Release implements [engine.Releaser].
func (e *Engine) Release() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runtime == nil {
		return ""
	}
	return e.runtime.Version()
}

// fileOf returns the path of a model's file.
func fileOf(src engine.Source) string {
	file := src.Config.Proto.GetDefaultModelFilename()
	if file == "" {
		file = defaultFile
	}
	return filepath.Join(src.Dir, file)
}

// missing says that a model's file is not there.
func missing(err error) error {
	return infer.Errorf(infer.NotFound, "the model's file cannot be read: %w", err)
}

// load reads a model's file on a thread of low priority. No lock is held meanwhile:
// other models go on.
func (e *Engine) load(ctx context.Context, src engine.Source, opts onnxruntime.SessionOptions) (s *onnxruntime.Session, err error) {
	file := fileOf(src)
	if _, err := os.Stat(file); err != nil {
		return nil, missing(err)
	}
	lowered(e.loadNice(opts), func() {
		var r *onnxruntime.Runtime
		if r, err = e.open(); err == nil {
			s, err = e.place(ctx, r, src.Config, file, opts)
		}
	})
	return s, err
}

// loadNice returns the niceness of a thread that loads a model. It lets those go
// first that compute, unless the library starts threads for the model: they compute
// later, and are as low as the one that starts them.
func (e *Engine) loadNice(opts onnxruntime.SessionOptions) int {
	const lowest = 19
	if e.opts.Nice == 0 || e.opts.Threads > 0 || opts.Threads > 1 || opts.Parallel > 1 {
		return e.opts.Nice
	}
	return lowest
}

// A loader is the opened library.
type loader interface {
	CUDA() bool
	Library() string
	Load(ctx context.Context, file string, opts onnxruntime.SessionOptions) (*onnxruntime.Session, error)
}

// place loads a model where its configuration says.
func (e *Engine) place(ctx context.Context, r loader, cfg *modelconfig.Config, file string, opts onnxruntime.SessionOptions) (*onnxruntime.Session, error) {
	where, err := placement(cfg, r.CUDA(), r.Library())
	if err != nil {
		return nil, err
	}
	opts.CUDA = where.gpu
	s, err := r.Load(ctx, file, opts)
	switch {
	case err == nil:
		return s, nil
	case where.gpu != nil && where.field == "" && ctx.Err() == nil:
		// The library may be built for GPUs on a machine that has none.
		e.opts.Log.Warn("the model is computed by the CPU, because a GPU cannot be used", "model", cfg.Name, "gpu", *where.gpu, "error", err)
		opts.CUDA = nil
		s, err = r.Load(ctx, file, opts)
	case errors.Is(err, onnxruntime.ErrCUDA):
		return nil, cfg.Wrong(where.field, "KIND_GPU", "KIND_CPU, because the GPU cannot be used: %v", err)
	}
	if err != nil {
		return nil, coded(fmt.Errorf("%s: %w", file, err))
	}
	return s, nil
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

// ports returns what the library tells of a model's inputs or outputs.
func ports(from []onnxruntime.Port) []modelconfig.Port {
	var all []modelconfig.Port
	for _, p := range from {
		all = append(all, modelconfig.Port{Name: p.Name, Type: p.Type, Kind: p.Kind, Dims: p.Dims, AnyShape: p.AnyShape})
	}
	return all
}
