package memfd

import (
	"encoding/binary"
	"fmt"
)

// A Reader reads a table that another process wrote, and that it cannot change any
// more. It believes nothing: what does not add up is remembered as an error, after
// which it reads zeros.
type Reader struct {
	B   []byte
	At  int
	Err error
}

// Fail remembers an error, unless there is one.
func (r *Reader) Fail(format string, args ...any) {
	if r.Err == nil {
		r.Err = fmt.Errorf(format, args...)
	}
}

// Next returns the next n bytes, or nil.
func (r *Reader) Next(n int) []byte {
	if r.Err != nil {
		return nil
	}
	if n < 0 || n > len(r.B)-r.At {
		r.Fail("a table that ends after %d bytes, expected %d more", len(r.B), n)
		return nil
	}
	r.At += n
	return r.B[r.At-n : r.At]
}

// U32 reads a number of four bytes.
func (r *Reader) U32() uint32 {
	if b := r.Next(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U64 reads a number of eight bytes.
func (r *Reader) U64() uint64 {
	if b := r.Next(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}
