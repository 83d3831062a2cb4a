package listen

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/pause"
)

// handshake is how long connections that are being established when a port closes may take
// to be accepted: more than a round trip.
const handshake = 100 * time.Millisecond

// A listener can close its port without losing a connection. The kernel resets connections
// that it has established and that were not accepted yet, although their clients may have
// sent a request already.
type listener struct {
	net.Listener

	connections *Connections

	once    sync.Once
	refused atomic.Bool
	closed  chan struct{} // closed by Close
	closing sync.Once
}

func newListener(l net.Listener, connections *Connections) *listener {
	return &listener{Listener: l, connections: connections, closed: make(chan struct{})}
}

// Accept implements [net.Listener]. After refuse it waits for Close, because servers take
// an error before that for a failure.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case err != nil && l.refused.Load():
			<-l.closed
		case err == nil && l.connections.full():
			l.connections.refuse(c)
			continue
		case err == nil:
			limitUnread(c)
		}
		return c, err
	}
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	if l.refused.Load() {
		return nil // closed by refuse
	}
	return l.Listener.Close()
}

// refuse makes the kernel refuse new connections, after those that it has begun to
// establish were accepted, or when ctx ends. It returns when the port is closed.
func (l *listener) refuse(ctx context.Context) {
	if l == nil {
		return // never listened
	}
	l.once.Do(func() {
		if rejectNew(l.Listener) {
			_ = pause.For(ctx, handshake)
		}
		l.refused.Store(true)
		_ = l.Listener.Close() // fails only if it is closed already
	})
}

// unreadTimeout is how long a client may leave data unread or unacknowledged, before the
// kernel closes the connection.
const unreadTimeout = 30 * time.Second
