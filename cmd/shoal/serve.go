package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/cache"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/dashboard"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/ensemble"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservelocal"
	"github.com/shoal-serving/shoal/internal/listen"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/metrics"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/mms/mmshttp"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/trace"
)

func newServeCommand() *cobra.Command {
	var opts serveOptions
	cmd := &cobra.Command{
		Use:   "serve [PATH...]",
		Short: "Serve models over HTTP and gRPC",
		Long: `Serve models from model repositories, buckets, the Hugging Face Hub, .onnx files, Python files with @shoal.model functions, and files of
scikit-learn, XGBoost and TorchScript.

Each flag can also be set by an environment variable (--http-port is SHOAL_HTTP_PORT) or in the YAML file that
--settings names ("http-port: 8000"). The log starts with the settings that are not defaults.

With --model-store it also serves model archives with the APIs of MMS and TorchServe: docs/how-to/migrate-from-mms.md.

Triton's other flags are ignored or rejected as docs/reference/flags.md says.`,
		Example: `  shoal serve model.onnx
  shoal serve --demo
  shoal serve app.py --reload
  shoal serve s3://bucket/models --model-control-mode demand
  shoal serve hf://sentence-transformers/all-MiniLM-L6-v2
  shoal serve models --http-port 9000 --log-requests`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			settings, store, err := opts.configure(cmd.Flags(), paths)
			if err != nil {
				return err
			}
			if err := opts.checkModels(); err != nil {
				return misuse{err}
			}
			if err := opts.access.printFirstKey(cmd.OutOrStdout(), time.Now()); err != nil {
				return fmt.Errorf("--%s: %w", firstKeyFlag, err)
			}
			return runServe(cmd.Context(), &opts, settings, store, cmd.ErrOrStderr())
		},
	}
	opts.define(cmd.Flags())
	return cmd
}

// configure reads all settings, and checks them.
func (o *serveOptions) configure(flags *pflag.FlagSet, paths []string) (*settled, *mms.Settings, error) {
	settings, err := readSettings(flags, paths, os.Environ())
	if err != nil {
		return nil, nil, misuse{err}
	}
	if o.demo {
		models, err := demoModels()
		if err != nil {
			return nil, nil, err
		}
		o.repositories = append(o.repositories, models)
	}
	o.access.useFirstKey()
	store, err := o.store.settings()
	if err != nil {
		return nil, nil, misuse{err}
	}
	if err := errors.Join(o.check(), checkAddresses(append(addresses(store), settings.settings...), &o.access)); err != nil {
		return nil, nil, misuse{err}
	}
	return settings, store, nil
}

// runServe opens the log, checks what can be checked before ports are open, and serves.
func runServe(ctx context.Context, opts *serveOptions, settings *settled, store *mms.Settings, stderr io.Writer) error {
	ignoreBrokenPipes()
	log, err := openLog(opts.log, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if log.file != nil || !signal.Ignored(syscall.SIGHUP) { // nohup has it ignored
		hangups := make(chan os.Signal, 1) // so that one that comes while the file is opened is not lost
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		if log.file != nil {
			go log.reopenOn(ctx, hangups)
		} else {
			go stopOn(ctx, hangups)
		}
	}
	settings.log(ctx, log.Logger)
	warnOfClients(append(addresses(store), settings.settings...), &opts.access, log.Logger)
	if err := opts.checkPaths(log.Logger); err != nil {
		return errors.Join(err, log.Close())
	}
	recorder, err := openRecorder(opts.record, log.Logger)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	return errors.Join(serve(ctx, *opts, store, recorder, log), recorder.Close(), log.Close())
}

// ignoreBrokenPipes is for processes that have to go on when the reader of stderr goes away. Without
// it the next record would end them.
func ignoreBrokenPipes() { signal.Ignore(syscall.SIGPIPE) }

// stopOn sends SIGTERM to this process at the first SIGHUP, so that a server whose terminal is
// closed drains. Then the shell and the kernel may each send one, so others have no effect.
func stopOn(ctx context.Context, hangups <-chan os.Signal) {
	select {
	case <-ctx.Done():
	case <-hangups:
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM) // allowed for oneself
	}
}

// openRecorder returns what records arrivals, or nil if no file is named.
func openRecorder(file string, log *slog.Logger) (*arrivals.Writer, error) {
	if file == "" {
		return nil, nil
	}
	w, err := arrivals.Create(file, arrivals.Options{Log: log})
	if err != nil {
		return nil, fmt.Errorf("--record-arrivals: %w", err)
	}
	return w, nil
}

// parts are what a server is made of.
type parts struct {
	onnx     *onnx.Engine
	python   *python.Engine
	backend  *server.Server
	models   *repository.Repository
	archives *mms.Store    // nil if there are none
	settings *mms.Settings // of archives
	security *security

	connections *listen.Connections

	responses *cache.Cache // nil if responses are not cached

	tracer *trace.Tracer // nil if requests are not traced

	buckets []*bucket.Bucket
	cache   *bucket.Cache // of buckets; nil if there are none
}

// newParts returns a server without models, which the caller closes, or an error and nothing to
// close. settings are those of a store, and nil if there is none.
func newParts(opts serveOptions, settings *mms.Settings, guarded *security, recorder *arrivals.Writer, tracer *trace.Tracer, pace *pacer.Pacer, log *slog.Logger) (p parts, err error) {
	cores := machine.Cores(machine.Root())
	if os.Getenv("GOMAXPROCS") == "" {
		// A thread that computes keeps its P in Go's scheduler until the scheduler takes it
		// back, which may take milliseconds. With one more P for each core, network
		// goroutines do not wait for it.
		runtime.GOMAXPROCS(2 * cores)
	}
	settingsOfBackends, err := parseBackendSettings(opts.backends)
	if err != nil {
		return parts{}, err
	}
	logIgnored(settingsOfBackends, log)
	if p.responses, err = newCache(opts.cacheConfig); err != nil {
		return parts{}, err
	}
	caller := &lateBoundCaller{}
	p.settings, p.security, p.tracer = settings, guarded, tracer
	p.onnx = onnx.New(onnx.Options{Library: opts.onnxLibrary, Nice: opts.computeNice, Log: log})
	p.python = python.New(python.Options{Cores: cores, Nice: opts.computeNice, Caller: caller, Tracer: tracer, Log: log})
	defer func() {
		if err != nil {
			p, err = parts{}, errors.Join(err, p.onnx.Close(), p.python.Close(), closeBuckets(p.buckets, p.cache))
		}
	}()
	kept := calibrationDir(opts.calibrationDir, log)
	store := calibrate.NewStore(kept, log)
	env := servable.NewEnv(servable.Options{
		Retries:    opts.loadRetries,
		Timeout:    seconds(opts.loadTimeout),
		Queue:      batching.Bound{Requests: opts.maxQueue, Bytes: opts.maxQueueBytes},
		InputBytes: opts.maxInputSize,
		Strict:     opts.disableAutoComplete,
		Automatic:  opts.batching == "automatic",
		Cached:     p.responses != nil,
		Store:      store,
		CPU:        machine.CPU(machine.Root()),
		Defaults:   backendDefaults(settingsOfBackends),
		Runners:    runners(pace, p.onnx, p.python, &ensemble.Engine{Members: caller, Log: log}, cores),
		Cores:      cores,
		Memory:     func() machine.Memory { return machine.ReadMemory(machine.Root()) },
		Waited:     func() time.Duration { return machine.Waited(machine.Root()) },
		Pacer:      pace,
		Log:        log,
	})
	p.backend = server.New(env, server.Options{Loads: opts.loadThreads, Lenient: !opts.strictReadiness, Log: log, LogRequests: opts.logRequests, Access: guarded.gate, Cache: p.responses, Arrivals: recorder})
	p.connections = &listen.Connections{Max: maxConnections(opts.maxConnections), Log: log}
	mode, poll := opts.changes()
	local, _ := opts.places()
	if p.buckets, p.cache, err = opts.openBuckets(context.Background(), log); err != nil {
		return p, err
	}
	p.models = repository.New(p.backend, repository.Options{Paths: local, Buckets: p.buckets, Cache: p.cache, Mode: mode, Models: opts.loadModels, Poll: poll, FileConfig: opts.fileConfig, ClientCode: opts.allowUploads, Demand: opts.demand(store), EpochFile: opts.epochFile(kept), Log: log})
	caller.Server, caller.Repository = p.backend, p.models
	if settings != nil {
		p.archives, err = mms.New(p.backend, mms.Options{Settings: settings, Dialect: mms.Dialect(opts.store.dialect), Cores: cores, Version: version, Log: log})
	}
	return p, err
}

// start loads the models that are to be loaded at startup.
func (p parts) start(ctx context.Context) error {
	defer p.backend.MarkStarted()
	err := p.models.Start(ctx)
	if p.archives != nil {
		err = errors.Join(err, p.archives.Start(ctx))
	}
	return err
}

// close closes everything, sources first, so that nothing is loaded any more.
func (p parts) close() error {
	p.models.Close()
	if p.archives != nil {
		p.archives.Close()
	}
	err := p.backend.Close()
	p.models.Wait()
	if p.archives != nil {
		err = errors.Join(err, p.archives.RemoveFiles())
	}
	return errors.Join(err, p.onnx.Close(), p.python.Close(), closeBuckets(p.buckets, p.cache))
}

// serve runs until ctx ends, and then until everything has ended that it started.
// settings are those of a model store, and nil if there is none.
func serve(ctx context.Context, opts serveOptions, settings *mms.Settings, recorder *arrivals.Writer, out *logOutput) (err error) {
	began, log := time.Now(), out.Logger
	if settings != nil && len(settings.Ignored) > 0 {
		log.Warn("properties have no effect", "keys", strings.Join(settings.Ignored, " "))
	}
	guarded, err := openSecurity(&opts.access, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guarded.close()) }()
	pace := pacer.New()
	defer pace.Close()
	tracer, flushTraces, err := openTracer(opts.traceConfig, os.Getenv, log)
	if err != nil {
		return err
	}
	defer flushTraces()
	p, err := newParts(opts, settings, guarded, recorder, tracer, pace, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if out.screen != nil {
		out.screen.begin(machine.Cores(machine.Root()))
	}
	open, err := listen.Open(p.backend, ports(p, opts, stop, log), listen.Options{
		HeaderBytes: kserve.Limits{}.WithDefaults().Header, HeaderTimeout: seconds(opts.headerTimeout), BodyTimeout: seconds(opts.bodyTimeout), IdleTimeout: seconds(opts.idleTimeout),
		Connections: p.connections, Hosts: opts.allowedHosts, TLS: guarded.http, Authentication: guarded.authentication(), Log: log,
	})
	if err != nil {
		return errors.Join(err, p.close())
	}
	return run(ctx, opts, p, open, out, began)
}

// ballast returns memory that is never touched, and so never allocated by the system. Go
// collects garbage when the heap has doubled. The heap of a server whose tensors are pooled
// is tiny, and would double many times a second. The ballast gives it a constant amount of
// room instead.
func ballast() []byte {
	if os.Getenv("GOGC") != "" {
		return nil // the user has chosen
	}
	return make([]byte, 16<<20)
}

// run loads the first models, and serves until ctx ends or a port fails. Then it drains, and
// closes everything. began is when the server was started.
func run(ctx context.Context, opts serveOptions, p parts, open *listen.Ports, out *logOutput, began time.Time) error {
	defer runtime.KeepAlive(ballast())
	log := out.Logger
	var failed error
	switch err := p.start(ctx); {
	case err == nil || ctx.Err() != nil: // all are loaded, or the server is stopping
	case opts.exitOnError:
		failed = err
		if len(p.backend.Index(true)) > 0 {
			failed = fmt.Errorf("%w; to serve the other models without it, add --exit-on-error=false", err)
		}
	default:
		log.Error("serving without some models", "error", err)
	}
	if failed == nil && ctx.Err() == nil {
		p.reportReady(out, time.Since(began), opts.demoRequests())
	}
	if failed == nil {
		select {
		case <-ctx.Done():
			// Report not ready, so that load balancers send requests elsewhere. They may need
			// some time to notice.
			p.backend.SetUnready()
			log.Info("stopping", "reason", context.Cause(ctx), "delay", opts.shutdownDelay, "seconds", opts.exitTimeout)
			time.Sleep(seconds(opts.shutdownDelay))
		case failed = <-open.Failed():
		}
	}
	err := end(seconds(opts.exitTimeout), open.Stop, p.close)
	log.Info("stopped")
	return errors.Join(failed, err)
}

// end stops the ports, and then closes everything else in what is left of the timeout, or in
// closeTimeout if that is more.
func end(timeout time.Duration, stopPorts func(timeout time.Duration) error, closeAll func() error) error {
	began := time.Now()
	aborted := stopPorts(timeout)
	return errors.Join(aborted, within(max(closeTimeout, timeout-time.Since(began)), closeAll))
}

// calibrationDir returns the directory that --calibration-dir names. It warns if there is
// no default one.
func calibrationDir(named string, log *slog.Logger) string {
	if named != "auto" {
		return named
	}
	dir := calibrate.DefaultDir()
	if dir == "" {
		log.Warn("calibration results are not kept, because neither HOME nor XDG_CACHE_HOME is set: models are measured again at each start; name a directory with --calibration-dir")
	}
	return dir
}

// epochFile returns the file that keeps the epoch of control requests: in the directory of
// calibration results, for the server at this address. A server at a free port has none.
func (o *serveOptions) epochFile(dir string) string {
	if dir == "" || o.httpPort == 0 {
		return ""
	}
	at := net.JoinHostPort(cmp.Or(o.httpAddress, o.address), strconv.Itoa(o.httpPort))
	return filepath.Join(dir, "epoch-"+url.PathEscape(at))
}

// lateBoundCaller lets models call other models. Errors have the texts of Triton, which models may
// look for. Both fields are set before a model is loaded.
type lateBoundCaller struct {
	*server.Server
	*repository.Repository
}

var _ engine.ModelCaller = (*lateBoundCaller)(nil)

func (c *lateBoundCaller) Call(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	return kserve.TritonError(c.Server.Call(ctx, req, resp), req)
}

func (c *lateBoundCaller) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	return kserve.TritonError(c.Repository.LoadModel(ctx, model, config, files), nil)
}

func (c *lateBoundCaller) UnloadModel(ctx context.Context, model string) error {
	return kserve.TritonError(c.Repository.UnloadModel(ctx, model), nil)
}

// closeTimeout is the least time that models have to close after the last request was answered or
// aborted. Not all engines can stop a batch, so one may run that no client waits for any more.
const closeTimeout = 5 * time.Second

// within waits for f, but not longer than the limit. What f has not done by then ends with the
// process.
func within(limit time.Duration, f func() error) error {
	done := make(chan error, 1) // so that f can end after the timeout
	go func() { done <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("models that still computed %v after their requests had ended were not closed", limit.Round(time.Millisecond))
	}
}

// reportReady says that the models are loaded: in a record, or to a person. requests are
// files with a request for a model, by its name.
func (p parts) reportReady(out *logOutput, took time.Duration, requests map[string]string) {
	out.Info("ready", "took", took.Round(time.Millisecond), "models", len(p.backend.Index(false)))
	if out.screen == nil {
		return
	}
	ctx := access.WithCaller(context.Background(), access.Self)
	up := startup{took: took, requests: requests, encrypted: p.security.http != nil}
	for _, e := range p.models.Index(ctx, false) {
		if e.State == "" {
			continue // it is not loaded yet, in mode explicit
		}
		m := startupModel{name: e.Name, problem: e.Reason}
		meta, err := p.backend.Model(ctx, e.Name, e.Version)
		why, explainErr := p.backend.Explain(ctx, e.Name, e.Version)
		if err := errors.Join(err, explainErr); err != nil {
			m.problem = cmp.Or(m.problem, err.Error())
		} else {
			m.problem, m.inputs, m.outputs, m.explain = "", described(meta.Inputs), described(meta.Outputs), why
		}
		up.models = append(up.models, m)
	}
	out.screen.show(up)
}

func described(tensors []catalog.Tensor) (all []client.TensorMetadata) {
	for _, t := range tensors {
		all = append(all, client.TensorMetadata(t))
	}
	return all
}

// runners returns the engines by backend name.
func runners(pace *pacer.Pacer, onnxEngine *onnx.Engine, pythonEngine *python.Engine, ensembles *ensemble.Engine, cores int) map[string]servable.Runner {
	return map[string]servable.Runner{
		simulated.Name: {Engine: &simulated.Engine{Pacer: pace}},
		onnx.Name:      {Engine: onnxEngine, Device: sched.NewDevice(cores), Instances: onnx.Instances},
		python.Name:    {Engine: pythonEngine},

		python.TorchName: {Engine: pythonEngine},
		ensemble.Name:    {Engine: ensembles, Instances: ensemble.Instances},
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// newBudget returns the budget of requests: the given number of bytes, or if that is 0 half
// of the memory of the machine. It also makes the garbage collector work harder before the
// process needs much more than the budget, unless the user has set GOMEMLIMIT. exists reports
// whether requests to a model can be answered.
func newBudget(bytes, memory int64, exists func(model string) bool) *budget.Budget {
	if bytes == 0 {
		bytes = memory / 2
	}
	if bytes == 0 {
		return nil // the memory is unknown
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes + max(bytes/4, reservedMemory))
	}
	all := budget.New(bytes)
	// When memory is scarce, the buffers of requests that have ended would count twice: pools keep
	// them for others, which may be too large for them.
	all.Refused, all.Exists = atMostEverySecond(freeMemory), exists
	return all
}

// freeMemory gives free memory back to the system, also that of pools.
func freeMemory() {
	runtime.GC() // pools keep what they have for one collection
	debug.FreeOSMemory()
}

// atMostEverySecond returns a function that has f called in another goroutine after it was
// called itself: at once, or a second after the last time.
func atMostEverySecond(f func()) func() {
	var mu sync.Mutex // guards the following
	var last time.Time
	due := false
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if due {
			return
		}
		due = true
		time.AfterFunc(time.Until(last.Add(time.Second)), func() {
			mu.Lock()
			due, last = false, time.Now() // before f, which may miss what comes after this
			mu.Unlock()
			f()
		})
	}
}

// maxConnections returns the number of TCP connections that may be open: n, or if that is 0
// three quarters of the files that the process may open, and not more than 16,384.
func maxConnections(n int) int64 {
	if n > 0 {
		return int64(n)
	}
	const most = 16_384
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return most
	}
	return int64(min(files.Cur/4*3, most))
}

// reservedMemory is the least that the process may use in addition to requests, before the
// garbage collector tries to avoid it.
const reservedMemory = 64 << 20

// ports returns those that the options ask for.
func ports(p parts, opts serveOptions, stop context.CancelCauseFunc, log *slog.Logger) []listen.Port {
	limits := kserve.Limits{}.WithDefaults()
	requests := newBudget(opts.memoryBudget, machine.ReadMemory(machine.Root()).Limit, p.backend.Exists)
	meter := &http2meter.Meter{Budget: requests, Log: log}
	logging := loggingOf(log)
	if logging != nil && !opts.allowLogging {
		logging = kserve.ReadOnly(logging)
	}
	httpLimits := limits
	httpLimits.Body, httpLimits.Decoded = opts.maxInputSize, opts.maxInputSize
	var regions *kserve.Regions
	if opts.allowClientSHM {
		regions = kserve.NewRegions(kserve.RegionOptions{Limits: httpLimits, Budget: requests})
	}
	kserveHTTP := kservehttp.New(p.backend, p.backend, p.models, kservehttp.Options{
		Name: opts.id, Version: version, ForwardHeaders: opts.httpHeaders.HeaderPattern, Limits: httpLimits, TritonStatus: opts.tritonStatus, BodyTimeout: seconds(opts.bodyTimeout),
		Budget: requests, Logging: logging, Regions: regions, Node: newReporter(p, opts), Tracer: p.tracer, Log: log,
		Dashboard: newDashboard(p, opts, requests),
	})
	var figures http.Handler
	if opts.allowMetrics {
		figures = newMetrics(p, opts, requests, meter, log)
	}
	var all []listen.Port
	for _, a := range opts.addresses() {
		switch a.protocol {
		case "http":
			all = append(all, listen.HTTP(a.protocol, a.address, kserveHTTP, a.hint))
		case "grpc":
			all = append(all, listen.GRPC(a.address, kservegrpc.New(p.backend, p.backend, p.models, kservegrpc.Options{
				Name: opts.id, Version: version, ForwardHeaders: opts.grpcHeaders.HeaderPattern, Limits: limits, TritonStatus: opts.tritonStatus, Budget: requests, Meter: meter, Logging: logging, Regions: regions, Tracer: p.tracer, Log: log,
				Credentials: p.security.grpcCredentials(), Tap: p.security.grpcTap(),
			}, opts.connections()...), meter, a.hint))
		case "metrics":
			all = append(all, listen.HTTP(a.protocol, a.address, figures, a.hint))
		case "admin":
			all = append(all, listen.AdminHTTP(a.protocol, a.address, kserveHTTP, a.hint))
		}
	}
	if opts.localSocket != "" {
		all = append(all, listen.Local(opts.localSocket, kservelocal.New(p.backend, p.backend, kservelocal.Options{
			Limits: httpLimits, Tracer: p.tracer, Log: log, UnusedAfter: seconds(opts.localUnused),
			Unused: func() { stop(fmt.Errorf("no program was connected to the local socket for %d s", opts.localUnused)) },
		})))
	}
	if p.archives != nil {
		all = append(all, storePorts(p.archives, p.settings, mmshttp.Options{
			MaxRequest: p.settings.MaxRequest, BodyTimeout: seconds(opts.bodyTimeout), Budget: requests, KServe: kserveHTTP, Tracer: p.tracer, Log: log,
		}, figures)...)
	}
	return all
}

// newDashboard returns the page for browsers, or nil if there is to be none.
func newDashboard(p parts, opts serveOptions, requests *budget.Budget) kservehttp.Dashboard {
	if !opts.dashboard {
		return nil
	}
	o := dashboard.Options{Version: version, Budget: requests}
	if p.security.gate != nil {
		o.Tenants = p.security.gate.Tenants
	}
	return dashboard.New(p.backend, o)
}

func newMetrics(p parts, opts serveOptions, requests *budget.Budget, meter *http2meter.Meter, log *slog.Logger) http.Handler {
	figures := metrics.Options{
		Version: version, ModelMetrics: p.python.Metrics, Budget: requests, Cache: p.responses, GRPC: meter, Connections: p.connections.State, Access: p.security.gate, Demand: p.models.DemandCounts, Exemplars: p.tracer != nil, Log: log,
	}
	if opts.allowCPUMetrics {
		figures.HostFiles = machine.Root()
	}
	return metrics.New(p.backend, figures)
}
