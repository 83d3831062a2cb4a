package kservehttp

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/shoal-serving/shoal/internal/buf"
)

// Listener returns l for s to serve on, so that answers to inferences go out in one write
// each, where connections are TCP's. net/http has 4 KiB for what it writes, and cuts
// longer answers there. A write costs as much as all that is decided about a request,
// and wakes the client.
func Listener(s *http.Server, l net.Listener) net.Listener {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	return listener{l}
}

type connKey struct{}

// connOf returns the connection of a request, or nil if it is not one of ours.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return &conn{TCPConn: tcp}, err
	}
	return c, err
}

// A conn can hold back what is written to it. Only the goroutine that answers its
// requests writes, so that nothing of it needs a lock.
type conn struct {
	*net.TCPConn

	held *buf.Buf // what was written, while it is held back; nil otherwise
}

// maxHeld is how many bytes are copied to go out together. What is longer goes out from
// where it is, with what was held back before it.
const maxHeld = 8 << 10

// together sends all that answer writes to w at once. Without a connection, it is
// written as net/http likes. Errors of writing mean that the client has left, and nobody
// is to be told.
func (c *conn) together(w http.ResponseWriter, answer func(io.Writer) error) {
	if c == nil {
		_ = answer(w)
		return
	}
	c.held = buf.Get(maxHeld)
	c.held.B = c.held.B[:0]
	defer c.letGo()
	if answer(w) == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	if c.held == nil {
		return c.TCPConn.Write(p)
	}
	if len(c.held.B)+len(p) <= maxHeld {
		c.held.B = append(c.held.B, p...)
		return len(p), nil
	}
	all := net.Buffers{c.held.B, p}
	c.held.B = c.held.B[:0]
	if _, err := all.WriteTo(c.TCPConn); err != nil {
		return 0, err
	}
	return len(p), nil
}

// letGo sends what is held back. net/http does not see if that fails, and must not go on
// behind half an answer.
func (c *conn) letGo() {
	if len(c.held.B) > 0 {
		if _, err := c.TCPConn.Write(c.held.B); err != nil {
			_ = c.Close()
		}
	}
	c.held.Release()
	c.held = nil
}
