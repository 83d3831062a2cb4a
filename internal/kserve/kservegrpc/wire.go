package kservegrpc

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
)

// A wire reads a message in the buffers in which grpc received it, from start to end. It
// does not copy what is contained in one buffer.
type wire struct {
	left   int             // bytes
	pieces mem.BufferSlice // buffers that have not been read
	piece  mem.Buffer      // the buffer being read
	rest   []byte          // unread part of it
	held   bool            // a view of it was retained

	border [2 * binary.MaxVarintLen64]byte // a tag and a length that span two buffers
}

func newWire(message mem.BufferSlice, size int) wire { return wire{left: size, pieces: message} }

// current returns the unread part of the current buffer. It is empty only at the end of
// the message.
func (w *wire) current() []byte {
	if len(w.rest) > 0 {
		return w.rest
	}
	return w.advance()
}

// advance goes on with the next buffer, if there is one and the current one was read.
func (w *wire) advance() []byte {
	for len(w.rest) == 0 && len(w.pieces) > 0 {
		w.piece, w.pieces = w.pieces[0], w.pieces[1:]
		w.rest, w.held = w.piece.ReadOnlyData(), false
	}
	return w.rest
}

// peek returns the next bytes without consuming them: at least as many as a tag and a
// length can have, or all that are left.
func (w *wire) peek() []byte {
	here := w.current()
	if len(here) >= len(w.border) || len(here) == w.left {
		return here
	}
	n := copy(w.border[:], here)
	for _, piece := range w.pieces {
		if n += copy(w.border[n:], piece.ReadOnlyData()); n == len(w.border) {
			break // a message may have very many pieces
		}
	}
	return w.border[:n]
}

func (w *wire) pass(n int) {
	w.left -= n
	if n <= len(w.rest) {
		w.rest = w.rest[n:]
		return
	}
	w.passBuffers(n)
}

func (w *wire) passBuffers(n int) {
	for n > 0 {
		passed := min(n, len(w.current()))
		w.rest = w.rest[passed:]
		n -= passed
	}
}

// next reads a tag and, if the field has one, the length.
func (w *wire) next() (number protowire.Number, kind protowire.Type, size int, err error) {
	ahead := w.peek()
	number, kind, n := consumeTag(ahead)
	if n < 0 {
		return 0, 0, 0, unreadable(n)
	}
	if kind != protowire.BytesType {
		w.pass(n)
		return number, kind, 0, nil
	}
	length, m := protowire.ConsumeVarint(ahead[n:])
	if m < 0 {
		return 0, 0, 0, unreadable(m)
	}
	w.pass(n + m)
	if length > uint64(w.left) {
		return 0, 0, 0, unreadable(truncated)
	}
	return number, kind, int(length), nil
}

// protowire's error numbers.
const (
	truncated = -1
	badNumber = -2
	badEnd    = -5 // of a group
)

// consumeTag is like protowire's, which accepts field numbers that are too large.
func consumeTag(b []byte) (number protowire.Number, kind protowire.Type, n int) {
	if len(b) > 0 && b[0]-8 < 0x78 { // one byte, and not number 0
		return protowire.Number(b[0] >> 3), protowire.Type(b[0] & 7), 1
	}
	return consumeLongTag(b)
}

func consumeLongTag(b []byte) (number protowire.Number, kind protowire.Type, n int) {
	number, kind, n = protowire.ConsumeTag(b)
	if number > protowire.MaxValidNumber {
		n = badNumber
	}
	return number, kind, n
}

// skipValue skips the value of a field without a length. No message here has such fields.
func (w *wire) skipValue(number protowire.Number, kind protowire.Type) error {
	if kind == protowire.StartGroupType {
		return w.skipGroup(number)
	}
	n := protowire.ConsumeFieldValue(number, kind, w.peek())
	if n < 0 {
		return unreadable(n)
	}
	w.pass(n)
	return nil
}

// maxGroups is how deep groups may be nested: as deep as messages in most implementations of
// protobuf.
const maxGroups = 100

// skipGroup skips the fields of a group, and its end. A group may be as long as the message, and
// lie in many buffers: it is not copied.
func (w *wire) skipGroup(number protowire.Number) error {
	var open [maxGroups]protowire.Number
	open[0] = number
	for depth := 1; depth > 0; {
		inner, kind, size, err := w.next()
		switch {
		case err != nil:
			return err
		case kind == protowire.BytesType:
			w.pass(size)
		case kind == protowire.StartGroupType:
			if depth == maxGroups {
				return infer.Errorf(infer.Invalid, "the message cannot be read: groups are nested more than %d deep", maxGroups)
			}
			open[depth] = inner
			depth++
		case kind == protowire.EndGroupType:
			if depth--; inner != open[depth] {
				return unreadable(badEnd)
			}
		default:
			if err := w.skipValue(inner, kind); err != nil {
				return err
			}
		}
	}
	return nil
}

// read copies the next bytes.
func (w *wire) read(to []byte) {
	for n := 0; n < len(to); {
		copied := copy(to[n:], w.current())
		w.pass(copied)
		n += copied
	}
}

// view returns the next bytes in place, if they are in one buffer.
func (w *wire) view(size int) ([]byte, bool) {
	here := w.current()
	if size > len(here) {
		return nil, false
	}
	w.pass(size)
	return here[:size:size], true
}

// lend calls use with the next bytes, which are valid only until it returns.
func (w *wire) lend(size int, use func(value []byte) error) error {
	if value, ok := w.view(size); ok {
		return use(value)
	}
	copied := buf.Get(size)
	defer copied.Release()
	w.read(copied.B)
	return use(copied.B)
}

// A field is one field of a message that is in one buffer. Its value excludes the length
// prefix.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte
}

// fields calls each for the fields of a message. It does not check that a field has the
// wire type of its number: the caller skips it if not, as the standard codec does.
func fields(message []byte, each func(f field) error) error {
	for len(message) > 0 {
		number, kind, n := consumeTag(message)
		if n < 0 {
			return unreadable(n)
		}
		message = message[n:]
		f := field{number: number, kind: kind}
		if kind == protowire.BytesType {
			f.value, n = protowire.ConsumeBytes(message)
		} else if n = protowire.ConsumeFieldValue(number, kind, message); n >= 0 {
			f.value = message[:n]
		}
		if n < 0 {
			return unreadable(n)
		}
		if err := each(f); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// count returns how many integers a field has, packed or not: each ends with the first
// byte whose highest bit is not set.
func (f *field) count() int {
	n := 0
	for _, b := range f.value {
		n += int(^b >> 7)
	}
	return n
}

// varints appends the integers of a field, packed or not, to numbers, with capacity for
// room of them. A field of another wire type has none.
func varints[T any](to []T, f field, room int, of func(uint64) T) ([]T, error) {
	if f.kind != protowire.VarintType && f.kind != protowire.BytesType {
		return to, nil
	}
	to = withRoom(to, room)
	for value := f.value; len(value) > 0; {
		v, n := protowire.ConsumeVarint(value)
		if n < 0 {
			return nil, unreadable(n)
		}
		to, value = append(to, of(v)), value[n:]
	}
	return to, nil
}

// fixed does the same for numbers of a fixed size.
func fixed[T any, Bits uint32 | uint64](to []T, f field, room int, kind protowire.Type, consume func([]byte) (Bits, int), of func(Bits) T) ([]T, error) {
	if f.kind != kind && f.kind != protowire.BytesType {
		return to, nil
	}
	to = withRoom(to, room)
	for value := f.value; len(value) > 0; {
		v, n := consume(value)
		if n < 0 {
			return nil, unreadable(n)
		}
		to, value = append(to, of(v)), value[n:]
	}
	return to, nil
}

func withRoom[T any](to []T, room int) []T {
	if to == nil {
		return make([]T, 0, room)
	}
	return to
}

func unreadable(n int) error {
	return infer.Errorf(infer.Invalid, "the message cannot be read: %w", protowire.ParseError(n))
}
