package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/pause"
)

// demoModel is the model that packages carry; packaging/models has its configuration.
const demoModel = "magika"

// demoModels returns the repository with the model that comes with packages. It lies beside
// the directory of the program, as the library does.
func demoModels() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("--demo: %w", err)
	}
	models := filepath.Join(filepath.Dir(program), "..", "models")
	if _, err := os.Stat(demoRequest(models)); err != nil {
		return "", errors.New("--demo: this program was built without a model; packages have one, and so has the result of make dist")
	}
	return models, nil
}

// demoRequest returns the file with a request for the model.
func demoRequest(models string) string { return filepath.Join(models, demoModel, "request.json") }

// demoRequests returns a file with a request for each model that has one.
func (o *serveOptions) demoRequests() map[string]string {
	if !o.demo {
		return nil
	}
	return map[string]string{demoModel: demoRequest(o.repositories[len(o.repositories)-1])}
}

// demoOptions are the flags of shoal demo.
type demoOptions struct {
	port      int
	clients   int
	noBrowser bool
}

func newDemoCommand() *cobra.Command {
	var opts demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a model under changing load in the browser",
		Long: `Demo serves the small model that comes with the packages, sends it requests from a changing number of clients, and
opens the dashboard in a browser. It listens on this machine only, and ends with Ctrl-C.`,
		Example: `  shoal demo
  shoal demo --no-browser --clients 8`,
		Args: arguments(0, 0, "demo takes no arguments; to serve a model of yours, use shoal serve"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.clients < 1 || opts.port < 0 || opts.port > 65535 {
				return misuse{errors.New("--clients must be at least 1, and --http-port a port")}
			}
			models, err := demoModels()
			if err != nil {
				return err
			}
			return runDemo(cmd.Context(), opts, models, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.IntVar(&opts.port, "http-port", 8000, "`port` of the page; 0 means any that is free")
	f.IntVar(&opts.clients, "clients", 48, "largest `number` of clients at a time")
	f.BoolVar(&opts.noBrowser, "no-browser", false, "do not open a browser")
	return cmd
}

// demoReady is how long the server of a demo may take to load its model.
const demoReady = time.Minute

// runDemo serves the models, and puts load on them until ctx ends or the server fails.
func runDemo(ctx context.Context, opts demoOptions, models string, stdout, stderr io.Writer) error {
	if opts.port == 0 {
		var err error
		if opts.port, err = freePort(ctx); err != nil {
			return err
		}
	}
	address := "127.0.0.1:" + strconv.Itoa(opts.port)
	c, err := client.NewHTTP(address, client.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serve := newServeCommand()
	serve.SilenceUsage, serve.SilenceErrors = true, true
	serve.SetArgs([]string{models, "--http-address=127.0.0.1", "--http-port=" + strconv.Itoa(opts.port), "--allow-grpc=false", "--allow-metrics=false", "--log-info=false"})
	serve.SetOut(stdout)
	serve.SetErr(stderr)
	served := make(chan struct{})
	var failed error // of the server, once served is closed
	go func() {
		defer close(served)
		failed = serve.ExecuteContext(ctx)
	}()
	load := demoLoad{client: c}
	if ready, err := load.await(ctx, models, served); !ready {
		stop()
		<-served
		return errors.Join(err, failed)
	}
	_, _ = fmt.Fprintf(stdout, "The dashboard is at http://%s/ and shows %s with up to %d clients. Ctrl-C ends it.\n", address, demoModel, opts.clients)
	if !opts.noBrowser {
		openPage(ctx, "http://"+address+"/#/"+demoModel+"/1")
	}
	var clients sync.WaitGroup
	for n := range opts.clients {
		clients.Go(func() { load.send(ctx, n) })
	}
	clients.Go(func() { load.vary(ctx, opts.clients) })
	<-served
	stop()
	clients.Wait()
	return failed
}

// freePort returns a port that is free now.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// A demoLoad is the clients of a demo, each of which sends one request after the other.
type demoLoad struct {
	client *client.Client
	inputs []client.Tensor
	active atomic.Int64 // number of clients that send requests
}

// await returns true when the model is ready, and reads the request for it. It returns false if the
// server ends, which closes served.
func (l *demoLoad) await(ctx context.Context, models string, served <-chan struct{}) (ready bool, err error) {
	patience := time.NewTimer(demoReady)
	defer patience.Stop()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		if ready, err := l.client.ModelReady(ctx, demoModel, ""); err == nil && ready {
			break
		}
		select {
		case <-served:
			return false, nil
		case <-patience.C:
			return false, fmt.Errorf("the model was not ready after %v", demoReady)
		case <-retry.C:
		}
	}
	meta, err := l.client.Metadata(ctx, demoModel, "")
	if err != nil {
		return false, err
	}
	var req client.Request
	err = (&inferOptions{json: demoRequest(models)}).fill(&req, meta, nil)
	l.inputs = req.Inputs
	return err == nil, err
}

// send sends requests while client n is active.
func (l *demoLoad) send(ctx context.Context, n int) {
	for ctx.Err() == nil {
		if int64(n) >= l.active.Load() {
			_ = pause.For(ctx, 100*time.Millisecond)
			continue
		}
		if _, err := l.client.Infer(ctx, &client.Request{Model: demoModel, Inputs: l.inputs}); err != nil {
			_ = pause.For(ctx, time.Second) // the dashboard shows it
		}
	}
}

// vary changes how many clients are active every ten seconds: few, many, and back.
func (l *demoLoad) vary(ctx context.Context, most int) {
	shares := []float64{0.1, 0.3, 1, 0.3, 0.02}
	for i := 0; ctx.Err() == nil; i++ {
		l.active.Store(max(1, int64(float64(most)*shares[i%len(shares)])))
		_ = pause.For(ctx, 10*time.Second)
	}
}

// openPage opens a page in the user's browser, if there is a screen. That it did not open is
// not an error: the address is printed.
func openPage(ctx context.Context, url string) {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	cmd := exec.CommandContext(ctx, program, url)
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }() // it ends when the browser has taken the address
	}
}
