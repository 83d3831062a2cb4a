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
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/servable"
)

// A Registration is a client's request to register a model. What it omits is taken from the
// archive's model-config.yaml, then from the model's entry in config.properties, then from
// the defaults of MMS, except that without MaxBatchDelay the automatic policy decides how
// long to hold a batch.
type Registration struct {
	URL             string // an archive or a directory of the store, or an address
	Name            string // "" means that of the archive
	Handler         string // "" means that of the archive
	Runtime         string
	BatchSize       int  // 0 means that it is omitted
	MaxBatchDelay   *int // milliseconds; nil means that it is omitted
	Workers         *int // as above
	Asynchronous    bool
	ResponseTimeout int // seconds; 0 means that it is omitted
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
		return badRequest("batch_size: found %d, expected 1 to %d", r.BatchSize, maxBatch)
	case r.MaxBatchDelay != nil && (*r.MaxBatchDelay < 0 || *r.MaxBatchDelay > maxSeconds):
		return badRequest("max_batch_delay: found %d, expected 0 to %d milliseconds", *r.MaxBatchDelay, maxSeconds)
	case r.Workers != nil && (*r.Workers < 0 || *r.Workers > maxWorkers):
		return badRequest("initial_workers: found %d, expected 0 to %d", *r.Workers, maxWorkers)
	case r.ResponseTimeout < 0 || r.ResponseTimeout > maxSeconds:
		return badRequest("response_timeout: found %d, expected 0 to %d seconds", r.ResponseTimeout, maxSeconds)
	case r.StartupTimeout < 0 || r.StartupTimeout > maxSeconds:
		return badRequest("startup_timeout: found %d, expected 0 to %d seconds", r.StartupTimeout, maxSeconds)
	}
	switch r.Runtime {
	case "", "python", "python2", "python3":
		return nil
	}
	return badRequest("Invalid RuntimeType value: %s", r.Runtime)
}

// A Registered holds the parameters of a registration that clients can query.
type Registered struct {
	Written         string // the version as the archive says; "" if it does not
	URL             string // as it was registered, without credentials
	Runtime, Engine string // as the archive says
	MaxBatchDelay   time.Duration
	ResponseTimeout time.Duration // after which a worker that has not answered is ended
	StartupTimeout  time.Duration // after which one is that has not started
	ClientTimeout   time.Duration // after which a request is not answered any more; 0 means no limit
	Queue           int           // requests that may wait
	AtStart         bool
	Venv            bool // its requirements are installed in an environment of its own

	workers scale // that are started first
}

// About returns what is known of a registered version; nil if it was not registered.
func About(v *servable.Version) *Registered {
	about, _ := v.Source.Data.(*Registered)
	return about
}

// An Outcome is what became of a registration.
type Outcome struct {
	Version *servable.Version
	Workers int  // that were asked for
	Pending bool // they are started asynchronously
}

// Register registers a model, and starts its workers. If they cannot be started, the
// model is taken away again. They go on starting if the client leaves.
func (s *Store) Register(ctx context.Context, reg Registration) (o *Outcome, err error) {
	err = s.change(ctx, "register", reg.Name, shown(reg.URL), func() (err error) {
		o, err = s.register(ctx, reg)
		return err
	})
	return o, err
}

func (s *Store) register(ctx context.Context, reg Registration) (*Outcome, error) {
	if err := reg.check(); err != nil {
		return nil, err
	}
	v, err := s.add(ctx, reg)
	if err != nil {
		return nil, err
	}
	workers := About(v).workers
	s.opts.Log.Info("model registered", "model", v.Config.Name, "version", v.Name(), "batch_size", v.Config.MaxBatchSize, "workers", workers.Min)
	outcome := &Outcome{v, workers.Min, reg.Asynchronous && workers.Min > 0}
	if workers.Min == 0 {
		return outcome, nil
	}
	start := func(ctx context.Context) error {
		err := v.ScaleTo(ctx, workers.Min, workers.Max)
		if err != nil {
			s.opts.Log.Error("workers not started", "model", v.Config.Name, "version", v.Name(), "error", err)
			return errors.Join(failedToStart(v, err), s.remove(v))
		}
		return nil
	}
	if reg.Asynchronous {
		return outcome, s.background(func(ctx context.Context) { _ = start(ctx) }) // it is in the log
	}
	return outcome, s.finish(ctx, fmt.Sprintf("the workers of model %s were starting", v.Config.Name), start)
}

func failedToStart(v *servable.Version, err error) error {
	return internal("Failed to start workers for model %s version: %s: %v", v.Config.Name, v.Name(), err)
}

// ScaleTo scales a version of a model to the given minimum and maximum number of workers, and
// returns it. Version "" means the default one. If it is not synchronous, it returns before
// the workers have started. The scaling goes on if the client leaves.
func (s *Store) ScaleTo(ctx context.Context, name, version string, least, most int, synchronous bool) (v *servable.Version, err error) {
	detail := fmt.Sprintf("%d to %d workers", least, most)
	if version != "" {
		detail = "version " + version + ": " + detail
	}
	err = s.change(ctx, "scale", name, detail, func() (err error) {
		if v, err = s.Find(name, version); err != nil {
			return err
		}
		return s.scaleTo(ctx, v, least, most, synchronous)
	})
	return v, err
}

func (s *Store) scaleTo(ctx context.Context, v *servable.Version, least, most int, synchronous bool) error {
	if least < 0 || most < least || most > maxWorkers {
		return badRequest("min_worker, max_worker: found %d and %d, expected 0 <= min_worker <= max_worker <= %d", least, most, maxWorkers)
	}
	scale := func(ctx context.Context) error {
		err := v.ScaleTo(ctx, least, most)
		switch {
		case errors.Is(err, servable.ErrUnloading):
			return notFound("Model not found: %s", v.Config.Name)
		case err != nil:
			s.opts.Log.Error("workers not scaled", "model", v.Config.Name, "version", v.Name(), "error", err)
			return failedToStart(v, err)
		}
		return nil
	}
	if !synchronous {
		return s.background(func(ctx context.Context) { _ = scale(ctx) }) // it is in the log
	}
	return s.finish(ctx, fmt.Sprintf("model %s was being scaled", v.Config.Name), scale)
}

// add registers an archive with the server, without workers.
func (s *Store) add(ctx context.Context, reg Registration) (*servable.Version, error) {
	a, done, err := s.files.open(ctx, reg.URL)
	if err != nil {
		return nil, err
	}
	src, err := s.source(ctx, a, reg)
	if err != nil {
		return nil, errors.Join(err, done(), os.RemoveAll(src.ModelDir))
	}
	remove := func() {
		if err := errors.Join(done(), os.RemoveAll(src.ModelDir)); err != nil {
			s.opts.Log.Warn("files of a model not deleted", "model", src.Model, "error", err)
		}
	}
	kept := false
	src.KeepFiles = func() func() { kept = true; return remove }
	first := false
	err = s.server.Load(src.Model, s.owner(), func(_ context.Context, have []*servable.Version) ([]servable.Source, error) {
		if err := s.taken(src, have); err != nil {
			return nil, err
		}
		first = len(have) == 0
		src.Number = 1
		for _, v := range have {
			src.Number = max(src.Number, v.Number()+1)
		}
		src.Dir = filepath.Join(src.ModelDir, strconv.FormatInt(src.Number, 10))
		return append(sources(have), src), writeModel(src.Dir)
	})
	if !kept {
		remove()
	}
	switch {
	case err != nil && s.Foreign(src.Model):
		return nil, s.conflict(src.Model)
	case errors.Is(err, servable.ErrUnloading):
		return nil, unavailable("the server is shutting down")
	case err != nil:
		return nil, err
	case first:
		s.server.SetDefault(src.Model, src.Number)
	}
	for _, v := range s.server.Versions(src.Model) {
		if v.Number() == src.Number {
			return v, nil
		}
	}
	return s.Find(src.Model, src.Label) // which says that it is gone
}

// taken returns an error if what is registered leaves no room for a source.
func (s *Store) taken(src servable.Source, have []*servable.Version) error {
	switch {
	case len(have) > 0 && s.opts.Dialect == MultiModelServer:
		return fail(http.StatusConflict, "ConflictStatusException", "Model %s is already registered.", src.Model)
	case slices.ContainsFunc(have, func(v *servable.Version) bool { return v.Source.Label == src.Label }):
		return fail(http.StatusConflict, "ConflictStatusException", "Model version %s is already registered for model %s", src.Label, src.Model)
	}
	return nil
}

// source makes of an archive what the server opens.
func (s *Store) source(ctx context.Context, a *archive, reg Registration) (servable.Source, error) {
	src := servable.Source{Model: cmp.Or(reg.Name, a.manifest.Model.Name), Label: cmp.Or(a.manifest.Model.Version, "1.0"), Fingerprint: s.stamps.Add(1)}
	handler := cmp.Or(reg.Handler, a.manifest.Model.Handler, s.opts.Settings.Handler)
	switch {
	case src.Model == "":
		return src, invalidModel("Model name is not defined: %s has no modelName; set it there, or use the parameter model_name", manifestFile)
	case !modelconfig.ValidName(src.Model):
		return src, badRequest("model_name: %q is not a valid name; names have %s", src.Model, modelconfig.NameRule)
	case handler == "":
		return src, invalidModel("Model handler is not defined: %s has no handler; set it there, or use the parameter handler", manifestFile)
	}
	written, err := readYAML(a)
	if err != nil {
		return src, err
	}
	src.ModelDir = filepath.Join(s.files.private, fmt.Sprintf("model-%d", src.Fingerprint))
	interpreter, f, err := s.interpreter(ctx, a, src.ModelDir)
	if err != nil {
		return src, err
	}
	if f != nil {
		written.Findings = append(written.Findings, *f)
	}
	s.logFindings(&src, &written)
	preset := s.opts.Settings.preset(src.Model, src.Label, reg.URL)
	p := reg.parameters().over(written.parameters).over(preset.parameters()).over(s.defaults(reg.atStart))
	about := &Registered{
		Written: a.manifest.Model.Version, URL: shown(reg.URL), Runtime: cmp.Or(reg.Runtime, a.manifest.Runtime, "python"), Engine: a.manifest.Engine.Name,
		MaxBatchDelay: defaultDelay, AtStart: reg.atStart, Queue: p.Queue, workers: *p.Workers,
		ResponseTimeout: p.ResponseTimeout, StartupTimeout: p.StartupTimeout, ClientTimeout: p.ClientTimeout,
	}
	src.Data = about
	src.Workers = &servable.Workers{Queue: batching.Bound{Requests: p.Queue}, Bisect: reg.RetryApart, Startup: p.StartupTimeout}
	if p.MaxBatchDelay != nil {
		about.MaxBatchDelay = *p.MaxBatchDelay
		if p.BatchSize > 1 {
			src.Workers.Policy = &batching.Collect{Size: p.BatchSize, MaxDelay: about.MaxBatchDelay}
		}
	}
	about.Venv = interpreter != s.opts.Settings.Python
	text, err := s.config(a.dir, handler, interpreter, written.File, p.BatchSize, about, reg.RetryApart)
	if err != nil {
		return src, err
	}
	src.Config = func() (*modelconfig.Config, error) {
		cfg, err := modelconfig.ParseJSON(text)
		if err != nil {
			return nil, err
		}
		cfg.Name, cfg.Instances = src.Model, max(1, p.Workers.Min)
		cfg.Inputs[0].Dims, cfg.Outputs[0].Dims = nil, nil // a row is one body; there is no config.pbtxt that says so
		return cfg, nil
	}
	return src, writeYAML(src.ModelDir, written.JSON)
}

// interpreter returns the interpreter of a model; "" means the one in the PATH. If the
// archive has requirements, it is that of an environment in dir, which is created here, or
// a finding says that they are not installed.
func (s *Store) interpreter(ctx context.Context, a *archive, dir string) (string, *modelconfig.Finding, error) {
	file, set := a.manifest.Model.RequirementsFile, s.opts.Settings
	switch {
	case file == "":
		return set.Python, nil, nil
	case !set.Install:
		return set.Python, &modelconfig.Finding{
			Where: manifestFile, Field: "requirementsFile", Kind: modelconfig.Unused, What: "packages of archives are not installed",
			Instead: "install those of " + file + " for the interpreter, or set install_py_dep_per_model=true in config.properties",
		}, nil
	case !filepath.IsLocal(file):
		return "", nil, invalidModel("requirementsFile of %s: %q is not a file of the archive", manifestFile, file)
	}
	began := time.Now()
	interpreter, err := environment{cmp.Or(set.Python, "python3"), filepath.Join(a.dir, file), filepath.Join(dir, "environment")}.install(ctx)
	if err != nil {
		return "", nil, internal("Packages of %s could not be installed: %v", file, err)
	}
	s.opts.Log.Info("packages installed", "file", file, "interpreter", interpreter, "took", time.Since(began))
	return interpreter, nil, nil
}

// logFindings logs the keys of a model-config.yaml that have no effect on the server.
func (s *Store) logFindings(src *servable.Source, written *modelYAML) {
	for _, f := range written.Findings {
		s.opts.Log.Warn("model configuration", "model", src.Model, "version", src.Label, "at", f.Where, "field", f.Field, "warning", f.Text())
	}
	if len(written.Others) > 0 {
		s.opts.Log.Info("keys that only the handler reads", "model", src.Model, "version", src.Label, "file", written.File, "keys", written.Others)
	}
}

// defaultDelay is the delay that clients see of a model without MaxBatchDelay. It is the
// default of MMS.
const defaultDelay = 100 * time.Millisecond

// config is that of a model whose requests and answers are bodies.
func (s *Store) config(dir, handler, interpreter, configFile string, size int, about *Registered, apart bool) ([]byte, error) {
	type value struct {
		Text string `json:"string_value"`
	}
	body := []map[string]any{{"name": Body, "data_type": "TYPE_STRING", "dims": []int{1}}}
	parameters := map[string]value{
		python.HandlerDirKey: {dir}, python.HandlerKey: {handler}, "server_name": {"MMS"}, "server_version": {s.opts.Version},
		"retry_apart": {strconv.FormatBool(apart)}, "decode_input_request": {strconv.FormatBool(s.opts.Settings.Decode)},
		"execute_timeout_seconds": {strconv.FormatFloat(about.ResponseTimeout.Seconds(), 'f', -1, 64)},
	}
	if configFile != "" {
		parameters["model_config_file"] = value{configFile}
	}
	if interpreter != "" {
		parameters["python"] = value{interpreter}
	}
	config := map[string]any{"backend": python.Name, "max_batch_size": size, "parameters": parameters, "input": body, "output": body}
	if size > 1 {
		config["dynamic_batching"] = map[string]any{}
	}
	return json.Marshal(config)
}

// writeModel makes the directory of a version whose code is the handler's.
func writeModel(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "model.py"), []byte("from shoal_handler import TritonPythonModel\n"), 0o600)
}

// writeYAML writes the content of a model-config.yaml for the handler, if there is any. It
// is not a parameter of the model, because clients can read those.
func writeYAML(dir string, text []byte) error {
	if text == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "model-config.json"), text, 0o600)
}
