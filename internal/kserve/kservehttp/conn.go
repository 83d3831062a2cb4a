package kservehttp

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// Listener wraps l so that s sends each inference response in a single write, on TCP
// connections. net/http has a write buffer of 4 KiB, and splits longer responses there. A
// write costs as much as all scheduling of a request, and wakes the client.
//
// The listener may be wrapped by one of TLS: then records are buffered as they are sent.
//
// A new connection may be as idle as one that has had a request: clients open some that they use
// later, and one that the server closes just then fails their request. TLS handshakes do not wait.
//
// Listener must be called after s was configured. Every request that s reads must have a read
// deadline until its body has arrived, and none afterwards: see [Drain].
func Listener(s *http.Server, l net.Listener, drain *Drain) net.Listener {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, kserve.ConnKey{}, beneath(c))
	}
	next := s.ConnState
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if at, ok := beneath(c).(*conn); ok {
			if state == http.StateNew {
				at.begin(c == at)
			} else {
				at.setState(state)
			}
		}
		if next != nil {
			next(c, state)
		}
	}
	return listener{l, drain, s.IdleTimeout}
}

// beneath returns the connection that TLS encrypts, if it does.
func beneath(c net.Conn) net.Conn {
	if encrypted, ok := c.(*tls.Conn); ok {
		return encrypted.NetConn()
	}
	return c
}

// connOf returns the connection of a request, or nil if it was not accepted by Listener.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(kserve.ConnKey{}).(*conn)
	return c
}

type listener struct {
	net.Listener
	drain *Drain
	idle  time.Duration
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		c := &conn{TCPConn: tcp, drain: l.drain, idle: l.idle}
		l.drain.add(c)
		return c, err
	}
	return c, err
}

// A Drain ends the requests of a [Listener] that have not arrived, when the server stops. The zero
// value is one that has not begun. Its methods may be called concurrently.
type Drain struct {
	begun atomic.Bool

	mu    sync.Mutex // guards the following
	grace time.Duration
	conns map[*conn]struct{}
}

// Begin makes inference responses ask the client to close the connection, those of requests in
// flight included. Bodies must arrive within grace: the server would refuse their requests in any
// case, and a client that sends half of one must not delay its end. Requests that have arrived are
// not affected.
func (d *Drain) Begin(grace time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grace = grace
	d.begun.Store(true)
	for c := range d.conns {
		c.limitBody(grace)
	}
}

// Begun reports whether Begin was called.
func (d *Drain) Begun() bool { return d.begun.Load() }

func (d *Drain) add(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		d.conns = map[*conn]struct{}{}
	}
	d.conns[c] = struct{}{}
}

func (d *Drain) remove(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// CloseSilent closes the connections whose clients have not begun a request. net/http waits for
// one that is new.
func (d *Drain) CloseSilent() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.deadlines.Lock()
		if c.isNew && c.silent.Load() {
			_ = c.TCPConn.Close()
		}
		c.deadlines.Unlock()
	}
}

// timeForBody returns the grace of Begin.
func (d *Drain) timeForBody() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grace
}

// A conn can buffer writes. The goroutine that serves its requests writes to it; under TLS
// the one that reads does, too, when the client changes its keys.
type conn struct {
	*net.TCPConn

	drain *Drain

	deadlines      sync.Mutex    // guards the following
	active         bool          // a request has begun, and its answer has not ended
	deadline       time.Time     // of reads; zero if there is none: if active, the body has arrived then
	until          time.Time     // when the body must have arrived; zero if the server does not stop
	isNew          bool          // no request has begun: the times for the first one count from its first byte
	armedAt        time.Time     // when the connection began, or a deadline was set before the first byte of a request
	armed          time.Time     // that deadline, which moves when the first byte arrives; zero if none was set
	firstByteAfter time.Duration // from armedAt to the first byte

	silent atomic.Bool   // a request may come, and nothing of it has arrived; written with deadlines
	idle   time.Duration // how long a new connection may be silent; negative means without limit

	mu    sync.Mutex // guards the following, and is held while writing
	held  *buf.Buf   // buffered writes; nil if writes are not buffered
	timed bool       // the response is not small, and has a deadline
	left  int        // bytes that may be written until the deadline is extended
}

// Closing reports whether the client must be asked to close the connection, because the server
// stops.
func (c *conn) Closing() bool { return c != nil && c.drain.Begun() }

// begin is called when the connection was accepted.
func (c *conn) begin(plain bool) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.isNew, c.armedAt = c.idle != 0, time.Now()
	c.silent.Store(c.isNew && plain)
}

// setState follows the requests of the connection, from the first one on.
func (c *conn) setState(state http.ConnState) {
	c.deadlines.Lock()
	c.active = state == http.StateActive
	c.isNew = false
	if !c.until.IsZero() { // a pointer is cleared at some cost
		c.until = time.Time{}
	}
	c.deadlines.Unlock()
	if state == http.StateActive && c.drain.Begun() {
		c.limitBody(c.drain.timeForBody())
	}
}

// limitBody limits the time for the body of the request that has begun, if there is one.
func (c *conn) limitBody(grace time.Duration) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.active || !c.until.IsZero() {
		return
	}
	c.until = time.Now().Add(grace)
	if c.until.Before(c.deadline) {
		_ = c.TCPConn.SetReadDeadline(c.until) // fails only if the connection is closed
	}
}

// SetReadDeadline implements [net.Conn]. net/http calls it several times for each request, so that
// it has no defer.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.deadlines.Lock()
	if c.isNew {
		t = c.fromFirstByte(t)
	}
	if c.deadline = t; !c.until.IsZero() && t.After(c.until) {
		t = c.until
	}
	err := c.TCPConn.SetReadDeadline(t)
	c.deadlines.Unlock()
	return err
}

// fromFirstByte returns the deadline of a new connection in place of t, which counts from this call.
func (c *conn) fromFirstByte(t time.Time) time.Time {
	now := time.Now()
	switch {
	case t.IsZero(): // a TLS handshake has ended
		c.silent.Store(true)
		c.armedAt, c.armed, c.firstByteAfter = now, t, 0
	case c.silent.Load() && c.armed.IsZero():
		c.armedAt, c.armed = now, t
		if c.idle < 0 {
			return time.Time{}
		}
		return now.Add(c.idle)
	default: // for the handshake, or after the header
		return t.Add(c.firstByteAfter)
	}
	return t
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 && c.silent.Load() {
		c.speaks()
	}
	return n, err
}

// speaks begins the time for what has begun to arrive.
func (c *conn) speaks() {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.silent.Store(false)
	c.firstByteAfter = time.Since(c.armedAt)
	if c.isNew && !c.armed.IsZero() {
		c.deadline = c.armed.Add(c.firstByteAfter)
		_ = c.TCPConn.SetReadDeadline(c.deadline) // fails only if the connection is closed
	}
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.drain.remove(c)
	return c.TCPConn.Close()
}

// maxHeld is the largest number of bytes that is copied into the buffer. Longer writes are
// sent in place, together with what is buffered.
const maxHeld = 8 << 10

// writeOnce sends everything that write writes to w, size bytes, in one system call. If c is nil, it
// leaves the writes to net/http. Write errors are ignored: the client has disconnected.
func (c *conn) writeOnce(w http.ResponseWriter, size int, write func(io.Writer) error) {
	if c == nil {
		_ = write(w)
		return
	}
	c.mu.Lock()
	c.held = buf.Get(maxHeld)
	c.held.B = c.held.B[:0]
	c.timed, c.left = size > kserve.SmallAnswer, 0
	c.mu.Unlock()
	defer c.flush()
	if write(w) == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.TCPConn.Write(p)
	}
	if len(c.held.B)+len(p) <= maxHeld {
		c.held.B = append(c.held.B, p...)
		return len(p), nil
	}
	first := p[:min(len(p), kserve.AnswerStep)]
	all := net.Buffers{c.held.B, first}
	c.expect(len(c.held.B) + len(first))
	c.held.B = c.held.B[:0]
	if _, err := all.WriteTo(c.TCPConn); err != nil {
		return 0, err
	}
	written := len(first)
	for written < len(p) {
		part := p[written:min(len(p), written+kserve.AnswerStep)]
		c.expect(len(part))
		n, err := c.TCPConn.Write(part)
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// ReadFrom implements [io.ReaderFrom]. That of the TCP connection would overtake what is
// buffered. TLS does not call it, so that only the goroutine of the requests does.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	if c.held == nil {
		return c.TCPConn.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c}, r)
}

// stallTimeout is changed by tests only.
var stallTimeout = kserve.AnswerTimeout

// expect extends the deadline before n bytes are written, if the last one was for fewer. The
// memory of a response must not be held for ever because its client does not read it. The caller
// holds mu.
func (c *conn) expect(n int) {
	if !c.timed {
		return
	}
	if c.left -= n; c.left < 0 {
		c.left = kserve.AnswerStep - n
		_ = c.SetWriteDeadline(time.Now().Add(stallTimeout)) // fails only if the connection is closed
	}
}

// flush sends what is buffered. net/http does not see the error, so flush closes the
// connection if it fails, to prevent writes after a partial response.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held.B) > 0 {
		c.expect(len(c.held.B))
		if _, err := c.TCPConn.Write(c.held.B); err != nil {
			_ = c.Close()
		}
	}
	if c.timed {
		_ = c.SetWriteDeadline(time.Time{}) // the next response starts without one
	}
	c.held.Release()
	c.held, c.timed = nil, false
}
