//go:build e2e

package proofs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Lean is an experiment, and no server: as much of HTTP/2 as small unary calls of
// clients that mean well need, to see what it would save; docs/adr says what it
// leaves out. One goroutine reads a connection's frames, and no stream has any. Either
// it answers itself, or it hands calls over to one goroutine that answers those of all
// connections, as an instance would.

// A leanCall is a call whose last byte has come.
type leanCall struct {
	conn   *leanConn
	stream uint32
}

type leanConn struct {
	net.Conn
	in      *bufio.Reader
	frames  *http2.Framer
	headers *hpack.Decoder
	message []byte            // the tail of every answer but its frames' headers
	handed  chan<- leanCall   // nil if the reader answers itself
	bodies  map[uint32][]byte // of calls that have not come to their end

	mu      sync.Mutex // guards the following
	out     []byte     // not written yet
	window  int64      // bytes of data that the client takes
	waiting []uint32   // streams whose answers the window has no room for
}

const (
	leanWindow = 1 << 20
	leanHanded = 1024 // more than there are clients, so that no reader waits
)

// serveLean answers until the process is ended.
func serveLean(l net.Listener, message []byte, handing bool) {
	// Five bytes before a message: that it is not compressed, and its length.
	n := len(message)
	message = append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, message...)
	var handed chan leanCall
	if handing {
		handed = make(chan leanCall, leanHanded)
		go answerLean(handed)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c := &leanConn{
			Conn: conn, in: bufio.NewReaderSize(conn, 128<<10), message: message, handed: handed,
			bodies: map[uint32][]byte{}, window: 65_535, headers: hpack.NewDecoder(4096, func(hpack.HeaderField) {}),
		}
		c.frames = http2.NewFramer(nil, c.in)
		c.frames.SetReuseFrames()
		go func() {
			if err := c.serve(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				_, _ = fmt.Fprintln(os.Stderr, "lean:", err)
			}
			_ = c.Close()
		}()
	}
}

// answerLean answers what was handed over, and writes when there is no more.
func answerLean(handed <-chan leanCall) {
	var touched []*leanConn
	for call := range handed {
		for more := true; more; {
			call.conn.answer(call.stream)
			touched = append(touched, call.conn)
			select {
			case call = <-handed:
			default:
				more = false
			}
		}
		for _, c := range touched {
			_ = c.flush() // the reader finds out, too
		}
		touched = touched[:0]
	}
}

func (c *leanConn) serve() error {
	if _, err := io.CopyN(io.Discard, c.in, int64(len(http2.ClientPreface))); err != nil {
		return err
	}
	c.mu.Lock()
	c.out = appendSetting(appendFrameHeader(c.out, 6, http2.FrameSettings, 0, 0), http2.SettingInitialWindowSize, leanWindow)
	c.out = appendWindowUpdate(c.out, leanWindow)
	c.mu.Unlock()
	consumed := 0
	for {
		if c.in.Buffered() == 0 {
			if err := c.flush(); err != nil {
				return err
			}
		}
		f, err := c.frames.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			if !f.HeadersEnded() {
				return errors.New("a header in several frames, which this has no place for")
			}
			if _, err := c.headers.Write(f.HeaderBlockFragment()); err != nil {
				return err
			}
			if err := c.headers.Close(); err != nil {
				return err
			}
		case *http2.DataFrame:
			consumed += len(f.Data())
			if consumed >= leanWindow/2 {
				c.mu.Lock()
				c.out = appendWindowUpdate(c.out, uint32(consumed))
				c.mu.Unlock()
				consumed = 0
			}
			c.data(f)
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				c.widen(int64(f.Increment))
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				c.mu.Lock()
				c.out = append(appendFrameHeader(c.out, 8, http2.FramePing, http2.FlagPingAck, 0), f.Data[:]...)
				c.mu.Unlock()
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.mu.Lock()
				c.out = appendFrameHeader(c.out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
				c.mu.Unlock()
			}
		case *http2.RSTStreamFrame:
			delete(c.bodies, f.StreamID)
		}
	}
}

// data takes in a piece of a body. One that is in one piece is not kept: what it has
// is only looked at.
func (c *leanConn) data(f *http2.DataFrame) {
	if !f.StreamEnded() {
		c.bodies[f.StreamID] = append(c.bodies[f.StreamID], f.Data()...)
		return
	}
	delete(c.bodies, f.StreamID)
	if c.handed == nil {
		c.answer(f.StreamID)
		return
	}
	c.handed <- leanCall{c, f.StreamID}
}

// answer puts an answer to what is to be written, when there is room for it.
func (c *leanConn) answer(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, stream)
	c.answerLocked()
}

func (c *leanConn) widen(by int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.window += by
	c.answerLocked()
}

// The header and the trailer of every answer, without a table that both ends would
// have to keep.
var (
	leanHeader  = appendLiteral(appendLiteral(nil, ":status", "200"), "content-type", "application/grpc")
	leanTrailer = appendLiteral(nil, "grpc-status", "0")
)

func (c *leanConn) answerLocked() {
	n := 0
	for ; n < len(c.waiting) && c.window >= int64(len(c.message)); n++ {
		stream := c.waiting[n]
		c.window -= int64(len(c.message))
		c.out = append(appendFrameHeader(c.out, len(leanHeader), http2.FrameHeaders, http2.FlagHeadersEndHeaders, stream), leanHeader...)
		c.out = append(appendFrameHeader(c.out, len(c.message), http2.FrameData, 0, stream), c.message...)
		c.out = append(appendFrameHeader(c.out, len(leanTrailer), http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, stream), leanTrailer...)
	}
	c.waiting = append(c.waiting[:0], c.waiting[n:]...)
}

// flush writes what is there. It does so under the lock, so that frames are not mixed.
func (c *leanConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.Write(c.out)
	c.out = c.out[:0]
	return err
}

func appendFrameHeader(b []byte, size int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	return append(b, byte(size>>16), byte(size>>8), byte(size), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendSetting(b []byte, id http2.SettingID, value uint32) []byte {
	return append(b, byte(id>>8), byte(id), byte(value>>24), byte(value>>16), byte(value>>8), byte(value))
}

func appendWindowUpdate(b []byte, by uint32) []byte {
	return append(appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, 0), byte(by>>24), byte(by>>16), byte(by>>8), byte(by))
}

// appendLiteral appends a header field that stands for itself. Both texts are shorter
// than 127 bytes.
func appendLiteral(b []byte, name, value string) []byte {
	b = append(append(b, 0, byte(len(name))), name...)
	return append(append(b, byte(len(value))), value...)
}
