package kservehttp

import (
	"io"
	"net/http"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
)

// firstChunk is the memory that a body of unknown length starts with.
const firstChunk = 64 << 10

// readBody returns the body of a request, with one count that is the caller's.
// Nothing is read of a body that says it is longer than most.
func readBody(r *http.Request, most int64) (*buf.Buf, error) {
	switch {
	case r.ContentLength > most:
		return nil, tooLong(most)
	case r.ContentLength >= 0:
		return readKnown(r.Body, int(r.ContentLength))
	}
	return readUnknown(r.Body, most)
}

func readKnown(r io.Reader, size int) (*buf.Buf, error) {
	b := buf.Get(size)
	if n, err := io.ReadFull(r, b.B); err != nil {
		b.Release()
		return nil, cutShort(n, err)
	}
	return b, nil
}

// readUnknown reads to the end, and doubles its memory whenever it is full.
func readUnknown(r io.Reader, most int64) (*buf.Buf, error) {
	b, size := buf.Get(int(min(firstChunk, most+1))), 0
	for {
		n, err := r.Read(b.B[size:])
		size += n
		switch {
		case int64(size) > most:
			b.Release()
			return nil, tooLong(most)
		case err == io.EOF:
			b.B = b.B[:size]
			return b, nil
		case err != nil:
			b.Release()
			return nil, cutShort(size, err)
		case size == len(b.B):
			b = grown(b, most)
		}
	}
}

// grown returns a larger copy of b, and lets go of b. It may have one byte more
// than most, to find out that there are.
func grown(b *buf.Buf, most int64) *buf.Buf {
	larger := buf.Get(int(min(2*int64(len(b.B)), most+1)))
	copy(larger.B, b.B)
	b.Release()
	return larger
}

func tooLong(most int64) error {
	return infer.Errorf(infer.Invalid, "the body of the request is longer than the %d bytes that are allowed", most)
}

func cutShort(n int, err error) error {
	return infer.Errorf(infer.Cancelled, "the body of the request ended after %d bytes: %w", n, err)
}
