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

// A Reader decodes a table that an untrusted process wrote. The caller passes a copy, which
// that process cannot change. The first error is kept in Err, and all later reads return
// zeros.
type Reader struct {
	B   []byte
	At  int
	Err error
}

// Fail records an error, unless there is one already.
func (r *Reader) Fail(format string, args ...any) {
	if r.Err == nil {
		r.Err = fmt.Errorf(format, args...)
	}
}

// Next returns the next n bytes, or nil.
func (r *Reader) Next(n int) []byte {
	if r.Err != nil || n < 0 || n > len(r.B)-r.At {
		r.short(n)
		return nil
	}
	r.At += n
	return r.B[r.At-n : r.At]
}

// U32 reads a number of four bytes.
func (r *Reader) U32() uint32 {
	if r.Err != nil || len(r.B)-r.At < 4 {
		r.short(4)
		return 0
	}
	r.At += 4
	return binary.LittleEndian.Uint32(r.B[r.At-4:])
}

// U64 reads a number of eight bytes.
func (r *Reader) U64() uint64 {
	if r.Err != nil || len(r.B)-r.At < 8 {
		r.short(8)
		return 0
	}
	r.At += 8
	return binary.LittleEndian.Uint64(r.B[r.At-8:])
}

// short records that the table ends before n more bytes.
func (r *Reader) short(n int) {
	r.Fail("a table that ends after %d bytes, expected %d more", len(r.B), n)
}
