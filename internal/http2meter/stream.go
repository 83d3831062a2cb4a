package http2meter

import (
	"encoding/binary"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
)

// A stream is one call. The lock of its connection guards it.
type stream struct {
	// The message that the client sends. gRPC precedes each with a flag and its length.
	prefix   [5]byte // what has arrived of a prefix that came in parts
	have     int     // bytes of the prefix that were received
	left     uint32  // bytes of the message that were not received; valid with a whole prefix
	received int64   // bytes of this message and those before
	allowed  int64   // bytes that the server allows the client to send
	charge   budget.Charge
	reading  progress
	ending   progress // towards the end of the call

	// What has arrived after the first message, and grpc may not have read: it reads the first one at
	// once, and each other one when its receiver asks for it. The window of the stream bounds it.
	follows bool    // what arrives follows the first message
	chunks  []chunk // in the order in which grpc reads them
	unread  int64   // sum of chunks
	memory  int64   // sum of chunks
	held    budget.Charge

	call budget.Charge // for the stream itself: a client may leave it open for ever, without a message

	// The response.
	answering bool // the server has begun it
	window    int64
	sent      int64
	writing   progress

	arrived  bool // the client has sent a whole message
	finished bool // the client will send no more
	reset    bool // the client was sent RST_STREAM
}

// A chunk is one frame that grpc may not have read, or several that take at most heldStep of
// memory: a chunk for each frame would take much memory itself if the frames have one byte.
type chunk struct {
	unread int32 // bytes, without padding
	memory int32
}

// hold counts a DATA frame that has ended. data is its size without padding, which grpc counts as
// read at once.
func (s *stream) hold(data, size int) {
	if s.follows && data > 0 && !s.reset {
		memory := memoryOf(size)
		s.unread += int64(data)
		s.memory += memory
		last := len(s.chunks) - 1
		if last < 0 || int64(s.chunks[last].memory)+memory > heldStep {
			s.chunks = append(s.chunks, chunk{})
			last++
		}
		s.chunks[last].unread += int32(data)
		s.chunks[last].memory += int32(memory)
	}
	s.follows = s.arrived
}

// trim leaves out what grpc has read, as far as it has said so: it extends the window after a
// quarter of it. window is that of a new stream. A chunk counts until grpc has read all of it.
//
// To multiply unread by the memory of the densest frame is not enough: after a single small frame,
// the charge for a client that always has something unread would grow for ever.
func (s *stream) trim(window int64) {
	unread, read := window-s.allowed, 0
	for ; read < len(s.chunks) && s.unread-int64(s.chunks[read].unread) >= unread; read++ {
		s.unread -= int64(s.chunks[read].unread)
		s.memory -= int64(s.chunks[read].memory)
	}
	if s.chunks = s.chunks[read:]; len(s.chunks) == 0 {
		s.chunks = nil
	}
}

// awaitedByGRPC reports whether grpc may wait for more of the call before it does anything. If the
// call has a message, it may also run: that of a stream of requests does.
func (s *stream) awaitedByGRPC() bool { return !s.reset && !s.finished && !s.answering }

// awaitsEnd reports whether a message is complete, and grpc may wait for the end of the call: it does
// not run a method with one message before, and keeps that message. A method with several must send a
// header in time.
func (s *stream) awaitsEnd() bool { return s.arrived && s.awaitedByGRPC() }

// partial reports whether a message has begun, and is not complete.
func (s *stream) partial() bool { return s.have > 0 }

// awaited reports whether the client can send more of a message that it has begun. grpc allows all
// of a message that it reads, so that a client that cannot is one that the server holds back.
func (s *stream) awaited() bool { return s.partial() && s.allowed > 0 }

// receive reads a part of what the client sends.
func (s *stream) receive(p []byte) {
	s.received += int64(len(p))
	for len(p) > 0 {
		switch {
		case s.have == len(s.prefix):
		case s.have == 0 && len(p) >= len(s.prefix): // as it nearly always comes
			s.have = len(s.prefix)
			s.left = binary.BigEndian.Uint32(p[1:])
			p = p[len(s.prefix):]
		default:
			copied := copy(s.prefix[s.have:], p)
			s.have += copied
			p = p[copied:]
			if s.have < len(s.prefix) {
				return
			}
			s.left = binary.BigEndian.Uint32(s.prefix[1:])
		}
		n := min(uint64(s.left), uint64(len(p)))
		s.left -= uint32(n)
		p = p[n:]
		if s.left == 0 {
			s.complete()
		}
	}
}

// complete ends a message. Its receiver is charged next.
func (s *stream) complete() {
	s.follows = s.arrived
	s.arrived = true
	s.have = 0
	s.reading = progress{}
	s.charge.Close()
}

// heldStep is how much is charged at once for what grpc has not read.
const heldStep = 16 << 10

const (
	// callOverhead is what the server takes for a call besides its messages, such as goroutines and
	// their stacks: 14 KiB were measured.
	callOverhead = 16 << 10
	// freeCalls is the number of open calls of a connection that are not charged, so that probes are
	// answered. A call may begin before the end of the last one is counted.
	freeCalls = 4
)

// frameOverhead is what grpc takes for a frame besides its payload.
const frameOverhead = 128

// memoryOf returns how much memory grpc takes for a DATA frame: from a pool, unless it is
// small.
func memoryOf(size int) int64 {
	if size > 1<<10 {
		size = buf.Capacity(size)
	}
	return int64(size) + frameOverhead
}

// A progress is how far a transfer was at some time. It is a rule without a clock.
type progress struct {
	since time.Time // zero if the transfer was not seen yet
	bytes int64
}

// stalled reports whether a transfer, of which bytes are done, has got on by less than
// minProgress within the timeout.
func (p *progress) stalled(now time.Time, bytes int64, timeout time.Duration) bool {
	if p.since.IsZero() || bytes-p.bytes >= minProgress {
		*p = progress{now, bytes}
		return false
	}
	return now.Sub(p.since) >= timeout
}
