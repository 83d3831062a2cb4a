// Package onnx runs ONNX models with ONNX Runtime, on CPUs, and on GPUs if the library
// supports them.
//
// A model is loaded once for each device, however many instances it has there, so that its
// weights are in memory once: any number of threads may run a session, and an instance is the right to
// run one batch on it. The thread that calls Run computes the batch by itself, unless the
// configuration or the caller of Load asks for more threads, either for all batches or
// for exclusive ones only. Exclusive batches then have their own session, because the
// number of a session's threads is fixed. On a CPU both sessions share the weights.
//
// Package onnxruntime finds the library and binds it.
package onnx

import (
	"context"
	"errors"
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

// Name is the name of the backend in a model's configuration.
const Name = "onnxruntime"

// Instances is the number of instances of a model whose configuration does not set it, as
// in Triton.
const Instances = 2

// defaultFile is the name of the model's file if the configuration does not set it.
const defaultFile = "model.onnx"

// Options configure an [Engine]. The zero value is valid.
type Options struct {
	// Library is the path of the ONNX Runtime library. If it is "", onnxruntime.Find
	// searches for the library.
	Library string

	// Nice is the niceness of threads that compute, so that the server's own threads go
	// first when all cores are busy with batches. 0 does not change it.
	Nice int

	Log *slog.Logger // nil discards
}

// An Engine implements [engine.Engine]. It opens the library when the first model is
// loaded, so that a server without ONNX models does not need it. Its methods may be called
// concurrently.
type Engine struct {
	opts Options

	mu      sync.Mutex // guards the following
	runtime *onnxruntime.Runtime
}

var (
	_ engine.Engine           = (*Engine)(nil)
	_ engine.Sizer            = (*Engine)(nil)
	_ engine.Threader         = (*Engine)(nil)
	_ engine.LibraryVersioner = (*Engine)(nil)
)

// New returns an engine. The caller must close it, after all its models.
func New(opts Options) *Engine {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{opts: opts}
}

// Close releases the library's environment, if the library was opened.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runtime != nil {
		e.runtime.Close()
		e.runtime = nil
	}
	return nil
}

// open opens the library, if it is not open yet. After a failure the next call tries
// again: the library may have been installed meanwhile.
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
	r, err := onnxruntime.Open(onnxruntime.Options{Library: library, Log: e.opts.Log})
	if err != nil {
		return nil, infer.Errorf(infer.Unavailable, "%w", err)
	}
	e.opts.Log.Info("ONNX Runtime opened", "version", r.Version(), "library", library)
	e.runtime = r
	return r, nil
}

// Load implements [engine.Engine]. It reads the file that the configuration names, and
// returns an error if the configuration contradicts the file. It supports those of
// Triton's parameters that apply here; see [readSettings].
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	set, err := readSettings(src.Config, machine.Cores(machine.Root()))
	if err != nil {
		return nil, err
	}
	set.session.Operators = operatorLibraries(src)
	tunable := e.AnyThreads(src.Config)
	if src.Threads > 1 && tunable {
		set.useThreads(src.Threads)
	}
	m := &model{cfg: src.Config, call: set.call, nice: e.opts.Nice}
	sessions := []onnxruntime.SessionOptions{set.session}
	if src.ExclusiveThreads > max(1, src.Threads) && tunable {
		set.useThreads(src.ExclusiveThreads)
		sessions = append(sessions, set.session)
	}
	if m.devices, err = e.load(ctx, src, sessions); err != nil {
		return nil, err
	}
	s := m.devices[0].shared
	if err := src.Config.Complete(modelconfig.Description{Inputs: portsOf(s.Inputs), Outputs: portsOf(s.Outputs), Batchable: true}); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	e.warnOfGPUOptions(m)
	m.modelInputs, m.modelOutputs = src.Config.ModelInputs(), src.Config.ModelOutputs()
	m.inputs = m.scalars(m.modelInputs, s.Inputs)
	m.outputs = m.scalars(m.modelOutputs, s.Outputs)
	return m, nil
}

// warnOfGPUOptions warns of options of GPUs of a model that runs on none.
func (e *Engine) warnOfGPUOptions(m *model) {
	const field = acceleratorsField + "[0]"
	for _, d := range m.devices {
		if d.gpu != nil {
			return
		}
	}
	if len(m.cfg.Proto.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator()) > 0 {
		e.opts.Log.Warn("options of GPUs have no effect because the model runs on the CPU", "model", m.cfg.Name, "at", m.cfg.Where(field), "field", field)
	}
}

// AnyThreads implements [engine.Threader].
func (*Engine) AnyThreads(cfg *modelconfig.Config) bool {
	_, configured := cfg.Parameters["intra_op_thread_count"]
	return !configured
}

// LibraryVersion implements [engine.LibraryVersioner].
func (e *Engine) LibraryVersion() string {
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
	return File(filepath.Join(src.Dir, file))
}

// File returns the file of a model, given the path that its configuration names: as in Triton,
// that may be a directory with model.onnx and the files of its weights.
func File(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return filepath.Join(path, defaultFile)
	}
	return path
}

const operatorsField = "model_operations.op_library_filename"

// operatorLibraries returns the paths of the libraries with the model's own operators: in
// the version's directory, or in the model's. Others are left to the dynamic linker, as in
// Triton.
func operatorLibraries(src engine.Source) []string {
	var all []string
	for _, name := range src.Config.Proto.GetModelOperations().GetOpLibraryFilename() {
		for _, dir := range []string{src.Dir, filepath.Dir(src.Dir)} {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && !filepath.IsAbs(name) {
				name = path
				break
			}
		}
		all = append(all, name)
	}
	return all
}

// load creates sessions from a model's file for each device, on a thread of low priority:
// one with the first options and, if there are others, one for exclusive batches. It holds
// no lock, so that other models can be loaded meanwhile.
func (e *Engine) load(ctx context.Context, src engine.Source, opts []onnxruntime.SessionOptions) (all []*device, err error) {
	file := fileOf(src)
	if _, err := os.Stat(file); err != nil {
		return nil, missingFile(file, err)
	}
	runWithNice(e.loadNice(opts[len(opts)-1]), func() {
		var r *onnxruntime.Runtime
		if r, err = e.open(); err == nil {
			all, err = e.loadOnDevices(ctx, r, src.Config, file, opts)
		}
	})
	return all, err
}

// loadNice returns the niceness of a thread that loads a model. That is the lowest
// priority, so that running batches go first. If the library starts threads for the model,
// it is the niceness for computing, because those threads inherit it. So it is for loads that begin
// before the library is open: there are no batches yet, and on a busy machine the lowest priority
// gets next to nothing.
func (e *Engine) loadNice(opts onnxruntime.SessionOptions) int {
	const lowest = 19
	e.mu.Lock()
	first := e.runtime == nil
	e.mu.Unlock()
	if first || e.opts.Nice == 0 || opts.Threads > 1 || opts.Parallel > 1 {
		return e.opts.Nice
	}
	return lowest
}

// A loader is an open library. *onnxruntime.Runtime implements it.
type loader interface {
	CUDA() bool
	Library() string
	Load(ctx context.Context, file string, opts onnxruntime.SessionOptions) (*onnxruntime.Session, error)
	Save(ctx context.Context, file, to, weights string, opts onnxruntime.SessionOptions) error
	NewWeights(all []onnxruntime.Weight) (*onnxruntime.Weights, error)
}

// loadOnDevices loads a model on each device that its configuration asks for, or on the CPU
// in place of a GPU that it does not insist on.
func (e *Engine) loadOnDevices(ctx context.Context, r loader, cfg *modelconfig.Config, file string, opts []onnxruntime.SessionOptions) (all []*device, err error) {
	places, err := choosePlacements(cfg, r.CUDA(), r.Library())
	if err != nil {
		return nil, err
	}
	for _, where := range places {
		if join(all, where) {
			continue
		}
		d, err := e.loadOnDevice(ctx, r, cfg, where, file, opts)
		if err != nil && where.gpu != nil && where.field == "" && ctx.Err() == nil {
			// The library may be built for GPUs on a machine that has none.
			e.opts.Log.Warn("model runs on the CPU because the GPU cannot be used", "model", cfg.Name, "gpu", *where.gpu, "error", err)
			if where.gpu = nil; join(all, where) {
				continue
			}
			d, err = e.loadOnDevice(ctx, r, cfg, where, file, opts)
		}
		if err != nil {
			for _, d := range all {
				err = errors.Join(err, d.Close())
			}
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// loadOnDevice loads a model on one device.
func (e *Engine) loadOnDevice(ctx context.Context, r loader, cfg *modelconfig.Config, where placement, file string, opts []onnxruntime.SessionOptions) (*device, error) {
	var unshared error
	if len(opts) > 1 && where.gpu == nil {
		d, err := loadTwo(ctx, r, file, opts[0], opts[1])
		if err == nil {
			d.placement = where
			return d, nil
		}
		unshared = err
	}
	d := &device{placement: where}
	for i, to := range []**session{&d.shared, &d.exclusive}[:len(opts)] {
		s, err := e.loadSession(ctx, r, cfg, where, file, opts[i])
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		*to = s
	}
	if unshared != nil {
		e.opts.Log.Warn("model is in memory twice because its sessions cannot share weights", "model", cfg.Name, "error", unshared)
	}
	return d, nil
}

// loadSession creates a session on one device.
func (e *Engine) loadSession(ctx context.Context, r loader, cfg *modelconfig.Config, where placement, file string, opts onnxruntime.SessionOptions) (*session, error) {
	opts.CUDA = where.gpu
	s, err := r.Load(ctx, file, opts)
	switch {
	case err == nil:
		return &session{Session: s}, nil
	case where.gpu != nil && where.field == "":
		return nil, err // for the log: the CPU will do
	case errors.Is(err, onnxruntime.ErrOperators):
		return nil, cfg.Invalid(operatorsField, "%v; name a file below the model's directory, or an absolute path", err)
	case errors.Is(err, onnxruntime.ErrTensorRT):
		return nil, cfg.Invalid(acceleratorsField, "%v; correct its parameters, or remove the accelerator to run the model with CUDA only", err)
	case errors.Is(err, onnxruntime.ErrCUDA):
		return nil, cfg.Wrong(where.field, "KIND_GPU", "KIND_CPU, because the GPU cannot be used: %v", err)
	}
	return nil, loadError(file, err)
}

// withCode wraps an error of the library in an [infer.Error] whose code says what a client
// should do. It returns other errors unchanged.
func withCode(err error) error {
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

// exhausted reports whether a text of the library says that memory ran out. The library
// has no error code for that.
func exhausted(text string) bool {
	return strings.Contains(text, "bad_alloc") || strings.Contains(text, "bad allocation") || strings.Contains(text, "Failed to allocate memory")
}

// portsOf converts the library's description of a model's inputs or outputs.
func portsOf(from []onnxruntime.Port) []modelconfig.Port {
	var all []modelconfig.Port
	for _, p := range from {
		all = append(all, modelconfig.Port{Name: p.Name, Type: p.Type, Kind: p.Kind, Dims: p.Dims, AnyShape: p.AnyShape, Optional: p.Optional, Symbols: p.Symbols})
	}
	return all
}
