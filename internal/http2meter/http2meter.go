// Package http2meter bounds what a gRPC client can make the server hold besides what a call
// computes: open calls, messages that are not complete, and responses that the client does not read.
//
// grpc-go receives a message as a whole before anything else sees it, and lets a client
// send it as fast, or as slowly, as it likes. A [Meter] stands between the connection and
// grpc, and follows the frames in both directions. It charges a budget for messages as they
// arrive, and resets a stream whose message does not fit, or does not get on. Clients see
// RESOURCE_EXHAUSTED. To grpc the stream looks as if its client had cancelled it.
package http2meter

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
)

// A Meter meters the connections of one server. Its methods may be called concurrently.
type Meter struct {
	// Budget is charged for messages until they are complete, and for calls until they end. Nil
	// means no limit.
	Budget *budget.Budget

	// Stall is the time in which a client must send at least 64 KiB of a message that it has
	// begun, or the rest of it, and read as much of a response. 0 means 30 s. The time in which
	// the server does not let the client send does not count.
	Stall time.Duration

	overBudget, stalled atomic.Uint64
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
	OverBudget, Stalled uint64 // streams that were reset
}

// State returns the counts.
func (m *Meter) State() State { return State{m.overBudget.Load(), m.stalled.Load()} }

func (m *Meter) stall() time.Duration {
	if m.Stall == 0 {
		return defaultStall
	}
	return m.Stall
}

// Conn returns a connection that meters c, whose client has not sent anything yet.
func (m *Meter) Conn(c net.Conn) net.Conn {
	return &conn{
		Conn: c, meter: m, key: "connection " + c.RemoteAddr().String(),
		in:      scanner{preface: len(clientPreface)},
		streams: map[uint32]*stream{}, window: defaultWindow, initialWindow: defaultWindow, serverWindow: defaultWindow,
	}
}

const (
	clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	// defaultWindow is the flow-control window of connections, and that of streams unless the
	// receiver has set another.
	defaultWindow = 65535
)
