package memfd

import (
	"encoding/binary"
	"fmt"
)

// FrameSize is how many bytes AppendFrame appends.
const FrameSize = 32

// AppendFrame appends the fixed part of a frame, a message between two processes that
// share memory. The meaning of the words depends on the kind.
func AppendFrame(b []byte, kind, flags uint16, number uint32, words [3]uint64) []byte {
	b = binary.LittleEndian.AppendUint16(b, kind)
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = binary.LittleEndian.AppendUint32(b, number)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// A Reader decodes a table that an untrusted process wrote. The first error is kept in Err, and all
// later reads return zeros.
type Reader struct {
	Rest []byte // what was not read yet; none after an error
	Err  error

	size int // of the table
}

// NewReader returns a reader of a table. The caller passes a copy, which the other process cannot
// change.
func NewReader(table []byte) Reader { return Reader{Rest: table, size: len(table)} }

// Fail records an error, unless there is one already.
func (r *Reader) Fail(format string, args ...any) {
	if r.Err == nil {
		r.Err = fmt.Errorf(format, args...)
		r.Rest = nil
	}
}

// End records an error if not all of the table was read, and returns the first error.
func (r *Reader) End() error {
	if len(r.Rest) > 0 {
		r.Fail("a table of %d bytes of which %d are used", r.size, r.size-len(r.Rest))
	}
	return r.Err
}

// Next returns the next n bytes, or nil.
func (r *Reader) Next(n int) []byte {
	b := r.Rest
	if n < 0 || n > len(b) {
		r.short(n)
		return nil
	}
	r.Rest = b[n:]
	return b[:n]
}

// U32 reads a number of four bytes.
func (r *Reader) U32() uint32 {
	b := r.Rest
	if len(b) < 4 {
		r.short(4)
		return 0
	}
	r.Rest = b[4:]
	return binary.LittleEndian.Uint32(b)
}

// U64 reads a number of eight bytes.
func (r *Reader) U64() uint64 {
	b := r.Rest
	if len(b) < 8 {
		r.short(8)
		return 0
	}
	r.Rest = b[8:]
	return binary.LittleEndian.Uint64(b)
}

// short records that the table ends before n more bytes.
func (r *Reader) short(n int) {
	r.Fail("a table that ends after %d bytes, expected %d more", r.size, n)
}
