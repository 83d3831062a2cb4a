package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// wireBuffer is how much of an answer is read at once.
const wireBuffer = 16 << 10

// wires are connections over which requests are sent in HTTP/1.1, each as bytes that
// are ready. Go's own client passes a request to a goroutine that writes and its
// answer to one that reads, and makes a map of each header. It took 55 to 65 µs of
// CPU a request where this takes 20 to 28, which a server on the same machine lacks.
// Here, who sends writes once, and reads.
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
			_ = w.Close() // by the server, while nobody used it
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
	h, err := w.header()
	if err != nil {
		return false, err
	}
	body := h.body(w.in)
	if h.code != "200" {
		err = sentence(h.status, body)
	}
	if _, unread := io.Copy(io.Discard, body); unread != nil {
		return false, errors.Join(err, unread)
	}
	if h.chunked {
		if unread := w.trailer(); unread != nil {
			return false, errors.Join(err, unread)
		}
	}
	return h.keep && (h.chunked || h.length >= 0), err
}

// answerHeader is what matters of the header of an answer.
type answerHeader struct {
	status  string // such as "503 Service Unavailable"; empty if the code is 200
	code    string
	length  int64 // -1 if it is not told
	chunked bool
	keep    bool // the connection stays
}

// header reads the status and the fields of an answer.
func (w *wire) header() (answerHeader, error) {
	for {
		line, err := w.line()
		if err != nil {
			return answerHeader{}, err
		}
		version, status, ok := bytes.Cut(line, []byte(" "))
		if !ok || !bytes.HasPrefix(version, []byte("HTTP/1.")) || len(status) < 3 {
			return answerHeader{}, fmt.Errorf("%q is not how an answer of HTTP/1.1 begins", line)
		}
		h := answerHeader{code: "200", length: -1, keep: string(version) == "HTTP/1.1"}
		if code := status[:3]; string(code) != h.code {
			h.code, h.status = string(code), string(status)
		}
		for {
			line, err := w.line()
			if err != nil {
				return answerHeader{}, err
			}
			if len(line) == 0 {
				break
			}
			if err := h.field(line); err != nil {
				return answerHeader{}, err
			}
		}
		if h.code[0] != '1' { // one that only announces another
			return h, nil
		}
	}
}

var (
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	connection       = []byte("Connection")
)

func (h *answerHeader) field(line []byte) error {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, contentLength):
		n, err := strconv.ParseUint(string(value), 10, 62)
		if err != nil {
			return fmt.Errorf("the answer has the Content-Length %q", value)
		}
		h.length = int64(n)
	case bytes.EqualFold(name, transferEncoding):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	case bytes.EqualFold(name, connection):
		h.keep = bytes.EqualFold(value, []byte("keep-alive"))
	}
	return nil
}

// body returns what follows the header. Without a length it goes on until the
// connection ends.
func (h *answerHeader) body(in *bufio.Reader) io.Reader {
	switch {
	case h.chunked:
		return httputil.NewChunkedReader(in)
	case h.length >= 0:
		return io.LimitReader(in, h.length)
	}
	return in
}

// trailer reads what follows the last chunk.
func (w *wire) trailer() error {
	for {
		if line, err := w.line(); err != nil || len(line) == 0 {
			return err
		}
	}
}

// line returns the next line, until the next read.
func (w *wire) line() ([]byte, error) {
	line, err := w.in.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("the header of the answer: %w", err)
	}
	return bytes.TrimRight(line, "\r\n"), nil
}
