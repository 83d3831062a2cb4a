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
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/metrics"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/server"
)

func newServeCommand() *cobra.Command {
	var opts serveOptions
	cmd := &cobra.Command{
		Use:   "serve [PATH...]",
		Short: "Serve models over HTTP and gRPC",
		Long: `Serve the models that the paths lead to: directories with a folder for each model, and .onnx files.

What a flag does not say, the environment may: --http-port is SHOAL_HTTP_PORT there. What neither says may stand in the
file that --settings names, as "http-port: 8000". The log begins with every setting and where it comes from.

Triton's flags that are not in this list are known, too: docs/flags.md says what becomes of each.`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			settings, err := readSettings(cmd.Flags(), paths, os.Environ())
			if err != nil {
				return err
			}
			if err := opts.check(); err != nil {
				return err
			}
			// Whoever reads stderr may leave. Without this the next record would end
			// the process.
			signal.Ignore(syscall.SIGPIPE)
			log, closeLog, err := openLog(opts.log, os.Stderr)
			if err != nil {
				return err
			}
			settings.tell(cmd.Context(), log)
			return errors.Join(serve(cmd.Context(), opts, log), closeLog())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	opts.define(cmd.Flags())
	return cmd
}

// serve runs until ctx ends, and then until everything has ended that it started.
func serve(ctx context.Context, opts serveOptions, log *slog.Logger) error {
	pace := pacer.New()
	defer pace.Close()
	onnxEngine := onnx.New(onnx.Options{Library: opts.onnxLibrary, Nice: opts.computeNice, Log: log})
	cores := machine.Cores(machine.Root())
	models := repository.New(repository.Options{
		Paths:   opts.repositories,
		Mode:    modes[opts.controlMode],
		Models:  opts.loadModels,
		Poll:    time.Duration(opts.pollSeconds) * time.Second,
		Loads:   opts.loadThreads,
		Retries: opts.loadRetries,
		Timeout: time.Duration(opts.loadTimeout) * time.Second,
		Queue:   batching.Bound{Requests: opts.maxQueue, Bytes: opts.maxQueueBytes},
		Lenient: !opts.strictReadiness,
		Strict:  opts.disableAutoComplete,
		Runners: map[string]repository.Runner{
			simulated.Name: {Engine: &simulated.Engine{Pacer: pace}},
			onnx.Name:      {Engine: onnxEngine, Device: sched.NewDevice(cores), Instances: onnx.Instances},
		},
		Cores:  cores,
		Memory: func() machine.Memory { return machine.ReadMemory(machine.Root()) },
		Pacer:  pace,
		Log:    log,
	})
	backend := server.New(models, server.Options{Log: log})
	faces, err := listen(backend, opts, log)
	if err != nil {
		return errors.Join(err, models.Close(), onnxEngine.Close())
	}
	switch err := models.Start(ctx); {
	case err == nil || ctx.Err() != nil: // all are there, or nobody wants them any more
	case opts.exitOnError:
		faces.failed <- err
	default:
		log.Error("serving without some models", "error", err)
	}
	var failed error
	select {
	case <-ctx.Done():
		log.Info("stopping", "reason", context.Cause(ctx), "seconds", opts.exitTimeout)
	case failed = <-faces.failed:
	}
	backend.Stop()
	faces.stop(time.Duration(opts.exitTimeout) * time.Second)
	err = errors.Join(failed, models.Close(), onnxEngine.Close())
	log.Info("stopped")
	return err
}

// faces are the protocols that the server speaks.
type faces struct {
	http    *http.Server
	grpc    *grpc.Server
	metrics *http.Server
	failed  chan error // size 4: each face fails once at most, and the first load
	all     sync.WaitGroup
}

func listen(backend *server.Server, opts serveOptions, log *slog.Logger) (*faces, error) {
	limits := kserve.Limits{}.WithDefaults()
	httpLimits := limits
	httpLimits.Body, httpLimits.Decoded = opts.maxInputSize, opts.maxInputSize
	figures := metrics.Options{Version: version, Log: log}
	if opts.allowCPUMetrics {
		figures.Machine = machine.Root()
	}
	f := &faces{
		http: &http.Server{
			Handler:           kservehttp.New(backend, backend, backend, kservehttp.Options{Version: version, Limits: httpLimits, Logging: loggingOf(log), Log: log}),
			MaxHeaderBytes:    limits.Header,
			ReadHeaderTimeout: 10 * time.Second, // a connection that says nothing is not kept for ever
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		grpc: kservegrpc.New(backend, backend, backend, kservegrpc.Options{Version: version, Limits: limits, Logging: loggingOf(log), Log: log}, opts.keepalive()),
		metrics: &http.Server{
			Handler:           metrics.New(backend, figures),
			ReadHeaderTimeout: 10 * time.Second,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		failed: make(chan error, 4),
	}
	var err error
	if opts.allowHTTP {
		err = f.serve("http", cmp.Or(opts.httpAddress, opts.address), opts.httpPort, f.http.Serve, log)
	}
	if err == nil && opts.allowGRPC {
		err = f.serve("grpc", cmp.Or(opts.grpcAddress, opts.address), opts.grpcPort, f.grpc.Serve, log)
	}
	if err == nil && opts.allowMetrics {
		err = f.serve("metrics", cmp.Or(opts.metricsAddress, opts.httpAddress, opts.address), opts.metricsPort, f.metrics.Serve, log)
	}
	if err != nil {
		f.stop(0)
		return nil, err
	}
	return f, nil
}

// serve begins to listen, and to answer who connects until the face is stopped.
func (f *faces) serve(protocol, address string, port int, answer func(net.Listener) error, log *slog.Logger) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("%s: %w; choose another with --%[1]s-port", protocol, err)
	}
	f.all.Go(func() {
		if err := answer(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			f.failed <- fmt.Errorf("%s: %w", protocol, err)
		}
	})
	log.Info("listening", "protocol", protocol, "address", listener.Addr().String())
	return nil
}

// stop lets the requests end that are here. Those that have not ended after the
// timeout are cancelled.
func (f *faces) stop(timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	giveUp := context.AfterFunc(ctx, f.grpc.Stop)
	f.all.Go(f.grpc.GracefulStop)
	f.all.Go(func() {
		if f.http.Shutdown(ctx) != nil {
			_ = f.http.Close() // its connections are cut off, and that is all there is to do
		}
		_ = f.metrics.Close() // nothing is lost that the next scrape would not have missed
	})
	f.all.Wait()
	giveUp()
}
