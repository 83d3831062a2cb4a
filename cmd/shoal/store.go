package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/mms/mmshttp"
	"github.com/shoal-serving/shoal/internal/pacer"
)

// storeOptions are the flags of a server in the way of MMS and TorchServe.
type storeOptions struct {
	dir     string
	models  []string
	config  string
	dialect string
}

func (o *storeOptions) define(f *pflag.FlagSet) {
	f.StringVar(&o.dir, "model-store", "", "`directory` of archives (.mar) for a server in the way of MMS and TorchServe")
	f.StringSliceVar(&o.models, "models", nil, "`archives` of the model store to load at the start, such as m=m.mar; all is all of them")
	f.StringVar(&o.config, "mms-config", "", "`file` config.properties of MMS or TorchServe")
	choiceVar(f, &o.dialect, "model-server", []string{"mms", "torchserve"}, "whose answers clients of the model store get")
}

// used reports whether models come from a store.
func (o *storeOptions) used() bool { return o.dir != "" || o.config != "" }

// settings reads the file, and what flags say besides.
func (o *storeOptions) settings() (*mms.Settings, error) {
	s := mms.NewSettings()
	if o.config != "" {
		text, err := os.ReadFile(o.config)
		if err != nil {
			return nil, fmt.Errorf("mms-config: %w", err)
		}
		if err := s.Parse(o.config, string(text), os.Getenv); err != nil {
			return nil, err
		}
	}
	if o.dir != "" {
		s.Store = o.dir
	}
	if len(o.models) > 0 {
		s.Load, s.All = mms.ParseLoad(o.models)
	}
	return s, nil
}

// besideStore are the flags that have a meaning for a server of a store. What others
// say stands in config.properties there.
var besideStore = strings.Fields(`
	settings model-store models mms-config model-server exit-on-error allow-metrics insecure-bind header-timeout-secs body-timeout-secs
	idle-timeout-secs exit-timeout-secs shutdown-delay compute-nice log-format log-verbose log-info log-warning log-error log-file`)

// check returns what is wrong with settings beside those of a store.
func (o *storeOptions) check(settings []setting) error {
	var errs []error
	for _, s := range settings {
		if o.used() && s.source != fromDefault && !slices.Contains(besideStore, s.name) {
			errs = append(errs, fmt.Errorf("%s: found %q beside --model-store or --mms-config, expected nothing, because it has no meaning there", s.name, s.value))
		}
	}
	return errors.Join(errs...)
}

// serveStore serves the models of a store until ctx ends, and then until everything
// has ended that it started.
func serveStore(ctx context.Context, opts serveOptions, settings *mms.Settings, log *slog.Logger) error {
	if len(settings.Ignored) > 0 {
		log.Warn("properties have no effect", "keys", strings.Join(settings.Ignored, " "))
	}
	pace := pacer.New()
	defer pace.Close()
	cores := machine.Cores(machine.Root())
	engine := python.New(python.Options{Cores: cores, Nice: opts.computeNice, Log: log})
	server, err := mms.New(mms.Options{
		Settings: settings, Dialect: mms.Dialect(opts.store.dialect), Engine: engine, Pacer: pace, Cores: cores, Version: version, Log: log,
	})
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	end := func() error { return errors.Join(server.Close(), engine.Close()) }
	faces, err := listenForStore(server, settings, opts, log)
	if err != nil {
		return errors.Join(err, end())
	}
	return live(ctx, opts, life{
		start: server.Start, leave: server.Stop, end: end, failed: faces.failed,
		stop: func(timeout time.Duration) error { return faces.stop(server, timeout, log) },
	}, log)
}

// addresses are those of a config.properties, as settings, so that they are checked
// with the others.
func addresses(s *mms.Settings) []setting {
	var all []setting
	for _, one := range [][2]string{{"inference_address", s.Inference}, {"management_address", s.Management}, {"metrics_address", s.Metrics}} {
		host, _, _ := net.SplitHostPort(one[1]) // it was joined
		all = append(all, setting{name: one[0], value: host})
	}
	return all
}

// storeFaces are the ports of a server in the way of MMS.
type storeFaces struct {
	servers []*http.Server
	failed  chan error // size 4: each port fails once at most, and the first load
	all     sync.WaitGroup
}

// listenForStore opens the ports: inference and management may share one.
func listenForStore(server *mms.Server, settings *mms.Settings, opts serveOptions, log *slog.Logger) (*storeFaces, error) {
	f := &storeFaces{failed: make(chan error, 4)}
	face := mmshttp.Options{MaxRequest: settings.MaxRequest, BodyTimeout: seconds(opts.bodyTimeout), Log: log}
	type port struct {
		protocol, address string
		handler           http.Handler
	}
	ports := []port{{"inference", settings.Inference, mmshttp.Inference(server, face)}, {"management", settings.Management, mmshttp.Management(server, face)}}
	if settings.Inference == settings.Management && !strings.HasSuffix(settings.Inference, ":0") {
		ports = []port{{"inference", settings.Inference, mmshttp.Both(server, face)}}
	}
	if opts.allowMetrics {
		ports = append(ports, port{"metrics", settings.Metrics, mmshttp.Metrics(server)})
	}
	for _, p := range ports {
		listener, err := net.Listen("tcp", p.address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s_address: %w; choose another in the file of --mms-config", p.protocol, err), f.stop(server, 0, log))
		}
		h := &http.Server{
			Handler: p.handler, MaxHeaderBytes: kserve.Limits{}.WithDefaults().Header, ReadHeaderTimeout: seconds(opts.headerTimeout), IdleTimeout: seconds(opts.idleTimeout),
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		}
		f.servers = append(f.servers, h)
		f.all.Go(func() {
			if err := h.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
				f.failed <- fmt.Errorf("%s: %w", p.protocol, err)
			}
		})
		log.Info("listening", "protocol", p.protocol, "address", listener.Addr().String())
	}
	return f, nil
}

// stop lets the predictions end that are here, refuses others, and closes the ports.
func (f *storeFaces) stop(server *mms.Server, timeout time.Duration, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	server.Drain()
	cut := await(ctx, server.Inside, log)
	for _, h := range f.servers {
		if h.Shutdown(ctx) != nil {
			_ = h.Close() // its connections are cut off, and that is all there is to do
		}
	}
	f.all.Wait()
	return cutOff(cut, timeout)
}
