// Package python runs models written in Python: Triton's model.py, functions of an app.py,
// and model files of Python libraries. Each instance is a process of its own, called a
// worker.
//
// A model that crashes, hangs or exhausts its memory limit fails only the batch that it
// was running; the worker is restarted, with the code that was loaded (see snapshot), and
// the server keeps running. Any interpreter that has numpy works, and for handlers of MMS
// and TorchServe any interpreter: the worker's code is embedded in the server and passed to
// the interpreter as a file descriptor, like the tensors' memory and the sockets.
// Everything that a worker sends is copied out of shared memory before it is validated.
//
// The scheduler restarts dead workers; see [engine.Restartable]. How long it waits before a
// restart is decided by backoff.
package python

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/plainjson"
	"github.com/shoal-serving/shoal/internal/trace"
)

// Name is the backend name that selects this engine in a model's configuration.
const Name = "python"

// TorchName is the backend name of TorchScript models in Triton configurations.
const TorchName = "pytorch"

// extensions are the file name extensions that a worker can run.
var extensions = []string{".py", ".joblib", ".pkl", ".ubj", ".json", ".bst", ".pt"}

// A Library is what a worker imports to run a model's file.
type Library struct{ Module, Package string }

// LibraryOf returns the library that runs a file, as shoal_files.py has it. It returns false for
// code, which imports what it likes.
func LibraryOf(file string) (Library, bool) {
	switch filepath.Ext(file) {
	case ".joblib", ".pkl":
		return Library{"joblib", "scikit-learn"}, true
	case ".ubj", ".json", ".bst":
		return Library{"xgboost", "xgboost"}, true
	case ".pt":
		return Library{"torch", "torch"}, true
	}
	return Library{}, false
}

// Options configure an Engine. The zero value is usable.
type Options struct {
	// Cores is the number of cores that the workers of one model share. It limits the threads
	// of the numerical libraries that they use. Zero means one.
	Cores int

	// Nice is the niceness of the workers. It keeps the server responsive while batches occupy
	// all cores.
	Nice int

	// Caller serves the calls that models make to other models. If it is nil, such calls fail.
	Caller engine.ModelCaller

	// Tracer traces the calls of models that pass on the trace of a request. Nil means that they
	// are not traced.
	Tracer *trace.Tracer

	Log *slog.Logger // receives what models print and log; nil discards it
}

// An Engine implements [engine.Engine]. It is safe for concurrent use.
type Engine struct {
	opts    Options
	metrics metricRegistry
	workers atomic.Int64 // processes that run

	mu             sync.Mutex // guards the following
	processStarter *starter
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine. The caller closes it after closing all its models.
func New(opts Options) *Engine {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Cores = max(1, opts.Cores)
	return &Engine{opts: opts}
}

// Close stops the thread that starts processes.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.processStarter != nil {
		e.processStarter.close()
		e.processStarter = nil
	}
	return nil
}

// starter returns the process starter, and creates it on first use, so that a server
// without Python models does not keep a thread for it.
func (e *Engine) starter() *starter {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.processStarter == nil {
		e.processStarter = newStarter(e.opts.Nice)
	}
	return e.processStarter
}

// Load implements [engine.Engine]. It starts a worker that imports the model and, if the
// model can, completes its configuration. The first instance takes that worker over.
// readSettings lists the parameters of the configuration that Load uses.
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	set, err := readSettings(src)
	if err != nil {
		return nil, err
	}
	if len(src.Config.BatchInputs)+len(src.Config.BatchOutputs) > 0 {
		return nil, src.Config.Invalid("batch_input", "batch_input and batch_output have no use for a Python model, which receives each request by itself; remove them")
	}
	dir, err := filepath.Abs(modelDir(src))
	if err != nil {
		return nil, err
	}
	m := &model{
		engine: e, cfg: src.Config, set: set, dir: dir, version: src.Version, bare: src.Bare, file: src.Config.Effective().GetDefaultModelFilename(),
		restartTimeout: src.RestartTimeout, log: e.opts.Log.With("model", src.Config.Name, "version", src.Version),
	}
	switch info, err := os.Stat(filepath.Join(src.Dir, m.file)); {
	case err != nil:
		return nil, infer.Errorf(infer.NotFound, "the model's file cannot be read: %w", err)
	case info.IsDir() || !slices.Contains(extensions, filepath.Ext(m.file)):
		return nil, src.Config.Wrong("default_model_filename", fmt.Sprintf("%q", m.file), "a file that ends in one of %q", extensions)
	default:
		m.info = info
	}
	m.sources = m.takeSnapshot()
	w, completed, err := m.load(ctx, "")
	if err != nil {
		e.metrics.removeModel(m) // the file may have created some before it failed
		return nil, err
	}
	if err := m.adopt(completed, w.flags); err != nil {
		w.stop()
		e.metrics.removeModel(m)
		return nil, err
	}
	m.loaded = w
	return m, nil
}

// A model is one loaded version. Each of its instances is a worker process.
type model struct {
	engine  *Engine
	cfg     *modelconfig.Config
	wire    *modelconfig.Config // cfg with the inputs and outputs that the scheduler adds, in the order of the frames
	set     settings
	dir     string // the model's directory, which contains the version's
	version int64
	bare    bool // the model has no version directory: its file is in dir
	app     bool // the model is a function of an app.py
	file    string
	info    os.FileInfo // of the file, when it was loaded
	sources *snapshot
	log     *slog.Logger

	restartTimeout time.Duration // of a worker; 0 means no limit

	mu        sync.Mutex // guards the following
	loaded    *worker    // the worker that Load started, until an instance takes it over
	instances int        // how many instances were ever opened
}

var _ engine.RetryPolicy = (*model)(nil)

// adopt merges the completed configuration that the worker returned into the model's, and
// interprets the flags of LOADED. For a function, the code sets the number of instances
// and whether a failed batch may be split, unless the configuration file does.
func (m *model) adopt(completed []byte, flags uint16) error {
	cfg, err := modelconfig.ParseJSON(completed)
	if err != nil {
		return infer.Errorf(infer.Invalid, "auto_complete_config: %w", err)
	}
	if err := m.cfg.Adopt(cfg); err != nil {
		return err
	}
	m.app = flags&rowsJoined != 0 && filepath.Ext(m.file) == ".py"
	if flags&rowsJoined != 0 {
		m.cfg.Instances = cmp.Or(m.cfg.Instances, cfg.Instances)
		if m.cfg.Parameters[retryApartKey] == "" {
			m.set.retryApart = flags&loadedRetryApart != 0
		}
	}
	if m.cfg.Incomplete() {
		return m.cfg.Wrong("input", "no inputs or no outputs", "both, or an auto_complete_config in %s that adds them", m.file)
	}
	m.wire = m.cfg
	if m.cfg.Sequence != nil {
		m.wire = &modelconfig.Config{Name: m.cfg.Name, Inputs: m.cfg.ModelInputs(), Outputs: m.cfg.ModelOutputs(), Sequence: m.cfg.Sequence}
	}
	return nil
}

// Retries implements [engine.RetryPolicy].
func (m *model) Retries() (apart, died bool) { return m.set.retryApart, m.set.retryDied }

// Rehearses implements [engine.RetryPolicy]. A function may be called again with a batch that
// failed, but not with generated inputs, for which its author never wrote it.
func (m *model) Rehearses() bool { return m.set.retryApart && !m.app }

// Instance implements [engine.Model].
func (m *model) Instance(ctx context.Context) (engine.Instance, error) {
	m.mu.Lock()
	w := m.loaded
	m.loaded = nil
	i := &instance{model: m, placement: m.placementOf(m.instances)}
	m.instances++
	m.mu.Unlock()
	var err error
	if w == nil {
		if w, _, err = m.load(ctx, i.name); err != nil {
			return nil, err
		}
	}
	if err := i.initialize(ctx, w); err != nil {
		w.stop()
		return nil, err
	}
	i.worker = w
	if w.flags&rowsJoined != 0 {
		return joinedInstance{i, i, i}, nil
	}
	return i, nil
}

// A joinedInstance is an instance whose model receives the rows of a batch joined into one
// request. It embeds interfaces in order to hide RunEach.
type joinedInstance struct {
	engine.Restartable
	engine.Aborter
	engine.DelegateRunner
}

// A placement is what Triton passes to an instance about itself. Whether to use the GPU is up
// to the model.
type placement struct {
	name, kind string // in Triton's format
	device     int    // GPU number
}

// placementOf returns the placement of the nth instance, counted from 0.
func (m *model) placementOf(n int) placement {
	groups := slices.DeleteFunc(m.cfg.Effective().GetInstanceGroup(), (*configpb.ModelInstanceGroup).GetPassive)
	for k, g := range groups {
		count, gpus := int(g.GetCount()), g.GetGpus()
		if all := count * max(1, len(gpus)); n >= all && k < len(groups)-1 {
			n -= all
			continue
		}
		p := placement{name: g.GetName() + "_" + strconv.Itoa(n), kind: "CPU"}
		if g.GetKind() == configpb.ModelInstanceGroup_KIND_GPU {
			p.kind = "GPU"
		}
		if len(gpus) > 0 {
			p.device = int(gpus[min(n/count, len(gpus)-1)])
		}
		return p
	}
	return placement{name: m.cfg.Name, kind: "CPU"}
}

// Close implements [engine.Model].
func (m *model) Close() error {
	if m.loaded != nil {
		m.loaded.stop()
		m.loaded = nil
	}
	m.engine.metrics.removeModel(m)
	return nil
}

// versionDir returns the name of the version's directory in dir, or "" if it has none.
func (m *model) versionDir() string {
	if m.bare {
		return ""
	}
	return strconv.FormatInt(m.version, 10)
}

// load starts a worker, has it import the model, and returns the configuration as
// completed by the model.
func (m *model) load(ctx context.Context, name string) (*worker, []byte, error) {
	w, err := m.start(name)
	if err != nil {
		return nil, nil, err
	}
	document, err := json.Marshal(struct {
		Name      string          `json:"name"`
		Directory string          `json:"directory"`
		Version   string          `json:"version"`
		File      string          `json:"file"`
		Config    json.RawMessage `json:"config"`

		Sources map[string][]byte `json:"sources"`
		Handler bool              `json:"handler"` // of MMS or TorchServe, which runs without numpy
	}{m.cfg.Name, m.dir, m.versionDir(), m.file, plainjson.Append(nil, m.cfg.Effective()), m.sources.files, handlerDir(m.cfg) != ""})
	var completed []byte
	if err == nil {
		completed, err = w.request(ctx, kindLoad, document)
	}
	if err != nil {
		w.stop()
		return nil, nil, loadError(err)
	}
	return w, completed, nil
}

// loadError returns err as the error of a load: unchanged if it has a code already or is a
// context's error, otherwise as an invalid argument.
func loadError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*infer.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return infer.Errorf(infer.Invalid, "%w", err)
}
