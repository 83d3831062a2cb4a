package http2meter

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/panics"
)

// A conn is a metered connection. grpc reads it in one goroutine and writes it in another.
type conn struct {
	net.Conn

	meter *Meter
	key   string // of its charges: a connection gets at most half of the budget

	// Used by the goroutine that reads.
	in      scanner
	inField field
	pad     int    // padding of the DATA frame that is being read
	resets  []byte // frames that grpc reads next
	unread  []byte // what grpc reads after them, and before what the connection has

	writing  sync.Mutex // held while the connection is written; guards the following
	out      scanner
	outField field
	timed    bool // the connection has a write deadline

	mu            sync.Mutex // guards the following
	streams       map[uint32]*stream
	spare         *stream // for the next one
	last          uint32  // grpc ignores streams after this one: it has sent GOAWAY
	window        int64   // what the client allows to be sent on the connection
	initialWindow int64   // what it allows on a new stream
	serverWindow  int64   // what the server allows on a new stream
	toGRPC        []byte  // RST_STREAM frames that grpc has not read yet
	toClient      []byte  // RST_STREAM frames that the client has not been sent yet
	interrupted   bool    // interrupt has set the read deadline, and Read has not cleared it yet
	sweeping      bool    // sweep will be called
	begun         bool    // the client has sent a frame
	refuses       bool    // refuse will be called
	closed        bool
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (n int, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			n, err = 0, c.recovered("reader of gRPC frames", cause)
		}
	}()
	for {
		c.takeResets()
		if len(c.resets) > 0 {
			return c.readHeld(&c.resets, p), nil
		}
		if len(c.unread) > 0 {
			return c.readHeld(&c.unread, p), nil
		}
		n, err := c.Conn.Read(p)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.resume() {
			continue
		}
		scanned := c.scanInbound(p[:n])
		if scanned < n {
			// At most what one read gives. It is copied once, however many resets are within it.
			c.unread = append(c.unread[:0], p[scanned:n]...)
			err = nil // comes again after unread
		}
		return scanned, err
	}
}

// resume clears the read deadline if interrupt has set it, and reports that. Otherwise it is that of
// grpc, for the start of a connection.
func (c *conn) resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.interrupted {
		return false
	}
	c.interrupted = false
	_ = c.SetReadDeadline(time.Time{})
	return true
}

// readHeld reads from held, up to the end of a frame after which there are resets.
func (c *conn) readHeld(held *[]byte, p []byte) int {
	n := c.scanInbound((*held)[:min(len(p), len(*held))])
	copy(p, (*held)[:n])
	if *held = (*held)[n:]; len(*held) == 0 {
		*held = nil
	}
	return n
}

// scanInbound scans what grpc reads next, and returns how much of it. It takes the lock once, and not
// for each frame: a request has several in one read.
func (c *conn) scanInbound(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in.scan(p, (*inbound)(c))
}

// takeResets takes the frames for grpc, if the next byte that it reads begins a frame.
func (c *conn) takeResets() {
	if !c.in.between() {
		return
	}
	c.mu.Lock()
	if len(c.toGRPC) > 0 {
		c.resets = append(c.resets, c.toGRPC...)
		c.toGRPC = nil
	}
	c.mu.Unlock()
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (n int, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = c.recovered("writer of gRPC frames", cause)
		}
	}()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.timeWrite(len(p))
	n, err = c.Conn.Write(p)
	if c.scanOutbound(p[:n]) && err == nil {
		err = c.sendResets()
	}
	return n, err
}

// scanOutbound scans what grpc has written, and reports whether there are resets to send. It takes
// the lock once, as scanInbound does.
func (c *conn) scanOutbound(p []byte) (resets bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.scan(p, (*outbound)(c))
	return len(c.toClient) > 0
}

// recovered reports a panic in a goroutine of grpc, which would not recover from it, and closes the
// connection: after an error of Write, grpc waits until reading fails, too.
func (c *conn) recovered(where string, cause any) error {
	panics.Report(cmp.Or(c.meter.Log, slog.Default()), where, cause)
	return errors.Join(fmt.Errorf("panic in the %s", where), c.Conn.Close())
}

// timeWrite gives a client that reads little, although its windows allow more, the time of a stall
// for the next write. grpc writes 32 KiB at a time. The kernel has room for smaller writes.
func (c *conn) timeWrite(size int) {
	switch {
	case size >= minTimedWrite:
		c.timed = true
		_ = c.SetWriteDeadline(time.Now().Add(c.meter.stall())) // fails only if the connection is closed
	case c.timed:
		c.timed = false
		_ = c.SetWriteDeadline(time.Time{})
	}
}

// sendResets sends the frames for the client, unless a frame is being written. The caller
// holds writing.
func (c *conn) sendResets() error {
	if !c.out.between() {
		return nil // the write that ends it sends them
	}
	c.mu.Lock()
	frames := c.toClient
	c.toClient = nil
	c.mu.Unlock()
	if len(frames) == 0 {
		return nil
	}
	c.timeWrite(len(frames))
	_, err := c.Conn.Write(frames)
	return err
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	for id := range c.streams {
		c.forget(id)
	}
	c.mu.Unlock()
	c.meter.remove(c)
	return c.Conn.Close()
}

// inbound visits what the client sends. The scanner's caller holds mu.
type inbound conn

func (c *inbound) payload(f *frame, part []byte) {
	switch f.kind {
	case frameData:
		c.data(f, part)
	case frameWindowUpdate:
		c.inField.readUint31(part)
	case frameSettings:
		c.inField.readSettings(part, c.setInitialWindow)
	}
}

// data counts a part of a DATA frame, without its padding. The scanner has all of f but what
// is in part and after.
func (c *inbound) data(f *frame, part []byte) {
	panics.Point("grpc read")
	left := c.in.left // with part
	if left == f.size {
		c.pad = 0
		if f.flags&flagPadded != 0 {
			c.pad = int(part[0])
			part, left = part[1:], left-1
		}
	}
	part = part[:max(0, min(len(part), left-c.pad))]
	if s := c.streams[f.stream]; s != nil {
		s.receive(part)
		if s.partial() {
			(*conn)(c).sweepLater() // the frame may never end
		}
	}
}

// dataSize returns the size of a DATA frame that has ended, without its padding.
func (c *inbound) dataSize(f *frame) int {
	if f.size == 0 || f.flags&flagPadded == 0 {
		return f.size
	}
	return f.size - 1 - c.pad // less than 0 if the frame is invalid; grpc ends the connection
}

func (c *inbound) setInitialWindow(size int64) {
	for _, s := range c.streams {
		s.window += size - c.initialWindow
		(*conn)(c).sweepIfBlocked(s)
	}
	c.initialWindow = size
}

func (c *inbound) end(f *frame) (stop bool) {
	c.begun = true
	s := c.streams[f.stream]
	switch f.kind {
	case frameHeaders:
		if s == nil {
			s = (*conn)(c).open(f.stream)
		}
	case frameData:
		if s != nil {
			s.allowed -= int64(f.size)
			s.hold(c.dataSize(f), f.size)
			(*conn)(c).chargeHeld(f.stream, s)
		}
		if s != nil && s.partial() {
			(*conn)(c).chargeFrame(f, s)
		}
	case frameRSTStream:
		(*conn)(c).forget(f.stream)
		s = nil
	case frameWindowUpdate:
		increment := int64(c.inField.uint31())
		if f.stream == 0 {
			c.window += increment
		} else if s != nil {
			s.window += increment
		}
	}
	c.inField.have = 0
	if s != nil && f.flags&flagEndStream != 0 && (f.kind == frameData || f.kind == frameHeaders) {
		s.finished = true
		if s.partial() {
			s.complete() // grpc fails the call
		}
	}
	if s != nil && s.awaitsEnd() {
		(*conn)(c).sweepLater()
	}
	return len(c.toGRPC) > 0
}

// open begins a stream. It returns nil if grpc ignores it, or the connection is closed, or has too
// many streams, for which open closes it.
func (c *conn) open(id uint32) *stream {
	if c.closed || id > c.last {
		return nil
	}
	if len(c.streams) >= maxStreams {
		c.abort()
		return nil
	}
	s := c.spare
	if s == nil {
		s = &stream{}
	}
	c.spare = nil
	*s = stream{}
	s.allowed, s.window = c.serverWindow, c.initialWindow
	s.charge, s.held, s.call = c.meter.Budget.Open(c.key), c.meter.Budget.Open(c.key), c.meter.Budget.Open(budget.Calls)
	c.streams[id] = s
	if r := c.meter.refusal.Load(); r != nil {
		c.refuseAfter(r.grace)
	}
	if len(c.streams) > freeCalls {
		c.charge(&s.call, callOverhead, id, s)
	}
	return s
}

// abort closes the connection. grpc notices, and closes c. It does not wait for TLS, which may have
// to wait for the client.
func (c *conn) abort() { go c.Conn.Close() } //nolint:errcheck // it is closed

// forget ends a stream.
func (c *conn) forget(id uint32) {
	if s := c.streams[id]; s != nil {
		s.charge.Close()
		s.held.Close()
		s.call.Close()
		s.chunks = nil
		delete(c.streams, id)
		c.spare = s
	}
}

// chargeFrame charges a DATA frame that does not complete its message. Messages of a single
// frame, which most are, cost nothing here.
func (c *conn) chargeFrame(f *frame, s *stream) {
	if !s.reset {
		c.charge(&s.charge, memoryOf(f.size), f.stream, s)
	}
}

// chargeHeld charges what has arrived and was not read. Calls with one message cost nothing here.
func (c *conn) chargeHeld(id uint32, s *stream) {
	if s.unread == 0 || s.reset {
		return
	}
	s.trim(c.serverWindow)
	want := (s.memory + heldStep - 1) / heldStep * heldStep
	if more := want - s.held.Bytes(); more > 0 {
		c.charge(&s.held, more, id, s)
	} else {
		s.held.Shrink(-more)
	}
}

// charge adds bytes to one of the charges of a stream, or resets the stream.
func (c *conn) charge(to *budget.Charge, bytes int64, id uint32, s *stream) {
	if to.Grow(bytes) {
		return
	}
	c.meter.overBudget.Add(1)
	c.resetStream(id, s, enhanceYourCalm)
}

// resetStream resets a stream for both sides. The caller holds mu.
func (c *conn) resetStream(id uint32, s *stream, code uint32) {
	s.reset = true
	s.charge.Close()
	s.held.Close()
	s.chunks = nil
	c.toGRPC = appendReset(c.toGRPC, id, code)
	c.toClient = appendReset(c.toClient, id, code)
	c.sweepLater() // in case the frames are not taken
	go c.sendResetsIfIdle()
}

// sendResetsIfIdle sends the frames for the client if nothing is being written. Otherwise
// the write that is in progress sends them.
func (c *conn) sendResetsIfIdle() {
	if c.writing.TryLock() {
		defer c.writing.Unlock()
		_ = c.sendResets() // grpc notices that the connection is broken
	}
}

// outbound visits what grpc sends. The scanner's caller holds mu.
type outbound conn

func (c *outbound) payload(f *frame, part []byte) {
	switch f.kind {
	case frameWindowUpdate, frameGoAway:
		c.outField.readUint31(part)
	case frameSettings:
		c.outField.readSettings(part, c.setServerWindow)
	}
}

func (c *outbound) setServerWindow(size int64) {
	for _, s := range c.streams {
		s.allowed += size - c.serverWindow
	}
	c.serverWindow = size
}

func (c *outbound) end(f *frame) (stop bool) {
	switch f.kind {
	case frameData:
		panics.Point("grpc write")
		c.window -= int64(f.size)
		if s := c.streams[f.stream]; s != nil {
			s.window -= int64(f.size)
			s.sent += int64(f.size)
			(*conn)(c).sweepIfBlocked(s)
		}
	case frameHeaders:
		if f.flags&flagEndStream != 0 {
			(*conn)(c).forget(f.stream)
		} else if s := c.streams[f.stream]; s != nil {
			s.answering = true
			(*conn)(c).sweepIfBlocked(s) // no frame of the answer may ever be allowed
		}
	case frameRSTStream:
		(*conn)(c).forget(f.stream)
	case frameWindowUpdate:
		if s := c.streams[f.stream]; s != nil {
			s.allowed += int64(c.outField.uint31())
			(*conn)(c).chargeHeld(f.stream, s)
		}
	case frameGoAway:
		c.last = c.outField.uint31()
		for id := range c.streams {
			if id > c.last {
				(*conn)(c).forget(id)
			}
		}
	}
	c.outField.have = 0
	return false
}

// blocked reports whether the client does not allow more of a response to be sent.
func (c *conn) blocked(s *stream) bool { return s.answering && (s.window <= 0 || c.window <= 0) }

func (c *conn) sweepIfBlocked(s *stream) {
	if c.blocked(s) {
		c.sweepLater()
	}
}

// sweepLater makes sweep run after a part of the time of a stall. The caller holds mu.
func (c *conn) sweepLater() {
	if !c.sweeping && !c.closed {
		c.sweeping = true
		time.AfterFunc(c.meter.stall()/4, func() { c.sweep(time.Now()) })
	}
}

// sweep resets the streams that do not get on, and comes back while some are under way.
func (c *conn) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweeping = false
	if c.closed {
		return
	}
	again, reset := false, false
	for id, s := range c.streams {
		switch {
		case s.reset:
			// grpc has not read its RST_STREAM, because the client stopped within a frame.
			if s.reading.stalled(now, s.received, c.meter.stall()) {
				c.abort()
				return
			}
		case s.awaited() && s.reading.stalled(now, s.received, c.meter.stall()),
			s.awaitsEnd() && s.ending.stalled(now, 0, c.meter.stall()), // nothing but the end is progress
			c.blocked(s) && s.writing.stalled(now, s.sent, c.meter.stall()):
			c.meter.stalled.Add(1)
			c.resetStream(id, s, enhanceYourCalm)
			s.reading = progress{now, s.received}
			reset = true
		}
		if !s.awaited() && !s.reset {
			s.reading = progress{}
		}
		if !c.blocked(s) {
			s.writing = progress{}
		}
		again = again || s.partial() || s.awaitsEnd() || c.blocked(s) || s.reset
	}
	if reset {
		c.interrupt()
	}
	if again {
		c.sweepLater()
	}
}

// interrupt interrupts Read, which takes the frames for grpc. The caller holds mu.
func (c *conn) interrupt() {
	c.interrupted = true
	_ = c.SetReadDeadline(time.Unix(1, 0)) // fails only if the connection is closed
}

// refuseAfter makes refuse run later. The caller holds mu.
func (c *conn) refuseAfter(d time.Duration) {
	if !c.refuses && !c.closed {
		c.refuses = true
		time.AfterFunc(d, c.refuse)
	}
}

// refuse resets the streams that grpc waits for; see [Meter.Refuse]. It runs again after the next
// stream has begun, and until grpc has read the frames. It closes a connection whose other streams
// have ended if grpc does not read them within the grace, because the client stopped within a frame
// or does not read.
func (c *conn) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = false
	if c.closed {
		return
	}
	if !c.begun {
		c.abort()
		return
	}
	now, r := time.Now(), c.meter.refusal.Load()
	left, idle := r.left(now)
	reset, stuck, others, again := false, false, false, false
	for id, s := range c.streams {
		switch {
		case s.awaitedByGRPC() && (!s.arrived || idle && left <= 0):
			c.meter.refused.Add(1)
			c.resetStream(id, s, refusedStream)
			s.reading = progress{now, s.received}
			reset = true
		case !s.reset:
			others = true
		case s.reading.stalled(now, s.received, r.grace):
			stuck = true
		}
		again = again || s.reset
	}
	if stuck && !reset && !others {
		c.abort()
		return
	}
	if reset {
		c.interrupt()
	}
	switch {
	case idle && left > 0:
		c.refuseAfter(left)
	case again:
		c.refuseAfter(r.grace)
	}
}
