package listen

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/pause"
)

// linger is how long clients have, when the server stops, for one more request on a
// connection that is open. The response asks them to close it. If the server closed it
// first, a request that is on its way would get no response.
const linger = time.Second

// unlimited is the time for a body without a limit. A connection has a deadline until the body is
// there.
const unlimited = 100 * 365 * 24 * time.Hour

// An httpServer serves HTTP on one port.
type httpServer struct {
	http.Server

	listener    atomic.Pointer[listener] // nil until serve
	draining    kservehttp.Drain
	connections atomic.Int64
	all         *Connections
	tls         *identity.TLS // nil if connections are not encrypted
}

func newHTTPServer(handler http.Handler, opts Options) *httpServer {
	const none = -1 // 0 would mean ReadTimeout
	s := &httpServer{all: opts.Connections, tls: opts.TLS, Server: http.Server{
		MaxHeaderBytes: opts.HeaderBytes, ReadHeaderTimeout: cmp.Or(opts.HeaderTimeout, none), IdleTimeout: cmp.Or(opts.IdleTimeout, none),
		ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelWarn),
	}}
	// For bodies that handlers leave unread: net/http waits for them before it answers. Handlers
	// that read a body extend it, and remove it when the body has arrived: see kservehttp.Drain.
	s.ReadTimeout = opts.HeaderTimeout + cmp.Or(opts.BodyTimeout, unlimited)
	s.ConnState = s.count
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Begun() {
			w.Header().Set("Connection", "close")
		}
		if r.ContentLength == 0 {
			// There is no body, and the answer may last longer.
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		}
		handler.ServeHTTP(w, r)
	})
	return s
}

func (s *httpServer) serve(l net.Listener) error {
	s.listener.Store(newListener(l, s.all))
	accepted := kservehttp.Listener(&s.Server, s.listener.Load(), &s.draining)
	if s.tls != nil {
		accepted = tls.NewListener(accepted, s.tls.Config())
	}
	return s.Serve(accepted)
}

// count counts open connections.
func (s *httpServer) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.connections.Add(1)
		s.all.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.connections.Add(-1)
		s.all.open.Add(-1)
	case http.StateActive, http.StateIdle:
	}
}

// drain makes every response ask the client to close its connection. The port stays open,
// so that clients learn why their requests are refused, and probes are answered. Bodies that are
// not there soon are not waited for.
func (s *httpServer) drain(context.Context) { s.draining.Begin(linger) }

// stop closes the port and then the connections. Those that are open get a response to one
// more request, if it comes soon. Requests that still run when ctx ends are aborted.
func (s *httpServer) stop(ctx context.Context) {
	s.listener.Load().refuse(ctx)
	lingering, cancel := context.WithTimeout(ctx, linger)
	defer cancel()
	for s.connections.Load() > 0 && lingering.Err() == nil {
		_ = pause.For(lingering, 10*time.Millisecond)
	}
	s.draining.CloseSilent()
	if s.Shutdown(ctx) != nil {
		_ = s.Close() // all connections are closed in any case
	}
}
