// Package listen opens all ports of a server, whatever their protocol, and closes them
// together after draining the requests in flight.
package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/kserve/kservelocal"
)

// A Drainer is the server behind the ports.
type Drainer interface {
	// Drain makes the server refuse new requests. Requests in flight continue.
	Drain()
	// InFlight returns the number of requests in flight.
	InFlight() int
}

// Options apply to all ports.
type Options struct {
	HeaderBytes   int           // maximum size of an HTTP request header
	HeaderTimeout time.Duration // time limit for receiving an HTTP request header
	BodyTimeout   time.Duration // time limit for a body that the handler does not read; 0 means no limit
	IdleTimeout   time.Duration // after which an idle connection is closed
	Connections   *Connections  // counts and limits those of TCP; nil means no limit
	Hosts         []string      // names by which HTTP clients may call the server, besides localhost and addresses; "*" means any

	TLS            *identity.TLS   // of HTTP ports; nil means that they are not encrypted
	Authentication *Authentication // of HTTP ports; nil means that callers are not authenticated

	Log *slog.Logger
}

// A Port is an address and the protocol served there. It is created by [HTTP], [GRPC] or
// [Local].
type Port struct {
	protocol string
	hint     string // suggested action if the address is not available
	listen   func() (net.Listener, error)
	open     func(Options) server
}

// A server serves one listener.
type server struct {
	serve func(net.Listener) error
	drain func(context.Context) // asks clients to reconnect elsewhere, and may wait for their requests; nil if the protocol cannot
	stop  func(context.Context) // closes all connections, and aborts requests in flight when ctx ends
}

// HTTP returns a port for a handler. hint is the suggested action if the address is not
// available.
func HTTP(protocol, address string, handler http.Handler, hint string) Port {
	return Port{protocol, hint, tcp(address), func(opts Options) server {
		if opts.Authentication != nil {
			handler = opts.Authentication.handler(handler)
		}
		s := newHTTPServer(newGuard(address, opts.Hosts, handler), opts)
		return server{serve: s.serve, drain: s.drain, stop: s.stop}
	}}
}

// AdminHTTP is [HTTP] for a port that accepts changes, if the server accepts them only
// there.
func AdminHTTP(protocol, address string, handler http.Handler, hint string) Port {
	return HTTP(protocol, address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(access.OnAdminPort(r.Context())))
	}), hint)
}

// GRPC returns a port for a gRPC server. m meters its connections, or is nil.
func GRPC(address string, s *grpc.Server, m *http2meter.Meter, hint string) Port {
	return Port{"grpc", hint, tcp(address), func(opts Options) server {
		var l atomic.Pointer[listener]
		return server{
			serve: func(from net.Listener) error {
				l.Store(newListener(from, opts.Connections))
				return s.Serve(counting{l.Load()})
			},
			drain: func(ctx context.Context) {
				m.Refuse(linger, false)
				l.Load().refuse(ctx)
				s.GracefulStop()
			},
			stop: func(ctx context.Context) {
				giveUp := context.AfterFunc(ctx, s.Stop)
				defer giveUp()
				m.Refuse(linger, true)
				l.Load().refuse(ctx)
				s.GracefulStop() // returns when the first GracefulStop does
			},
		}
	}}
}

// counting is a listener that counts its connections until they are closed. Those of HTTP are
// counted by their state.
type counting struct{ *listener }

// Accept implements [net.Listener].
func (l counting) Accept() (net.Conn, error) {
	c, err := l.listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.connections.count(c), nil
}

// Local returns a port for programs on the same machine. Path "auto" is the default path
// of clients.
func Local(path string, s *kservelocal.Server) Port {
	if path == "auto" {
		path = kservelocal.DefaultPath()
	}
	return Port{"local", "choose another with --local-socket", func() (net.Listener, error) { return kservelocal.Listen(path) }, func(Options) server {
		return server{
			serve: func(l net.Listener) error { return s.Serve(l.(*net.UnixListener)) },
			stop:  func(context.Context) { _ = s.Close() }, // the error is only about the socket's file
		}
	}}
}

func tcp(address string) func() (net.Listener, error) {
	return func() (net.Listener, error) {
		var c net.ListenConfig
		c.SetMultipathTCP(false) // a socket of MPTCP does not support the filter of rejectNew
		return c.Listen(context.Background(), "tcp", address)
	}
}

// Ports are open ports. Stop must be called to close them.
type Ports struct {
	backend    Drainer
	log        *slog.Logger
	servers    []server
	failed     chan error // each port fails at most once
	goroutines sync.WaitGroup
}

// Open opens all ports or none, and serves them until Stop is called.
func Open(backend Drainer, ports []Port, opts Options) (*Ports, error) {
	if opts.Connections == nil {
		opts.Connections = &Connections{Log: opts.Log}
	}
	p := &Ports{backend: backend, log: opts.Log, failed: make(chan error, len(ports))}
	for _, port := range ports { // of all ports, because Stop also stops those that never listened
		p.servers = append(p.servers, port.open(opts))
	}
	listeners, err := listenAll(ports)
	if err != nil {
		return nil, errors.Join(err, p.Stop(0))
	}
	for i, port := range ports {
		s, listener := p.servers[i], listeners[i]
		p.goroutines.Go(func() {
			if err := s.serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
				p.failed <- fmt.Errorf("%s: %w", port.protocol, err)
			}
		})
		opts.Log.Info("listening", "protocol", port.protocol, "address", listener.Addr().String())
	}
	return p, nil
}

// listenAll listens on all ports or none. The error names every port that is not available,
// so that the user can change all of them at once.
func listenAll(ports []Port) ([]net.Listener, error) {
	var listeners []net.Listener
	var errs []error
	for _, port := range ports {
		l, err := port.listen()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w; %s", port.protocol, err, port.hint))
			continue
		}
		listeners = append(listeners, l)
	}
	if len(errs) > 0 {
		for _, l := range listeners {
			errs = append(errs, l.Close())
		}
		return nil, errors.Join(errs...)
	}
	return listeners, nil
}

// Failed receives the error of a port that stopped serving before Stop was called.
func (p *Ports) Failed() <-chan error { return p.failed }

// Stop refuses new requests, waits for those in flight, and closes the ports. Requests
// that do not complete within the timeout are aborted; the error has their number.
func (p *Ports) Stop(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	p.backend.Drain()
	for _, s := range p.servers {
		if s.drain != nil {
			p.goroutines.Go(func() { s.drain(ctx) })
		}
	}
	unfinished := p.awaitIdle(ctx) // counted here, because none are left after stop
	for _, s := range p.servers {
		p.goroutines.Go(func() { s.stop(ctx) })
	}
	p.goroutines.Wait()
	if unfinished == 0 {
		return nil
	}
	return fmt.Errorf("aborted %d requests that did not complete within %v; raise --exit-timeout-secs to allow more time", unfinished, timeout)
}

// awaitIdle returns when no requests are in flight or ctx ends, with the number of
// requests that are left. It logs that number every second.
func (p *Ports) awaitIdle(ctx context.Context) int {
	poll, report := time.NewTicker(10*time.Millisecond), time.NewTicker(time.Second)
	defer poll.Stop()
	defer report.Stop()
	for {
		left := p.backend.InFlight()
		if left == 0 {
			return 0
		}
		select {
		case <-poll.C:
		case <-report.C:
			deadline, _ := ctx.Deadline()
			p.log.Info("waiting for requests to end", "requests", left, "seconds", int(time.Until(deadline).Seconds()))
		case <-ctx.Done():
			return p.backend.InFlight()
		}
	}
}
