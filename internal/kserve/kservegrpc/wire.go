package kservegrpc

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
)

// A wire is a message as grpc received it, in pieces. It is read from its first
// byte to its last, and what lies in one piece is not copied.
type wire struct {
	left  int             // bytes
	later mem.BufferSlice // pieces that have not been begun
	piece mem.Buffer      // the one that is being read
	rest  []byte          // of it
	held  bool            // by whoever keeps a view of it

	border [2 * binary.MaxVarintLen64]byte // a tag and a length across a border of pieces
}

func newWire(message mem.BufferSlice) wire { return wire{left: message.Len(), later: message} }

// here returns what is left of the piece that is being read, which is not empty
// unless all is read.
func (w *wire) here() []byte {
	for len(w.rest) == 0 && len(w.later) > 0 {
		w.piece, w.later = w.later[0], w.later[1:]
		w.rest, w.held = w.piece.ReadOnlyData(), false
	}
	return w.rest
}

// ahead returns the next bytes, at least as many as a tag and a length can have or
// as there are. They are not passed.
func (w *wire) ahead() []byte {
	here := w.here()
	if len(here) >= len(w.border) || len(here) == w.left {
		return here
	}
	n := copy(w.border[:], here)
	for _, piece := range w.later {
		n += copy(w.border[n:], piece.ReadOnlyData())
	}
	return w.border[:n]
}

func (w *wire) pass(n int) {
	w.left -= n
	for n > 0 {
		passed := min(n, len(w.here()))
		w.rest = w.rest[passed:]
		n -= passed
	}
}

// next reads a tag and, of a field that has one, the length.
func (w *wire) next() (number protowire.Number, kind protowire.Type, size int, err error) {
	ahead := w.ahead()
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

// protowire's numbers for what is wrong.
const (
	truncated = -1
	badNumber = -2
)

// consumeTag is protowire's, which also takes numbers that fields cannot have.
func consumeTag(b []byte) (number protowire.Number, kind protowire.Type, n int) {
	number, kind, n = protowire.ConsumeTag(b)
	if number > protowire.MaxValidNumber {
		n = badNumber
	}
	return number, kind, n
}

// passValue passes the value of a field that has no length. No message here has
// such fields, so a group, which may be long, may take its time.
func (w *wire) passValue(number protowire.Number, kind protowire.Type) error {
	if kind == protowire.StartGroupType && len(w.here()) < w.left {
		flat := make([]byte, w.left)
		w.read(flat)
		*w = newWire(mem.BufferSlice{mem.SliceBuffer(flat)})
	}
	n := protowire.ConsumeFieldValue(number, kind, w.ahead())
	if n < 0 {
		return unreadable(n)
	}
	w.pass(n)
	return nil
}

// read copies the next bytes.
func (w *wire) read(to []byte) {
	for n := 0; n < len(to); {
		copied := copy(to[n:], w.here())
		w.pass(copied)
		n += copied
	}
}

// view returns the next bytes where they are, if they are in one piece.
func (w *wire) view(size int) ([]byte, bool) {
	here := w.here()
	if size > len(here) {
		return nil, false
	}
	w.pass(size)
	return here[:size:size], true
}

// lend calls use with the next bytes, which are nobody's once it has returned.
func (w *wire) lend(size int, use func(value []byte) error) error {
	if value, ok := w.view(size); ok {
		return use(value)
	}
	copied := buf.Get(size)
	defer copied.Release()
	w.read(copied.B)
	return use(copied.B)
}

// A field is one field of a message that is in one piece. Its value has no length
// before it.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte
}

// fields calls each for the fields of a message. One of another kind than its
// number stands for is left to the caller, which passes over it as the plain codec
// does.
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

// count returns how many integers a field holds, packed or not: each ends with
// the first byte whose highest bit is not set.
func (f *field) count() int {
	n := 0
	for _, b := range f.value {
		n += int(^b >> 7)
	}
	return n
}

// varints appends the integers that a field holds, packed or not, to numbers for
// which there shall be so much room. A field of another kind holds none.
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

// fixed does the same for numbers that all have one size.
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
