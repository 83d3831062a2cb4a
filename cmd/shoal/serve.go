package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservelocal"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/metrics"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

func newServeCommand() *cobra.Command {
	var opts serveOptions
	cmd := &cobra.Command{
		Use:   "serve [PATH...]",
		Short: "Serve models over HTTP and gRPC",
		Long: `Serve the models that the paths lead to: directories with a folder for each model, .onnx files, Python files whose
functions are models, and files of scikit-learn, XGBoost and TorchScript.

What a flag does not say, the environment may: --http-port is SHOAL_HTTP_PORT there. What neither says may stand in the
file that --settings names, as "http-port: 8000". The log begins with every setting and where it comes from.

With --model-store it is a server in the way of MMS and TorchServe: docs/from-mms.md.

Triton's flags that are not in this list are known, too: docs/flags.md says what becomes of each.`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			settings, err := readSettings(cmd.Flags(), paths, os.Environ())
			if err != nil {
				return misuse{err}
			}
			store, err := opts.store.settings()
			if err != nil {
				return misuse{err}
			}
			if err := errors.Join(opts.check(), opts.store.check(settings.settings), checkAddresses(append(addresses(store), settings.settings...))); err != nil {
				return misuse{err}
			}
			// Whoever reads stderr may leave. Without this the next record would end
			// the process.
			signal.Ignore(syscall.SIGPIPE)
			log, closeLog, err := openLog(opts.log, os.Stderr)
			if err != nil {
				return err
			}
			settings.tell(cmd.Context(), log)
			if opts.store.used() {
				return errors.Join(serveStore(cmd.Context(), opts, store, log), closeLog())
			}
			recorder, err := openRecorder(opts.record, log)
			if err != nil {
				return errors.Join(err, closeLog())
			}
			return errors.Join(serve(cmd.Context(), opts, recorder, log), recorder.Close(), closeLog())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return misuse{flagError(err)} })
	opts.define(cmd.Flags())
	return cmd
}

// openRecorder returns what records arrivals, or nil if no file is named.
func openRecorder(file string, log *slog.Logger) (*arrivals.Writer, error) {
	if file == "" {
		return nil, nil
	}
	w, err := arrivals.Create(file, arrivals.Options{Log: log})
	if err != nil {
		return nil, fmt.Errorf("record-arrivals: %w", err)
	}
	return w, nil
}

// serve runs until ctx ends, and then until everything has ended that it started.
func serve(ctx context.Context, opts serveOptions, recorder *arrivals.Writer, log *slog.Logger) error {
	pace := pacer.New()
	defer pace.Close()
	onnxEngine := onnx.New(onnx.Options{Library: opts.onnxLibrary, Nice: opts.computeNice, Log: log})
	cores := machine.Cores(machine.Root())
	callers := &callers{} // before there is a server to call
	pythonEngine := python.New(python.Options{Cores: cores, Nice: opts.computeNice, Caller: callers, Log: log})
	if os.Getenv("GOMAXPROCS") == "" {
		// A thread that computes keeps its place in Go's scheduler until that takes it
		// back, which may be milliseconds. With a place more for each core, the network
		// does not wait for it.
		runtime.GOMAXPROCS(2 * cores)
	}
	mode, poll := opts.changes()
	models := repository.New(repository.Options{
		Paths:   opts.repositories,
		Mode:    mode,
		Models:  opts.loadModels,
		Poll:    poll,
		Loads:   opts.loadThreads,
		Retries: opts.loadRetries,
		Timeout: seconds(opts.loadTimeout),
		Queue:   batching.Bound{Requests: opts.maxQueue, Bytes: opts.maxQueueBytes},
		Lenient: !opts.strictReadiness,
		Strict:  opts.disableAutoComplete,
		Runners: runners(pace, onnxEngine, pythonEngine, cores),

		Automatic: opts.batching == "automatic",
		Store:     calibrate.NewStore(calibrationDir(opts.calibrationDir), log),
		CPU:       machine.CPU(machine.Root()),

		Cores:  cores,
		Memory: func() machine.Memory { return machine.ReadMemory(machine.Root()) },
		Waited: func() time.Duration { return machine.Waited(machine.Root()) },
		Pacer:  pace,
		Log:    log,
	})
	backend := server.New(models, server.Options{Log: log, Arrivals: recorder})
	callers.Caller = backend
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	faces, err := listen(backend, pythonEngine.Metrics, leave, opts, log)
	if err != nil {
		return errors.Join(err, models.Close(), onnxEngine.Close(), pythonEngine.Close())
	}
	return live(ctx, opts, life{
		start: models.Start, leave: backend.Stop, stop: faces.stop, failed: faces.failed,
		end: func() error { return errors.Join(models.Close(), onnxEngine.Close(), pythonEngine.Close()) },
	}, log)
}

// ballast is memory that is never touched, so that there is none behind it. Go collects
// garbage when the heap has doubled. That of a server whose tensors are pooled holds
// next to nothing, and would double many times a second, each time for the price of a
// collection. With the ballast it has so much more room, and no more than that, however
// large it gets.
func ballast() []byte {
	if os.Getenv("GOGC") != "" {
		return nil // somebody has chosen
	}
	return make([]byte, 16<<20)
}

// A life is how a server that listens begins and ends.
type life struct {
	start  func(context.Context) error // loads the first models
	leave  func()                      // it is not ready from then on
	stop   func(time.Duration) error   // closes the faces; who still waits after that time is cut off, which is an error
	end    func() error                // closes the rest
	failed chan error                  // of a face; has room for one more
}

// live lives it, until ctx ends or a face fails.
func live(ctx context.Context, opts serveOptions, l life, log *slog.Logger) error {
	defer runtime.KeepAlive(ballast())
	switch err := l.start(ctx); {
	case err == nil || ctx.Err() != nil: // all are there, or nobody wants them any more
	case opts.exitOnError:
		l.failed <- err
	default:
		log.Error("serving without some models", "error", err)
	}
	var failed error
	select {
	case <-ctx.Done():
		// Not ready from now on, so that no more is sent here. Whoever sends it may
		// need some time to notice.
		l.leave()
		log.Info("stopping", "reason", context.Cause(ctx), "delay", opts.shutdownDelay, "seconds", opts.exitTimeout)
		time.Sleep(seconds(opts.shutdownDelay))
	case failed = <-l.failed:
	}
	cut := l.stop(seconds(opts.exitTimeout))
	var err error
	if cut != nil {
		err = within(l.end)
	} else {
		err = l.end()
	}
	log.Info("stopped")
	return errors.Join(failed, cut, err)
}

// calibrationDir returns the directory that --calibration-dir names.
func calibrationDir(named string) string {
	if named == "auto" {
		return calibrate.DefaultDir()
	}
	return named
}

// callers are models that call other models. Errors have the sentences of Triton, for
// which models may look. No model is loaded before Caller is set.
type callers struct{ engine.Caller }

func (c *callers) Call(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	return kserve.Worded(c.Caller.Call(ctx, req, resp), req)
}

func (c *callers) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	return kserve.Worded(c.Caller.LoadModel(ctx, model, config, files), nil)
}

func (c *callers) UnloadModel(ctx context.Context, model string) error {
	return kserve.Worded(c.Caller.UnloadModel(ctx, model), nil)
}

// patience is for engines that still compute when their requests have been cut off:
// they have been told to stop, but not all can.
const patience = 5 * time.Second

// within waits for f, but for no longer than its patience allows. What f has not done by
// then ends with the process.
func within(f func() error) error {
	done := make(chan error, 1) // so that f ends although nobody waits any more
	go func() { done <- f() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("models that still computed %v after their requests had been cut off were left to it", patience)
	}
}

// runners are the engines that there are, by what a config.pbtxt calls them.
func runners(pace *pacer.Pacer, onnxEngine *onnx.Engine, pythonEngine *python.Engine, cores int) map[string]repository.Runner {
	return map[string]repository.Runner{
		simulated.Name: {Engine: &simulated.Engine{Pacer: pace}},
		onnx.Name:      {Engine: onnxEngine, Device: sched.NewDevice(cores), Instances: onnx.Instances},
		python.Name:    {Engine: pythonEngine},

		python.TorchName: {Engine: pythonEngine},
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// faces are the protocols that the server speaks.
type faces struct {
	backend *server.Server
	http    *http.Server
	grpc    *grpc.Server
	metrics *http.Server
	local   *kservelocal.Server
	log     *slog.Logger
	failed  chan error // size 5: each face fails once at most, and the first load
	all     sync.WaitGroup
}

// listen opens the faces. leave is called with the reason when the server is not needed
// any more.
func listen(backend *server.Server, own func() []stats.Family, leave context.CancelCauseFunc, opts serveOptions, log *slog.Logger) (*faces, error) {
	limits := kserve.Limits{}.WithDefaults()
	httpLimits := limits
	httpLimits.Body, httpLimits.Decoded = opts.maxInputSize, opts.maxInputSize
	figures := metrics.Options{Version: version, Own: own, Log: log}
	if opts.allowCPUMetrics {
		figures.Machine = machine.Root()
	}
	f := &faces{
		backend: backend,
		http: &http.Server{
			Handler: kservehttp.New(backend, backend, backend, kservehttp.Options{
				Version: version, Limits: httpLimits, TritonStatus: opts.tritonStatus, BodyTimeout: seconds(opts.bodyTimeout),
				Logging: loggingOf(log), Log: log,
			}),
			MaxHeaderBytes:    limits.Header,
			ReadHeaderTimeout: seconds(opts.headerTimeout),
			IdleTimeout:       seconds(opts.idleTimeout),
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		grpc: kservegrpc.New(backend, backend, backend, kservegrpc.Options{
			Version: version, Limits: limits, TritonStatus: opts.tritonStatus, Logging: loggingOf(log), Log: log,
		}, opts.connections()...),
		metrics: &http.Server{
			Handler:           metrics.New(backend, figures),
			ReadHeaderTimeout: seconds(opts.headerTimeout),
			IdleTimeout:       seconds(opts.idleTimeout),
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		local: kservelocal.New(backend, backend, kservelocal.Options{
			Limits: httpLimits, Log: log, UnusedAfter: seconds(opts.localUnused),
			Unused: func() { leave(fmt.Errorf("no program was connected to the local socket for %d s", opts.localUnused)) },
		}),
		log:    log,
		failed: make(chan error, 5),
	}
	var err error
	if opts.allowHTTP {
		err = f.serve("http", cmp.Or(opts.httpAddress, opts.address), opts.httpPort, func(l net.Listener) error { return f.http.Serve(kservehttp.Listener(f.http, l)) })
	}
	if err == nil && opts.allowGRPC {
		err = f.serve("grpc", cmp.Or(opts.grpcAddress, opts.address), opts.grpcPort, f.grpc.Serve)
	}
	if err == nil && opts.allowMetrics {
		err = f.serve("metrics", cmp.Or(opts.metricsAddress, opts.httpAddress, opts.address), opts.metricsPort, f.metrics.Serve)
	}
	if err == nil && opts.localSocket != "" {
		err = f.serveLocal(opts.localSocket)
	}
	if err != nil {
		return nil, errors.Join(err, f.stop(0))
	}
	return f, nil
}

// serve begins to listen, and to answer who connects until the face is stopped.
func (f *faces) serve(protocol, address string, port int, answer func(net.Listener) error) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("%s: %w; choose another with --%[1]s-port", protocol, err)
	}
	f.answer(protocol, listener.Addr(), func() error { return answer(listener) })
	return nil
}

func (f *faces) answer(protocol string, address net.Addr, serve func() error) {
	f.all.Go(func() {
		if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			f.failed <- fmt.Errorf("%s: %w", protocol, err)
		}
	})
	f.log.Info("listening", "protocol", protocol, "address", address.String())
}

// serveLocal does the same for programs on this machine.
func (f *faces) serveLocal(path string) error {
	if path == "auto" {
		path = kservelocal.DefaultPath()
	}
	listener, err := kservelocal.Listen(path)
	if err != nil {
		return fmt.Errorf("local-socket: %w", err)
	}
	f.answer("local", listener.Addr(), func() error { return f.local.Serve(listener) })
	return nil
}

// stop lets the inferences end that are here, refuses others, and ends the faces.
// Those that have not ended after the timeout are cut off, and counted in the
// error.
func (f *faces) stop(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	f.backend.Drain()
	f.all.Go(f.grpc.GracefulStop) // tells clients to connect elsewhere
	// Over HTTP the port stays open meanwhile: who comes late is told so, and
	// every answer asks the client to connect anew.
	f.http.SetKeepAlivesEnabled(false)
	cut := await(ctx, f.backend.Inside, f.log) // counted before they are: then they are gone
	giveUp := context.AfterFunc(ctx, f.grpc.Stop)
	defer giveUp()
	f.all.Go(func() {
		if f.http.Shutdown(ctx) != nil {
			_ = f.http.Close() // its connections are cut off, and that is all there is to do
		}
		_ = f.local.Close()   // the listener may never have been there
		_ = f.metrics.Close() // nothing is lost that the next scrape would not have missed
	})
	f.all.Wait()
	return cutOff(cut, timeout)
}

// cutOff is the error of a server that did not wait any longer for requests.
func cutOff(requests int, timeout time.Duration) error {
	if requests == 0 {
		return nil
	}
	return fmt.Errorf("requests that were cut off: %d, because they had not ended after %v; --exit-timeout-secs allows more", requests, timeout)
}

// await returns when no inference is inside any more, or when ctx ends, and how
// many are left. Each second it says for how many it waits.
func await(ctx context.Context, inside func() int, log *slog.Logger) int {
	look, tell := time.NewTicker(10*time.Millisecond), time.NewTicker(time.Second)
	defer look.Stop()
	defer tell.Stop()
	for {
		left := inside()
		if left == 0 {
			return 0
		}
		select {
		case <-look.C:
		case <-tell.C:
			until, _ := ctx.Deadline()
			log.Info("waiting for requests to end", "requests", left, "seconds", int(time.Until(until).Seconds()))
		case <-ctx.Done():
			return inside()
		}
	}
}
