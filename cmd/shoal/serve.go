package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/server"
)

// serveOptions are the flags of "shoal serve". Where Triton has a flag for the
// same thing, its name is Triton's.
type serveOptions struct {
	repository  string
	address     string
	httpPort    int
	grpcPort    int
	exitTimeout int
	onnxLibrary string
	computeNice int
}

func newServeCommand() *cobra.Command {
	var opts serveOptions
	cmd := &cobra.Command{
		Use:   "serve --model-repository DIR",
		Short: "Serve the models of a repository over HTTP and gRPC",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), opts) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.repository, "model-repository", "", "directory with a folder for each model")
	f.StringVar(&opts.address, "address", "127.0.0.1", "address to listen on")
	f.IntVar(&opts.httpPort, "http-port", 8000, "port for HTTP; 0 picks a free one")
	f.IntVar(&opts.grpcPort, "grpc-port", 8001, "port for gRPC; 0 picks a free one")
	f.IntVar(&opts.exitTimeout, "exit-timeout-secs", 30, "how long requests may take to end after SIGTERM, in seconds")
	f.StringVar(&opts.onnxLibrary, "onnxruntime-library", "", "`path` of the ONNX Runtime library; without it SHOAL_ONNXRUNTIME says, or it lies beside the program or in ../lib")
	f.IntVar(&opts.computeNice, "compute-nice", 10, "niceness of threads that compute, so that the network does not wait for them; 0 leaves threads as they are")
	if err := cmd.MarkFlagRequired("model-repository"); err != nil {
		panic(err)
	}
	return cmd
}

// serve runs until ctx ends, and then until everything has ended that it started.
func serve(ctx context.Context, opts serveOptions) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	pace := pacer.New()
	defer pace.Close()
	onnxEngine := onnx.New(onnx.Options{Library: opts.onnxLibrary, Nice: opts.computeNice, Log: log})
	cores := runtime.GOMAXPROCS(0)
	models := repository.New(repository.Options{
		Paths: []string{opts.repository},
		Runners: map[string]repository.Runner{
			simulated.Name: {Engine: &simulated.Engine{Pacer: pace}},
			onnx.Name:      {Engine: onnxEngine, Device: sched.NewDevice(cores), Instances: onnx.Instances},
		},
		Cores: cores,
		Pacer: pace,
		Log:   log,
	})
	backend := server.New(models, server.Options{Log: log})
	faces, err := listen(backend, opts, log)
	if err != nil {
		return errors.Join(err, models.Close(), onnxEngine.Close())
	}
	if err := models.Start(ctx); err != nil {
		faces.failed <- err
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
	http   *http.Server
	grpc   *grpc.Server
	failed chan error // size 3: each face fails once at most, and the first load
	all    sync.WaitGroup
}

func listen(backend *server.Server, opts serveOptions, log *slog.Logger) (*faces, error) {
	httpListener, err := net.Listen("tcp", net.JoinHostPort(opts.address, strconv.Itoa(opts.httpPort)))
	if err != nil {
		return nil, fmt.Errorf("http: %w; choose another with --http-port", err)
	}
	grpcListener, err := net.Listen("tcp", net.JoinHostPort(opts.address, strconv.Itoa(opts.grpcPort)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("grpc: %w; choose another with --grpc-port", err), httpListener.Close())
	}
	f := &faces{
		http: &http.Server{
			Handler:           kservehttp.New(backend, backend, backend, kservehttp.Options{Version: version, Log: log}),
			ReadHeaderTimeout: 10 * time.Second, // a connection that says nothing is not kept for ever
		},
		grpc:   kservegrpc.New(backend, backend, backend, kservegrpc.Options{Version: version, Log: log}),
		failed: make(chan error, 3),
	}
	f.all.Go(func() {
		if err := f.http.Serve(httpListener); !errors.Is(err, http.ErrServerClosed) {
			f.failed <- fmt.Errorf("http: %w", err)
		}
	})
	f.all.Go(func() {
		if err := f.grpc.Serve(grpcListener); err != nil {
			f.failed <- fmt.Errorf("grpc: %w", err)
		}
	})
	log.Info("listening", "protocol", "http", "address", httpListener.Addr())
	log.Info("listening", "protocol", "grpc", "address", grpcListener.Addr())
	return f, nil
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
	})
	f.all.Wait()
	giveUp()
}
