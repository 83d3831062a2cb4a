package listen

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Connections counts the TCP connections of all ports, and bounds their number. Its methods
// may be called concurrently.
type Connections struct {
	Max int64 // 0 means no limit
	Log *slog.Logger

	open    atomic.Int64
	refused atomic.Uint64
	logged  atomic.Int64 // Unix time of the last record, in seconds
}

// State returns the number of open connections, and of those that were refused.
func (c *Connections) State() (open int64, refused uint64) { return c.open.Load(), c.refused.Load() }

// refuse closes a connection beyond the limit. Clients see that it was closed, and can try
// another server; if it waited to be accepted, they would wait, too.
func (c *Connections) refuse(conn net.Conn) {
	_ = conn.Close()
	c.refused.Add(1)
	now, last := time.Now().Unix(), c.logged.Load()
	if now-last >= 60 && c.logged.CompareAndSwap(last, now) {
		c.Log.Warn("refused a connection: too many are open; raise --max-connections", "open", c.open.Load(), "refused", c.refused.Load())
	}
}

// full reports whether another connection would exceed the limit.
func (c *Connections) full() bool { return c.Max > 0 && c.open.Load() >= c.Max }

// A countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn

	all    *Connections
	closed sync.Once
}

// count counts a connection until it is closed.
func (c *Connections) count(conn net.Conn) net.Conn {
	c.open.Add(1)
	return &countedConn{Conn: conn, all: c}
}

// Close implements [net.Conn].
func (c *countedConn) Close() error {
	c.closed.Do(func() { c.all.open.Add(-1) })
	return c.Conn.Close()
}
