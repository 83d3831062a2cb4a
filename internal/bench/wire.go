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
	"sync"
	"time"
)

// wireBuffer is how much of an answer is read at once.
const wireBuffer = 16 << 10

// wires are connections over which requests are sent in HTTP/1.1, each as bytes that
// are ready. Go's own client passes each request to a goroutine that writes and its
// answer to one that reads, and takes more than twice the CPU, which a server on the
// same machine lacks. Here the sender writes once, and reads.
type wires struct {
	to *url.URL

	mu   sync.Mutex // guards the following
	idle []*wire    // the last one used is taken first
}

// A wire is one connection. It has one user at a time.
type wire struct {
	net.Conn
	in    *bufio.Reader
	abort func() // ends what waits, for good
	used  bool   // it has answered before
}

// exchange sends a request, and reads the answer to its end and drops it.
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
			_ = w.Close() // of no use after the end of ctx
			return ctx.Err()
		case errors.Is(err, errStale) && w.used:
			_ = w.Close() // the server closed it while it was unused
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

// take returns a connection that is idle, or a new one.
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
		port = ws.to.Scheme // a name that stands for its port
	}
	address := net.JoinHostPort(ws.to.Hostname(), port)
	var conn net.Conn
	var err error
	if ws.to.Scheme == "https" {
		conn, err = (&tls.Dialer{}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	return &wire{
		Conn: conn, in: bufio.NewReaderSize(conn, wireBuffer),
		abort: func() { _ = conn.SetDeadline(time.Unix(1, 0)) },
	}, nil
}

// close ends the connections that are idle.
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

// errStale is that of a connection that ended before an answer began.
var errStale = errors.New("the server closed the connection without an answer")

// exchange sends a request and reads its answer. keep says whether the connection
// can be used again, which it can after an error that the server answered with.
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
