package http2meter

import "encoding/binary"

// Types and flags of HTTP/2 frames, RFC 9113 §6.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRSTStream    = 0x3
	frameSettings     = 0x4
	frameGoAway       = 0x7
	frameWindowUpdate = 0x8
	frameContinuation = 0x9

	flagAck       = 0x1 // of SETTINGS
	flagEndStream = 0x1 // of DATA and HEADERS
	flagEndBlock  = 0x4 // of HEADERS and CONTINUATION
	flagPadded    = 0x8

	settingInitialWindow = 0x4
	enhanceYourCalm      = 0xb // the error code that gRPC clients report as RESOURCE_EXHAUSTED
	refusedStream        = 0x7 // the one that they report as UNAVAILABLE, or send the call elsewhere for

	headerSize = 9
)

// A frame is one that is being read.
type frame struct {
	kind   byte
	flags  byte
	stream uint32
	size   int // of the payload
}

// A scanner finds the frames in a sequence of bytes that comes in pieces of any size. It does
// not keep payloads.
type scanner struct {
	preface int // bytes before the first frame
	header  [headerSize]byte
	have    int // bytes of header that were read; headerSize within a payload
	left    int // bytes of the payload that were not read
	frame   frame
	block   bool // the next frame must be CONTINUATION
}

// A visitor receives what a scanner finds.
type visitor interface {
	// payload is called with each part of a payload.
	payload(f *frame, part []byte)
	// end is called after a frame, and reports whether the scanner must stop there.
	end(f *frame) (stop bool)
}

// between reports whether the next byte begins a frame, and any frame may come there.
func (s *scanner) between() bool { return s.preface == 0 && s.have == 0 && !s.block }

// scan reads p, and returns the number of bytes that it has read: all of them, unless v
// stops it where any frame may come.
func (s *scanner) scan(p []byte, v visitor) (n int) {
	for n < len(p) {
		switch {
		case s.have == headerSize: // within a payload
		case s.have == 0 && s.preface == 0 && len(p)-n >= headerSize: // as it nearly always comes
			s.begin((*[headerSize]byte)(p[n:]))
			n += headerSize
		default:
			if n += s.readHeader(p[n:]); s.have < headerSize {
				return n
			}
		}
		if s.left > 0 {
			part := p[n:min(n+s.left, len(p))]
			if len(part) == 0 {
				return n
			}
			v.payload(&s.frame, part)
			n += len(part)
			if s.left -= len(part); s.left > 0 {
				return n
			}
		}
		s.have = 0
		s.block = (s.frame.kind == frameHeaders || s.frame.kind == frameContinuation) && s.frame.flags&flagEndBlock == 0
		if v.end(&s.frame) && !s.block {
			return n
		}
	}
	return n
}

// readHeader reads a part of the preface, and of a header, and returns its size.
func (s *scanner) readHeader(p []byte) (n int) {
	n = min(s.preface, len(p))
	s.preface -= n
	copied := copy(s.header[s.have:], p[n:])
	if s.have += copied; s.have == headerSize {
		s.begin(&s.header)
	}
	return n + copied
}

// begin begins a frame that has a header.
func (s *scanner) begin(h *[headerSize]byte) {
	s.have = headerSize
	s.left = int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	s.frame = frame{kind: h[3], flags: h[4], stream: binary.BigEndian.Uint32(h[5:]) &^ (1 << 31), size: s.left}
}

// A field is a setting, a window increment or the last stream of GOAWAY that is being read.
type field struct {
	bytes [6]byte
	have  int // of bytes; 0 at the start of a frame
}

// readSettings reads a part of SETTINGS, and calls set with each initial window in it.
func (x *field) readSettings(part []byte, set func(size int64)) {
	for len(part) > 0 {
		n := copy(x.bytes[x.have:], part)
		x.have, part = x.have+n, part[n:]
		if x.have < len(x.bytes) {
			return
		}
		x.have = 0
		if binary.BigEndian.Uint16(x.bytes[:]) == settingInitialWindow {
			set(int64(binary.BigEndian.Uint32(x.bytes[2:])))
		}
	}
}

// readUint31 reads a part of a payload that begins with a number of 31 bits.
func (x *field) readUint31(part []byte) { x.have += copy(x.bytes[x.have:4], part) }

// uint31 returns what readUint31 has read.
func (x *field) uint31() uint32 { return binary.BigEndian.Uint32(x.bytes[:]) &^ (1 << 31) }

// appendReset appends an RST_STREAM frame.
func appendReset(b []byte, stream, code uint32) []byte {
	b = append(b, 0, 0, 4, frameRSTStream, 0)
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, code)
}
