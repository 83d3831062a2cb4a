package mms

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A Registration is what a client asks for who registers a model. Its zeros mean what
// MMS means by nothing, except that without MaxBatchDelay it is found out how long
// requests of a batch are best held.
type Registration struct {
	URL             string // an archive or a directory of the store, or an address
	Name            string // "" means that of the archive
	Handler         string // "" means that of the archive
	Runtime         string
	BatchSize       int  // 0 means 1
	MaxBatchDelay   *int // milliseconds
	Workers         *int // nil means as many as the settings say
	Asynchronous    bool
	ResponseTimeout int // seconds; 0 means that of the settings
	StartupTimeout  int // as above
	RetryApart      bool

	atStart bool
}

// What a registration may ask for at most.
const (
	maxBatch   = 4096
	maxWorkers = 1024
)

func (r *Registration) check() error {
	switch {
	case r.URL == "":
		return badRequest("Parameter url is required.")
	case r.BatchSize < 0 || r.BatchSize > maxBatch:
		return badRequest("batch_size: found %d, expected a number from 1 to %d", r.BatchSize, maxBatch)
	case r.MaxBatchDelay != nil && *r.MaxBatchDelay < 0:
		return badRequest("max_batch_delay: found %d, expected milliseconds", *r.MaxBatchDelay)
	case r.Workers != nil && (*r.Workers < 0 || *r.Workers > maxWorkers):
		return badRequest("initial_workers: found %d, expected a number up to %d", *r.Workers, maxWorkers)
	case r.ResponseTimeout < 0:
		return badRequest("response_timeout: found %d, expected seconds", r.ResponseTimeout)
	case r.StartupTimeout < 0:
		return badRequest("startup_timeout: found %d, expected seconds", r.StartupTimeout)
	}
	switch r.Runtime {
	case "", "python", "python2", "python3":
		return nil
	}
	return badRequest("Invalid RuntimeType value: %s", r.Runtime)
}

// A Registered is what became of a registration.
type Registered struct {
	Version *Version
	Workers int  // that were asked for
	Pending bool // they are being started, and nobody waits for them
}

// Register registers a model, and starts its workers. If they cannot be started, the
// model is taken away again.
func (s *Server) Register(ctx context.Context, reg Registration) (*Registered, error) {
	if err := reg.check(); err != nil {
		return nil, err
	}
	a, done, err := s.store.open(reg.URL)
	if err != nil {
		return nil, err
	}
	v, err := s.newVersion(a, reg)
	if err != nil {
		return nil, errors.Join(err, done())
	}
	v.done = done
	if err := s.add(v); err != nil {
		return nil, errors.Join(err, v.close())
	}
	workers := s.initial(reg)
	s.opts.Log.Info("model registered", "model", v.Name, "version", v.Version, "batch_size", v.BatchSize, "workers", workers)
	outcome := &Registered{v, workers, reg.Asynchronous && workers > 0}
	if workers == 0 {
		return outcome, nil
	}
	start := func(ctx context.Context) error {
		err := v.scale(ctx, workers, workers)
		if err != nil {
			s.opts.Log.Error("workers not started", "model", v.Name, "version", v.Version, "error", err)
			return errors.Join(failedToStart(v, err), s.takeBack(v))
		}
		return nil
	}
	if reg.Asynchronous {
		s.beside(func(ctx context.Context) { _ = start(ctx) }) // it is in the log
		return outcome, nil
	}
	return outcome, start(ctx)
}

// initial returns how many workers a registration asks for.
func (s *Server) initial(reg Registration) int {
	if reg.Workers != nil {
		return *reg.Workers
	}
	return s.opts.Settings.Workers
}

func failedToStart(v *Version, err error) error {
	return internal("Failed to start workers for model %s version: %s: %v", v.Name, v.Version, err)
}

// takeBack unregisters a version whose workers could not be started.
func (s *Server) takeBack(v *Version) error {
	s.mu.Lock()
	if m := s.models[v.Name]; m != nil && m.all[v.Version] == v {
		delete(m.all, v.Version)
		if len(m.all) == 0 {
			delete(s.models, v.Name)
		} else if m.usual == v.Version {
			for other := range m.all {
				m.usual = other
			}
		}
	}
	s.mu.Unlock()
	return v.close()
}

// add lets clients see a version.
func (s *Server) add(v *Version) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.models[v.Name]
	switch {
	case s.closed:
		return unavailable("the server is shutting down")
	case m == nil:
		s.models[v.Name] = &versions{all: map[string]*Version{v.Version: v}, usual: v.Version}
		return nil
	case s.opts.Dialect == MultiModelServer:
		return fail(http.StatusConflict, "ConflictStatusException", "Model %s is already registered.", v.Name)
	case m.all[v.Version] != nil:
		return fail(http.StatusConflict, "ConflictStatusException", "Model version %s is already registered for model %s", v.Version, v.Name)
	}
	m.all[v.Version] = v
	return nil
}

// newVersion makes of an archive what can be scaled.
func (s *Server) newVersion(a *archive, reg Registration) (*Version, error) {
	v := &Version{
		server: s, Name: cmp.Or(reg.Name, a.manifest.Model.Name), Version: cmp.Or(a.manifest.Model.Version, "1.0"), Written: a.manifest.Model.Version, URL: reg.URL,
		Runtime: cmp.Or(reg.Runtime, a.manifest.Runtime, "python"), Engine: a.manifest.Engine.Name,
		BatchSize: max(1, reg.BatchSize), MaxBatchDelay: defaultDelay, AtStart: reg.atStart,
		ResponseTimeout: s.opts.Settings.ResponseTimeout,
		StartupTimeout:  cmp.Or(time.Duration(reg.StartupTimeout)*time.Second, s.opts.Settings.StartupTimeout, 2*time.Minute),
	}
	if reg.ResponseTimeout > 0 {
		v.ResponseTimeout = time.Duration(reg.ResponseTimeout) * time.Second
	}
	if reg.MaxBatchDelay != nil {
		v.MaxBatchDelay = time.Duration(*reg.MaxBatchDelay) * time.Millisecond
	}
	handler := cmp.Or(reg.Handler, a.manifest.Model.Handler, s.opts.Settings.Handler)
	switch {
	case v.Name == "":
		return nil, invalidModel("Model name is not defined: found none in %s, expected one there, or the parameter model_name", manifestFile)
	case !modelconfig.ValidName(v.Name):
		return nil, badRequest("model_name: found %q, expected letters, digits, dots, dashes and underscores", v.Name)
	case handler == "":
		return nil, invalidModel("Model handler is not defined: found none in %s, expected one there, or the parameter handler", manifestFile)
	}
	cfg, err := s.config(v, a.dir, handler, reg.RetryApart)
	if err != nil {
		return nil, err
	}
	dir, err := s.modelDir()
	if err != nil {
		return nil, err
	}
	v.source = engine.Source{Config: cfg, Version: 1, Dir: dir}
	v.stats = stats.New(v.BatchSize)
	v.vacant = true
	v.sched = sched.New([]engine.Instance{nobody{}}, sched.Options{
		Batching: s.batching(v, reg), Pacer: s.opts.Pacer, Bisect: reg.RetryApart, Stats: v.stats,
		Log: s.opts.Log.With("model", v.Name, "version", v.Version),
	})
	return v, nil
}

// defaultDelay is what clients are told of a model whose delay is found out: it is
// what MMS would have waited.
const defaultDelay = 100 * time.Millisecond

func (s *Server) batching(v *Version, reg Registration) batching.Config {
	b := batching.Config{
		MaxRows: v.BatchSize, Levels: []batching.Level{{Shares: true}}, DefaultLevel: 1,
		Shared: batching.Bound{Requests: max(1, s.opts.Settings.Queue)},
	}
	switch {
	case v.BatchSize == 1:
	case reg.MaxBatchDelay == nil:
		b.Policy = automatic.New(automatic.Options{MaxRows: v.BatchSize, Instances: max(1, s.initial(reg))})
	default:
		b.Policy = &batching.Collect{Size: v.BatchSize, MaxDelay: v.MaxBatchDelay}
	}
	return b
}

// config is that of a model whose requests and answers are bytes.
func (s *Server) config(v *Version, dir, handler string, apart bool) (*modelconfig.Config, error) {
	type value struct {
		Text string `json:"string_value"`
	}
	bytesOf := func(name string) []map[string]any {
		return []map[string]any{{"name": name, "data_type": "TYPE_UINT8", "dims": []int{-1}}}
	}
	parameters := map[string]value{
		"model_dir": {dir}, "handler": {handler}, "server_name": {"MMS"}, "server_version": {s.opts.Version},
		"retry_apart": {strconv.FormatBool(apart)}, "decode_input_request": {strconv.FormatBool(s.opts.Settings.Decode)},
		"execute_timeout_seconds": {strconv.FormatFloat(v.ResponseTimeout.Seconds(), 'f', -1, 64)},
	}
	if s.opts.Settings.Python != "" {
		parameters["python"] = value{s.opts.Settings.Python}
	}
	text, err := json.Marshal(map[string]any{
		"backend": python.Name, "max_batch_size": v.BatchSize, "parameters": parameters,
		"input": bytesOf(requestTensor), "output": bytesOf(responseTensor),
	})
	if err != nil {
		return nil, err
	}
	cfg, err := modelconfig.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	cfg.Name, cfg.Instances = v.Name, 1
	return cfg, nil
}

const (
	requestTensor  = "request"
	responseTensor = "response"
)

// modelDir makes the directory of a model whose code is the handler's.
func (s *Server) modelDir() (string, error) {
	dir := filepath.Join(s.store.private, fmt.Sprintf("model-%d", s.dirs.Add(1)), "1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "model.py"), []byte("from shoal_handler import TritonPythonModel\n"), 0o600)
}
