// Package http2meter bounds what a gRPC client can make the server hold besides what a call
// computes: open calls, messages that are not complete or that nothing has read, and responses that
// the client does not read.
//
// grpc-go receives a message as a whole before anything else sees it, and lets a client
// send it as fast, or as slowly, as it likes. A [Meter] stands between the connection and
// grpc, and follows the frames in both directions. It charges a budget for messages as they
// arrive, and resets a stream whose message does not fit, or does not get on, or is followed by
// nothing although grpc waits for the end of the call. Clients see RESOURCE_EXHAUSTED. To grpc the
// stream looks as if its client had cancelled it.
package http2meter

import (
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
)

// A Meter meters the connections of one server. Its methods may be called concurrently.
type Meter struct {
	// Budget is charged for messages until they are complete, for those after the first of a call
	// until grpc reads them, and for calls until they end. Nil means no limit.
	Budget *budget.Budget

	// Stall is the time in which a client must send at least 64 KiB of a message that it has
	// begun, or the rest of it, and read as much of a response. 0 means 30 s. The time in which
	// the server does not let the client send does not count. In the same time after its first
	// message, a client must end its call, unless the server has sent a header.
	Stall time.Duration

	Log *slog.Logger // for panics; nil means the default one

	overBudget, stalled, refused atomic.Uint64

	refusal atomic.Pointer[refusal] // nil until Refuse is called; written with the lock

	mu         sync.Mutex // guards the following; locked before that of a connection
	conns      map[*conn]struct{}
	handshakes map[*handshake]struct{}
}

// A handshake is that of one connection.
type handshake struct{ net.Conn }

// A refusal is what [Meter.Refuse] was called with.
type refusal struct {
	grace time.Duration
	idle  time.Time // since when no request is in flight; zero if some are
}

// left returns how long calls with a message, and no answer, are not refused; idle is false if
// that depends on requests in flight.
func (r *refusal) left(now time.Time) (d time.Duration, idle bool) {
	return r.idle.Add(r.grace).Sub(now), !r.idle.IsZero()
}

// Refuse makes clients get on while the server stops. After grace, calls are reset that have no
// message yet, also those that begin later, and connections are closed that have not begun, also
// during their TLS handshake. They would delay the end of grpc, which waits for all calls. Clients
// see UNAVAILABLE, or make the call elsewhere.
//
// With idle, no request is in flight. Then, after another grace in which answers may be sent, all
// calls without an answer are reset for which grpc waits: it does not run a method with one message
// before the client has said that no other follows. A later call without idle does not end that.
func (m *Meter) Refuse(grace time.Duration, idle bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.refusal.Load()
	switch { // an idle server calls it both ways at once, in any order
	case idle && (r == nil || r.idle.IsZero()):
		m.refusal.Store(&refusal{grace, time.Now()})
	case r == nil:
		m.refusal.Store(&refusal{grace: grace})
	}
	for c := range m.conns {
		c.mu.Lock()
		c.refuseAfter(grace)
		c.mu.Unlock()
	}
	for h := range m.handshakes {
		m.refuseHandshake(h, grace)
	}
}

// Handshaking makes m close c when the server stops, until done is called. grpc waits for
// handshakes, and [Meter.Conn] is called only after them.
func (m *Meter) Handshaking(c net.Conn) (done func()) {
	h := &handshake{c}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handshakes == nil {
		m.handshakes = map[*handshake]struct{}{}
	}
	m.handshakes[h] = struct{}{}
	if r := m.refusal.Load(); r != nil {
		m.refuseHandshake(h, r.grace)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.handshakes, h)
	}
}

// refuseHandshake closes a connection if its handshake has not ended after grace.
func (m *Meter) refuseHandshake(h *handshake, grace time.Duration) {
	time.AfterFunc(grace, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if _, ok := m.handshakes[h]; ok {
			_ = h.Close() // grpc notices
		}
	})
}

func (m *Meter) add(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns == nil {
		m.conns = map[*conn]struct{}{}
	}
	m.conns[c] = struct{}{}
	if r := m.refusal.Load(); r != nil {
		c.mu.Lock()
		c.refuseAfter(r.grace)
		c.mu.Unlock()
	}
}

func (m *Meter) remove(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, c)
}

const (
	defaultStall = 30 * time.Second

	// minProgress is what a client must send or read in the time of a stall.
	minProgress = 64 << 10

	// minTimedWrite is the size of a write from which on it has a deadline.
	minTimedWrite = 4 << 10

	// maxStreams is the number of streams of a connection, beyond which it is closed. grpc
	// refuses streams long before.
	maxStreams = 10_000
)

// State is what a meter has counted.
type State struct {
	OverBudget, Stalled, Refused uint64 // streams that were reset
}

// State returns the counts.
func (m *Meter) State() State { return State{m.overBudget.Load(), m.stalled.Load(), m.refused.Load()} }

func (m *Meter) stall() time.Duration {
	if m.Stall == 0 {
		return defaultStall
	}
	return m.Stall
}

// Conn returns a connection that meters c, whose client has not sent anything yet.
func (m *Meter) Conn(c net.Conn) net.Conn {
	metered := &conn{
		Conn: c, meter: m, key: "connection " + c.RemoteAddr().String(),
		in:      scanner{preface: len(clientPreface)},
		streams: map[uint32]*stream{}, last: math.MaxUint32, window: defaultWindow, initialWindow: defaultWindow, serverWindow: defaultWindow,
	}
	m.add(metered)
	return metered
}

const (
	clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	// defaultWindow is the flow-control window of connections, and that of streams unless the
	// receiver has set another.
	defaultWindow = 65535
)
