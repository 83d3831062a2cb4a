// Package listen opens every port of a server, whatever protocol is spoken there, and
// closes them together: requests that are in flight end, others are sent elsewhere.
package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservelocal"
)

// A Drainer is the server behind the ports.
type Drainer interface {
	// Drain refuses requests from now on. Those that are in flight go on.
	Drain()
	// InFlight returns how many there are.
	InFlight() int
}

// Options are those of all ports.
type Options struct {
	HeaderBytes   int           // that the header of an HTTP request may have
	HeaderTimeout time.Duration // how long it may take to come
	IdleTimeout   time.Duration // after which a connection without requests is closed
	Log           *slog.Logger
}

// A Port is an address and what answers there. It is made by [HTTP], [GRPC] or [Local].
type Port struct {
	protocol string
	hint     string // what to do if the address cannot be had
	listen   func() (net.Listener, error)
	open     func(Options) server
}

// A server answers on one listener.
type server struct {
	serve func(net.Listener) error
	leave func()                // asks clients to connect elsewhere; nil if there is no way to. It may wait for their requests
	stop  func(context.Context) // ends all connections, and cuts off requests when ctx ends
}

// HTTP returns a port for a handler. hint says what to do if the address cannot be had.
func HTTP(protocol, address string, handler http.Handler, hint string) Port {
	return Port{protocol, hint, tcp(address), func(opts Options) server {
		s := &http.Server{
			Handler: handler, MaxHeaderBytes: opts.HeaderBytes, ReadHeaderTimeout: opts.HeaderTimeout, IdleTimeout: opts.IdleTimeout,
			ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelWarn),
		}
		return server{
			serve: func(l net.Listener) error { return s.Serve(kservehttp.Listener(s, l)) },
			// The port stays open meanwhile: who comes late is told so, and every answer asks
			// the client to connect anew.
			leave: func() { s.SetKeepAlivesEnabled(false) },
			stop: func(ctx context.Context) {
				if s.Shutdown(ctx) != nil {
					_ = s.Close() // its connections are cut off, and that is all there is to do
				}
			},
		}
	}}
}

// GRPC returns a port for a gRPC server.
func GRPC(address string, s *grpc.Server, hint string) Port {
	return Port{"grpc", hint, tcp(address), func(Options) server {
		return server{
			serve: s.Serve,
			leave: s.GracefulStop,
			stop: func(ctx context.Context) {
				giveUp := context.AfterFunc(ctx, s.Stop)
				defer giveUp()
				s.GracefulStop() // returns when the first one does
			},
		}
	}}
}

// Local returns a port for programs on this machine. Path "auto" is where they look for
// it.
func Local(path string, s *kservelocal.Server) Port {
	if path == "auto" {
		path = kservelocal.DefaultPath()
	}
	return Port{"local", "choose another with --local-socket", func() (net.Listener, error) { return kservelocal.Listen(path) }, func(Options) server {
		return server{
			serve: func(l net.Listener) error { return s.Serve(l.(*net.UnixListener)) },
			stop:  func(context.Context) { _ = s.Close() }, // it is only about the socket's file
		}
	}}
}

func tcp(address string) func() (net.Listener, error) {
	return func() (net.Listener, error) { return net.Listen("tcp", address) }
}

// Ports are those that are open.
type Ports struct {
	backend Drainer
	log     *slog.Logger
	servers []server
	failed  chan error // each port fails once at most
	all     sync.WaitGroup
}

// Open opens ports, all or none, and answers on them until they are stopped.
func Open(backend Drainer, ports []Port, opts Options) (*Ports, error) {
	p := &Ports{backend: backend, log: opts.Log, failed: make(chan error, len(ports))}
	for _, port := range ports { // all of them, because those that never listen are stopped, too
		p.servers = append(p.servers, port.open(opts))
	}
	for i, port := range ports {
		listener, err := port.listen()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w; %s", port.protocol, err, port.hint), p.Stop(0))
		}
		s := p.servers[i]
		p.all.Go(func() {
			if err := s.serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
				p.failed <- fmt.Errorf("%s: %w", port.protocol, err)
			}
		})
		opts.Log.Info("listening", "protocol", port.protocol, "address", listener.Addr().String())
	}
	return p, nil
}

// Failed receives the error of a port that answers no more, although nobody stopped it.
func (p *Ports) Failed() <-chan error { return p.failed }

// Stop lets the requests end that are in flight, refuses others, and closes the ports.
// Those that have not ended after the timeout are cut off, and counted in the error.
func (p *Ports) Stop(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	p.backend.Drain()
	for _, s := range p.servers {
		if s.leave != nil {
			p.all.Go(s.leave)
		}
	}
	cut := p.await(ctx) // counted before they are: then they are gone
	for _, s := range p.servers {
		p.all.Go(func() { s.stop(ctx) })
	}
	p.all.Wait()
	if cut == 0 {
		return nil
	}
	return fmt.Errorf("requests that were cut off: %d, because they had not ended after %v; --exit-timeout-secs allows more", cut, timeout)
}

// await returns when no request is in flight any more, or when ctx ends, and how many
// are left. Each second it logs for how many it waits.
func (p *Ports) await(ctx context.Context) int {
	look, tell := time.NewTicker(10*time.Millisecond), time.NewTicker(time.Second)
	defer look.Stop()
	defer tell.Stop()
	for {
		left := p.backend.InFlight()
		if left == 0 {
			return 0
		}
		select {
		case <-look.C:
		case <-tell.C:
			until, _ := ctx.Deadline()
			p.log.Info("waiting for requests to end", "requests", left, "seconds", int(time.Until(until).Seconds()))
		case <-ctx.Done():
			return p.backend.InFlight()
		}
	}
}
