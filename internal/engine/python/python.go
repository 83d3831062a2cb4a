// Package python runs models that are written in Python, such as Triton's model.py or
// functions of an app.py, and files of Python's libraries, each instance in a process
// of its own.
//
// A model that crashes, hangs or grows costs the batch that it ran, and comes back;
// the server goes on. Any interpreter will do that has numpy: the worker's code comes
// with the server, and is passed to the interpreter by descriptor, as are the
// tensors' memory and the socket. What a worker answers is copied first and believed
// never.
//
// Who starts a worker again that died is the scheduler; see [engine.Mortal]. How
// long it is left alone is for comeback to say.
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

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/plainjson"
)

// Name is the backend that a model's configuration asks for.
const Name = "python"

// TorchName is the backend that a configuration for Triton asks for whose model is
// TorchScript.
const TorchName = "pytorch"

// endings of the files that a worker can run.
var endings = []string{".py", ".joblib", ".pkl", ".ubj", ".json", ".bst", ".pt"}

// Options say how workers run. The zero Options work.
type Options struct {
	// Cores are shared by the workers of a model: the libraries that they compute
	// with are told to use no more threads than that. Zero means one.
	Cores int

	// Nice is the niceness of workers: while all cores are busy with batches, the
	// server itself shall not wait for them.
	Nice int

	// Caller answers what models ask of others. Nil means that nobody does.
	Caller engine.Caller

	Log *slog.Logger // gets what models print and log; nil means nobody
}

// An Engine implements [engine.Engine].
type Engine struct {
	opts    Options
	metrics register

	mu      sync.Mutex // guards the following
	started *starter
}

var _ engine.Engine = (*Engine)(nil)

// New makes an engine. The caller closes it after all its models.
func New(opts Options) *Engine {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Cores = max(1, opts.Cores)
	return &Engine{opts: opts}
}

// Close gives back what the engine holds.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started != nil {
		e.started.close()
		e.started = nil
	}
	return nil
}

// open returns what starts processes. A server without Python models has no thread
// for it.
func (e *Engine) open() *starter {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started == nil {
		e.started = newStarter(e.opts.Nice)
	}
	return e.started
}

// Load implements [engine.Engine]. It starts a worker, which imports the model and
// completes its configuration if the model can; the worker is that of the first
// instance. Of the configuration's parameters it knows those of readSettings.
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	set, err := readSettings(src)
	if err != nil {
		return nil, err
	}
	if len(src.Config.BatchInputs)+len(src.Config.BatchOutputs) > 0 {
		return nil, src.Config.Wrong("batch_input", "batch_input or batch_output", "none, because a Python model is given each request by itself")
	}
	dir, err := filepath.Abs(home(src))
	if err != nil {
		return nil, err
	}
	m := &model{
		engine: e, cfg: src.Config, set: set, dir: dir, version: src.Version, bare: src.Bare, file: src.Config.Effective().GetDefaultModelFilename(),
		log: e.opts.Log.With("model", src.Config.Name, "version", src.Version),
	}
	switch info, err := os.Stat(filepath.Join(src.Dir, m.file)); {
	case err != nil:
		return nil, infer.Errorf(infer.NotFound, "the model's file cannot be read: %w", err)
	case info.IsDir() || !slices.Contains(endings, filepath.Ext(m.file)):
		return nil, src.Config.Wrong("default_model_filename", fmt.Sprintf("%q", m.file), "a file that ends in one of %q", endings)
	}
	w, told, err := m.load(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := m.adopt(told, w.flags); err != nil {
		w.end()
		return nil, err
	}
	m.spare = w
	return m, nil
}

// A model is a version whose instances are workers.
type model struct {
	engine  *Engine
	cfg     *modelconfig.Config
	set     settings
	dir     string // the model's, above that of its version
	version int64
	bare    bool // there is no version's directory: the file is in dir
	app     bool // it is a function that its author wrote
	file    string
	log     *slog.Logger

	mu        sync.Mutex // guards the following
	spare     *worker    // that loaded the model, until an instance takes it
	instances int        // how many there ever were
}

var _ engine.Careful = (*model)(nil)

// adopt takes in the configuration that the model completed, and what it is. A
// function's author has said how many instances there are, and whether parts of a
// batch may be run again, unless the file says otherwise.
func (m *model) adopt(told []byte, flags uint16) error {
	cfg, err := modelconfig.ParseJSON(told)
	if err != nil {
		return infer.Errorf(infer.Invalid, "auto_complete_config: %w", err)
	}
	if err := m.cfg.Adopt(cfg); err != nil {
		return err
	}
	m.app = flags&rowsJoined != 0 && filepath.Ext(m.file) == ".py"
	if flags&rowsJoined != 0 {
		m.cfg.Instances = cmp.Or(m.cfg.Instances, cfg.Instances)
		if m.cfg.Parameters[apartKey] == "" {
			m.set.apart = flags&retryApart != 0
		}
	}
	if m.cfg.Incomplete() {
		return m.cfg.Wrong("input", "no inputs or no outputs", "both, or an auto_complete_config in %s that adds them", m.file)
	}
	return nil
}

// Retries implements [engine.Careful].
func (m *model) Retries() (apart, died bool) { return m.set.apart, m.set.died }

// Rehearses implements [engine.Careful]. A function that fails may be called again,
// but what its author did not expect at all may do anything.
func (m *model) Rehearses() bool { return m.set.apart && !m.app }

// Instance implements [engine.Model].
func (m *model) Instance(ctx context.Context) (engine.Instance, error) {
	m.mu.Lock()
	w := m.spare
	m.spare = nil
	i := &instance{model: m, place: m.placeOf(m.instances)}
	m.instances++
	m.mu.Unlock()
	var err error
	if w == nil {
		if w, _, err = m.load(ctx, i.name); err != nil {
			return nil, err
		}
	}
	if err := i.initialize(ctx, w); err != nil {
		w.end()
		return nil, err
	}
	i.worker = w
	if w.flags&rowsJoined != 0 {
		return joined{i}, nil
	}
	return i, nil
}

// A joined is an instance whose model takes the rows of a batch one behind the other:
// an instance that hides its RunEach.
type joined struct{ engine.Mortal }

// A place is what an instance is told of where it is. The model itself uses a GPU or
// not.
type place struct {
	name, kind string // as Triton has them
	device     int    // the number of the GPU
}

// placeOf returns the place of the instance with a number, from 0 on.
func (m *model) placeOf(n int) place {
	groups := m.cfg.Effective().GetInstanceGroup()
	for k, g := range groups {
		count, gpus := int(g.GetCount()), g.GetGpus()
		if all := count * max(1, len(gpus)); n >= all && k < len(groups)-1 {
			n -= all
			continue
		}
		p := place{name: g.GetName() + "_" + strconv.Itoa(n), kind: "CPU"}
		if g.GetKind() == configpb.ModelInstanceGroup_KIND_GPU {
			p.kind = "GPU"
		}
		if len(gpus) > 0 {
			p.device = int(gpus[min(n/count, len(gpus)-1)])
		}
		return p
	}
	return place{name: m.cfg.Name, kind: "CPU"}
}

// Close implements [engine.Model].
func (m *model) Close() error {
	if m.spare != nil {
		m.spare.end()
		m.spare = nil
	}
	m.engine.metrics.forget(m)
	return nil
}

// load starts a worker that has imported the model, and returns the configuration
// as the model completes it.
func (m *model) load(ctx context.Context, name string) (*worker, []byte, error) {
	w, err := m.start(name)
	if err != nil {
		return nil, nil, err
	}
	version := "" // there is none
	if !m.bare {
		version = strconv.FormatInt(m.version, 10)
	}
	document, err := json.Marshal(struct {
		Name      string          `json:"name"`
		Directory string          `json:"directory"`
		Version   string          `json:"version"`
		File      string          `json:"file"`
		Config    json.RawMessage `json:"config"`
	}{m.cfg.Name, m.dir, version, m.file, plainjson.Append(nil, m.cfg.Effective())})
	var told []byte
	if err == nil {
		told, err = w.ask(ctx, kindLoad, document)
	}
	if err != nil {
		w.end()
		return nil, nil, loadError(err)
	}
	return w, told, nil
}

// loadError is the error of a model that cannot be loaded: its own, unless it has a
// code of its own or ctx ended.
func loadError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*infer.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return infer.Errorf(infer.Invalid, "%w", err)
}
