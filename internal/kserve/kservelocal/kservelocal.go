// Package kservelocal serves clients on the same machine: frames over a Unix socket, and
// tensors in memory that is shared by file descriptor. The Python package uses it.
//
// It handles frames and memory; [kserve.Backend] runs models. It supports neither loading
// models nor decoupled models: clients use HTTP or gRPC for those.
//
// Only the user that the server runs as can open the socket. Even so, everything that a
// client sends is validated: a faulty program may crash itself, but not the server, which
// others use.
package kservelocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/trace"
)

const (
	// Limits per client.
	maxCalls  = 256
	maxShared = 1 << 30 // bytes of shared memory

	// Limits for all clients together. Linux allows a process about 65,000 mappings, of
	// which the server needs some itself.
	maxConnections = 1024
	maxMemories    = 8192
)

// Options configure a Server. The zero value is usable.
type Options struct {
	// Limits bound what a client can send.
	Limits kserve.Limits

	// Unused is called when no client has been connected for UnusedAfter, also if none ever
	// connected. Zero means never.
	UnusedAfter time.Duration
	Unused      func()

	// Tracer decides which requests are traced. Nil means that none are.
	Tracer *trace.Tracer

	// Log receives internal errors. Nil means [slog.Default].
	Log *slog.Logger
}

// A Server serves the clients of one socket.
type Server struct {
	backend kserve.Backend
	catalog kserve.Catalog
	opts    Options
	ctx     context.Context //nolint:containedctx // of the connections, which outlive the call that accepts them
	cancel  context.CancelFunc
	serving sync.WaitGroup // goroutines of connections

	mu          sync.Mutex // guards the following
	listener    *net.UnixListener
	connections map[*connection]struct{}
	accepted    uint64
	memories    int // of all connections
	closed      bool
	idleTimer   *time.Timer
}

// New returns a server. The caller closes it.
func New(backend kserve.Backend, catalog kserve.Catalog, opts Options) *Server {
	opts.Limits = opts.Limits.WithDefaults()
	opts.Log = cmp.Or(opts.Log, slog.Default())
	s := &Server{backend: backend, catalog: catalog, opts: opts, connections: map[*connection]struct{}{}}
	// The socket is open to the user that runs the server, and to no other.
	s.ctx, s.cancel = context.WithCancel(access.WithCaller(context.Background(), access.Self))
	return s
}

// DefaultPath returns the path of the socket that clients of the same user try by default:
// in XDG_RUNTIME_DIR, or in a directory of the user below the temporary one.
func DefaultPath() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "shoal", "shoal.sock")
	}
	return filepath.Join(os.TempDir(), "shoal-"+strconv.Itoa(os.Getuid()), "shoal.sock")
}

// Listen creates a socket at path that only the server's user can open. It replaces a
// stale socket on which no server listens.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// Set the mode before the socket is bound, so that it is never open to others.
	only := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	l, err := only.Listen(context.Background(), "unixpacket", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// removeStale removes a socket on which no server listens.
func removeStale(path string) error {
	about, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case about.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is a file, and not a socket; remove it, or choose another path", path)
	}
	if conn, err := net.Dial("unixpacket", path); err == nil {
		_ = conn.Close() // only probed
		return fmt.Errorf("another server listens on %s; stop it, or choose another path", path)
	}
	return os.Remove(path)
}

// Serve accepts clients until the server is closed. It takes ownership of l, and must be
// called once.
func (s *Server) Serve(l *net.UnixListener) error {
	if !s.open(l) {
		return l.Close()
	}
	for {
		socket, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED):
			s.opts.Log.Warn("failed to accept a local client", "error", err)
			time.Sleep(50 * time.Millisecond) // a connection may have closed by then
		case err != nil:
			return err
		default:
			s.accept(socket)
		}
	}
}

func (s *Server) open(l *net.UnixListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = l
	s.startIdleTimerLocked()
	return !s.closed
}

// accept starts a connection.
func (s *Server) accept(socket *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
	c := newConnection(s, socket, kserve.ClientID("local "+strconv.FormatUint(s.accepted, 10)))
	if s.closed {
		_ = socket.Close() // the server is closed
		return
	}
	s.connections[c] = struct{}{}
	if s.idleTimer != nil {
		s.idleTimer.Stop()
	}
	full := len(s.connections) > maxConnections
	s.serving.Go(func() {
		if full {
			c.fail(0, infer.Errorf(infer.Overloaded, "the server has %d connections, which is the limit; close some", maxConnections))
		} else {
			c.serve(s.ctx)
		}
		_ = socket.Close() // the connection has ended
		s.removeConnection(c)
	})
}

func (s *Server) removeConnection(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, c)
	s.startIdleTimerLocked()
}

// startIdleTimerLocked starts the idle timer if no clients are connected.
func (s *Server) startIdleTimerLocked() {
	if s.opts.UnusedAfter == 0 || s.closed || len(s.connections) > 0 {
		return
	}
	s.idleTimer = time.AfterFunc(s.opts.UnusedAfter, func() {
		s.mu.Lock()
		unused := !s.closed && len(s.connections) == 0
		s.mu.Unlock()
		if unused { // no client has connected meanwhile
			s.opts.Unused()
		}
	})
}

// reserveMemories adds n to the number of memories, and reports whether it is within the
// limit.
func (s *Server) reserveMemories(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memories+n > maxMemories {
		return false
	}
	s.memories += n
	return true
}

// closeTimeout is how long a client may take to read the answers that are left when the server
// is closed. It is changed by tests only.
var closeTimeout = time.Second

// Close disconnects all clients, and returns when all their goroutines have ended. Calls that
// have ended are still answered.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.idleTimer != nil {
		s.idleTimer.Stop()
	}
	var err error
	if s.listener != nil {
		err = s.listener.Close()
	}
	for c := range s.connections {
		// Its goroutine closes the socket after the last answer. Errors mean that the client has left.
		_ = c.socket.CloseRead()
		_ = c.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
	}
	s.mu.Unlock()
	s.cancel()
	s.serving.Wait()
	return err
}
