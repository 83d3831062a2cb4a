package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"
)

// wireBuffer is the size of the read buffer.
const wireBuffer = 16 << 10

// wires is a pool of HTTP/1.1 connections for encoded requests. Go's own client uses a
// goroutine for writing and one for reading, and more than twice the CPU time, which a
// server on the same machine lacks. Here the sender writes once, and reads.
type wires struct {
	tls *tls.Config // of https; nil means the defaults
	to  *url.URL

	mu   sync.Mutex // guards the following
	idle []*wire    // most recently used last
}

// A wire is one connection. It must not be used concurrently.
type wire struct {
	net.Conn
	in    *bufio.Reader
	abort func() // unblocks reads and writes, permanently
	used  bool   // it has had an answer
}

// exchange sends a request, and reads and discards the answer.
func (ws *wires) exchange(ctx context.Context, request []byte) error {
	for {
		w, err := ws.take(ctx)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, w.abort)
		keep, err := w.exchange(request)
		switch {
		case !stop():
			_ = w.Close() // unusable after the end of ctx
			return ctx.Err()
		case errors.Is(err, errStale) && w.used:
			_ = w.Close() // the server closed it while it was idle
			continue
		case !keep:
			_ = w.Close()
			return err
		}
		w.used = true
		ws.mu.Lock()
		ws.idle = append(ws.idle, w)
		ws.mu.Unlock()
		return err
	}
}

// take returns an idle connection, or a new one.
func (ws *wires) take(ctx context.Context) (*wire, error) {
	ws.mu.Lock()
	if n := len(ws.idle); n > 0 {
		w := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		ws.mu.Unlock()
		return w, nil
	}
	ws.mu.Unlock()
	port := ws.to.Port()
	if port == "" {
		port = ws.to.Scheme // the name of the scheme is also that of its port
	}
	address := net.JoinHostPort(ws.to.Hostname(), port)
	var conn net.Conn
	var err error
	if ws.to.Scheme == "https" {
		conn, err = (&tls.Dialer{Config: ws.tls}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, context.DeadlineExceeded // dialing has no other deadline
	}
	if err != nil {
		return nil, err
	}
	return &wire{
		Conn: conn, in: bufio.NewReaderSize(conn, wireBuffer),
		abort: func() { _ = conn.SetDeadline(time.Unix(1, 0)) },
	}, nil
}

// close closes the idle connections.
func (ws *wires) close() error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var all error
	for _, w := range ws.idle {
		all = errors.Join(all, w.Close())
	}
	ws.idle = nil
	return all
}

// errStale means that the connection ended before the first byte of an answer.
var errStale = errors.New("the server closed the connection without an answer")

// exchange sends a request and reads its answer. keep reports whether the connection can be
// reused, which is also the case after an error response.
func (w *wire) exchange(request []byte) (keep bool, err error) {
	if _, err := w.Write(request); err != nil {
		return false, fmt.Errorf("%w: %w", errStale, err)
	}
	if _, err := w.in.Peek(1); err != nil {
		return false, fmt.Errorf("%w: %w", errStale, err)
	}
	answer, err := http.ReadResponse(w.in, nil)
	if err != nil {
		return false, err
	}
	if answer.StatusCode != http.StatusOK {
		err = sentence(answer.Status, answer.Body)
	}
	_, unread := io.Copy(io.Discard, answer.Body)
	unread = errors.Join(unread, answer.Body.Close())
	return unread == nil && !answer.Close, errors.Join(err, unread)
}
