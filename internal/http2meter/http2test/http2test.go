// Package http2test is a gRPC client that misbehaves: it sends single frames, of which it
// may omit any, and lets the server send no more than it chooses.
package http2test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A Conn is a connection to a gRPC server. It keeps to the windows that the server allows,
// and opens none itself. Its methods may be called concurrently.
type Conn struct {
	net  net.Conn
	done chan struct{} // closed when the reader has ended

	writing sync.Mutex // guards the following
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer

	mu      sync.Mutex // guards the following
	changed *sync.Cond
	ended   bool
	window  int64 // of the connection
	windows map[uint32]int64
	initial int64
	resets  []http2.ErrCode
	open    map[uint32]bool   // calls that have no answer yet
	status  map[uint32]string // grpc-status
	answers map[uint32]int
}

// Dial connects to an address. The connection is closed at the end of the test.
func Dial(t testing.TB, address string) *Conn {
	t.Helper()
	raw, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{
		net: raw, done: make(chan struct{}), framer: http2.NewFramer(raw, raw),
		window: 65535, initial: 65535, windows: map[uint32]int64{}, open: map[uint32]bool{}, status: map[uint32]string{}, answers: map[uint32]int{},
	}
	c.changed = sync.NewCond(&c.mu)
	c.encoder = hpack.NewEncoder(&c.block)
	t.Cleanup(c.Close)
	if _, err := io.WriteString(raw, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go c.read()
	return c
}

// Close closes the connection.
func (c *Conn) Close() {
	_ = c.net.Close()
	<-c.done
}

func (c *Conn) read() {
	defer close(c.done)
	framer := http2.NewFramer(io.Discard, c.net)
	decoder := hpack.NewDecoder(4096, nil)
	for {
		f, err := framer.ReadFrame()
		if s, ok := f.(*http2.SettingsFrame); ok && err == nil && !s.IsAck() {
			c.write(func() error { return c.framer.WriteSettingsAck() })
		}
		c.mu.Lock()
		c.ended = err != nil
		if err == nil {
			c.see(f, decoder)
		}
		c.changed.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// see notes what a frame says. The caller holds mu.
func (c *Conn) see(f http2.Frame, decoder *hpack.Decoder) {
	switch f := f.(type) {
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.window += int64(f.Increment)
		} else {
			c.windows[f.StreamID] += int64(f.Increment)
		}
	case *http2.SettingsFrame:
		if size, ok := f.Value(http2.SettingInitialWindowSize); ok {
			for id := range c.windows {
				c.windows[id] += int64(size) - c.initial
			}
			c.initial = int64(size)
		}
	case *http2.RSTStreamFrame:
		c.resets = append(c.resets, f.ErrCode)
		delete(c.open, f.StreamID)
		c.windows[f.StreamID] = -1 << 62 // nothing more is sent
	case *http2.DataFrame:
		c.answers[f.StreamID] += len(f.Data())
	case *http2.HeadersFrame:
		fields, _ := decoder.DecodeFull(f.HeaderBlockFragment()) // a field is missing if it fails
		for _, field := range fields {
			if field.Name == "grpc-status" {
				c.status[f.StreamID] = field.Value
				delete(c.open, f.StreamID)
			}
		}
	}
}

func (c *Conn) write(frame func() error) bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	return frame() == nil
}

// Headers begins a call of a method of the inference service, with additional headers.
// Streams must begin in the order of their numbers, which are odd.
func (c *Conn) Headers(stream uint32, method string, more ...[2]string) bool {
	c.mu.Lock()
	c.windows[stream] = c.initial
	c.open[stream] = true
	c.mu.Unlock()
	return c.write(func() error {
		c.block.Reset()
		for _, f := range append([][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", "/inference.GRPCInferenceService/" + method},
			{":authority", "localhost"},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
		}, more...) {
			_ = c.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
		}
		return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block.Bytes(), EndHeaders: true})
	})
}

// Data sends data, as far and as fast as the server allows it, and reports whether it sent
// all. It waits up to patience for a window.
func (c *Conn) Data(stream uint32, data []byte, end bool, patience time.Duration) bool {
	if len(data) == 0 {
		return c.write(func() error { return c.framer.WriteData(stream, end, nil) })
	}
	for len(data) > 0 {
		n := c.take(stream, min(len(data), 16384), patience)
		if n == 0 {
			return false
		}
		if !c.write(func() error { return c.framer.WriteData(stream, end && n == len(data), data[:n]) }) {
			return false
		}
		data = data[n:]
	}
	return true
}

// Half sends the start of a DATA frame, without the second half of the data. Nothing can be sent
// after it.
func (c *Conn) Half(stream uint32, data []byte) bool {
	return c.write(func() error {
		var whole bytes.Buffer
		if err := http2.NewFramer(&whole, nil).WriteData(stream, false, data); err != nil {
			return err
		}
		_, err := c.net.Write(whole.Bytes()[:whole.Len()-len(data)/2])
		return err
	})
}

// take returns how much of size the windows allow now, or 0 if they do not within patience.
func (c *Conn) take(stream uint32, size int, patience time.Duration) int {
	until := time.Now().Add(patience)
	wake := time.AfterFunc(patience, c.changed.Broadcast)
	defer wake.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		n := min(int64(size), c.window, c.windows[stream])
		if n > 0 && !c.ended {
			c.window -= n
			c.windows[stream] -= n
			return int(n)
		}
		if c.ended || c.windows[stream] < -1<<60 || !time.Now().Before(until) {
			return 0
		}
		c.changed.Wait()
	}
}

// Resets returns the codes of the streams that the server has reset.
func (c *Conn) Resets() []http2.ErrCode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]http2.ErrCode(nil), c.resets...)
}

// Status returns the grpc-status of a stream, "" if there is none yet.
func (c *Conn) Status(stream uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status[stream]
}

// Answer returns the number of bytes of the answer that the server has sent on a stream.
func (c *Conn) Answer(stream uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers[stream]
}

// Unanswered returns the number of calls that have neither a status nor a reset.
func (c *Conn) Unanswered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// Ended reports whether the server has closed the connection.
func (c *Conn) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// Message returns a message with its prefix, as gRPC sends it.
func Message(encoded []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded))), encoded...)
}
