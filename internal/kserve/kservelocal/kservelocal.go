// Package kservelocal is for clients on the same machine: frames over a Unix socket, and
// tensors in memory that is passed by its descriptor. The Python package speaks it.
//
// It knows frames and memory. What runs a model is behind [kserve.Backend]. It has no
// way to load models, and none for models that answer more than once: those clients have
// HTTP and gRPC for.
//
// Who can open the socket is the user that the server runs as, and nobody else. Even so
// nothing that a client sends is believed: a program with a defect shall end itself, and
// not the server that others use.
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

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

const (
	// What a client may have at once.
	maxCalls  = 256
	maxShared = 1 << 30 // bytes of memory

	// What all clients may have at once. The kernel has some 65,000 mappings for a
	// process, which needs some of them itself.
	maxConnections = 1024
	maxMemories    = 8192
)

// Options of a server. The zero Options work.
type Options struct {
	// Limits bound what a client can send.
	Limits kserve.Limits

	// Unused is called when for so long nobody was connected, also in the beginning.
	// Zero means never.
	UnusedAfter time.Duration
	Unused      func()

	// Log takes what is wrong with the server itself. Nil means [slog.Default].
	Log *slog.Logger
}

// A Server answers the clients of one socket.
type Server struct {
	backend kserve.Backend
	catalog kserve.Catalog
	opts    Options
	life    context.Context //nolint:containedctx // of the connections, which outlive the call that accepts them
	end     context.CancelFunc
	all     sync.WaitGroup // connections

	mu          sync.Mutex // guards the following
	listener    *net.UnixListener
	connections map[*connection]struct{}
	accepted    uint64
	memories    int // of all connections
	closed      bool
	leave       *time.Timer
}

// New returns a server. The caller closes it.
func New(backend kserve.Backend, catalog kserve.Catalog, opts Options) *Server {
	opts.Limits = opts.Limits.WithDefaults()
	opts.Log = cmp.Or(opts.Log, slog.Default())
	s := &Server{backend: backend, catalog: catalog, opts: opts, connections: map[*connection]struct{}{}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// DefaultPath returns where the socket of a server is that clients of this user find by
// themselves: in the directory that the system gives the user for the time of the
// session, or in one of the user's own among the temporary files.
func DefaultPath() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "shoal", "shoal.sock")
	}
	return filepath.Join(os.TempDir(), "shoal-"+strconv.Itoa(os.Getuid()), "shoal.sock")
}

// Listen makes a socket at a path, which the server's user alone can open. A socket that
// a server has left behind, and where nobody listens any more, is replaced.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode is set before the socket has a name, so that there is no time in between.
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

// removeStale removes a socket where nobody listens.
func removeStale(path string) error {
	about, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case about.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("found a file at %s, expected nothing or a socket; choose another path", path)
	}
	if conn, err := net.Dial("unixpacket", path); err == nil {
		_ = conn.Close() // it was only to see whether somebody listens
		return fmt.Errorf("found another server at %s, expected none; stop it, or choose another path", path)
	}
	return os.Remove(path)
}

// Serve answers those who connect, until the server is closed. It takes the listener
// over, and is called once.
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
			s.opts.Log.Warn("a local client could not be let in", "error", err)
			time.Sleep(50 * time.Millisecond) // somebody may have left by then
		case err != nil:
			return err
		default:
			s.welcome(socket)
		}
	}
}

func (s *Server) open(l *net.UnixListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = l
	s.restLocked()
	return !s.closed
}

// welcome begins a connection.
func (s *Server) welcome(socket *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
	c := newConnection(s, socket, kserve.ClientOf("local "+strconv.FormatUint(s.accepted, 10)))
	if s.closed {
		_ = socket.Close() // as all others were
		return
	}
	s.connections[c] = struct{}{}
	if s.leave != nil {
		s.leave.Stop()
	}
	full := len(s.connections) > maxConnections
	s.all.Go(func() {
		if full {
			c.fail(0, infer.Errorf(infer.Overloaded, "found more than %d connections, expected no more; close some", maxConnections))
		} else {
			c.serve(s.life)
		}
		_ = socket.Close() // nobody is there to be told
		s.goodbye(c)
	})
}

func (s *Server) goodbye(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, c)
	s.restLocked()
}

// restLocked begins to count the time without clients, if there are none.
func (s *Server) restLocked() {
	if s.opts.UnusedAfter == 0 || s.closed || len(s.connections) > 0 {
		return
	}
	s.leave = time.AfterFunc(s.opts.UnusedAfter, func() {
		s.mu.Lock()
		unused := !s.closed && len(s.connections) == 0
		s.mu.Unlock()
		if unused { // and nobody came when the time was over
			s.opts.Unused()
		}
	})
}

// hold counts n more memories, and reports whether there may be so many.
func (s *Server) hold(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memories+n > maxMemories {
		return false
	}
	s.memories += n
	return true
}

// Close cuts all clients off, and returns when nothing is left of them.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.leave != nil {
		s.leave.Stop()
	}
	var err error
	if s.listener != nil {
		err = s.listener.Close()
	}
	for c := range s.connections {
		_ = c.socket.Close() // its client sees that
	}
	s.mu.Unlock()
	s.end()
	s.all.Wait()
	return err
}
