package kservehttp

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// initialBodySize is the first allocation for a body of unknown length.
const initialBodySize = 64 << 10

// readBody returns the body of a request. The caller owns the reference. It fails if the
// body does not arrive within BodyTimeout.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request) (*buf.Buf, error) {
	if h.opts.BodyTimeout == 0 || r.ContentLength == 0 {
		return readBody(r, &h.opts.Limits)
	}
	conn := http.NewResponseController(w)
	// Writers without a connection do not support deadlines.
	_ = conn.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout))
	body, err := readBody(r, &h.opts.Limits)
	switch {
	case err == nil:
		// net/http keeps reading in order to notice that the client disconnects.
		_ = conn.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The deadline stays set, so that net/http does not wait for the rest of the body.
		return nil, infer.Errorf(infer.Invalid, "the body of the request did not arrive within %v; send it faster, or raise --body-timeout-secs", h.opts.BodyTimeout)
	}
	return body, err
}

// readBody returns the decompressed body of a request. The caller owns the reference. If
// the Content-Length exceeds the limit, it reads nothing.
func readBody(r *http.Request, limits *kserve.Limits) (*buf.Buf, error) {
	encoding, err := bodyEncoding(r.Header.Values("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	if err := limits.CheckBody(r.ContentLength); err != nil {
		return nil, err
	}
	if encoding != "" {
		return decompress(r, encoding, limits)
	}
	if r.ContentLength >= 0 {
		return readKnown(r.Body, int(r.ContentLength))
	}
	return readUnknown(&bodyReader{body: r.Body, limits: limits}, limits.Body)
}

func readKnown(r io.Reader, size int) (*buf.Buf, error) {
	b := buf.Get(size)
	if n, err := io.ReadFull(r, b.B); err != nil {
		b.Release()
		return nil, cutShort(int64(n), err)
	}
	return b, nil
}

// readUnknown reads until EOF, and doubles its memory whenever it is full, up to limit
// plus one byte. r returns an error for that byte.
func readUnknown(r io.Reader, limit int64) (*buf.Buf, error) {
	b, size := buf.Get(int(min(initialBodySize, limit+1))), 0
	for {
		n, err := r.Read(b.B[size:])
		size += n
		switch {
		case err == io.EOF:
			b.B = b.B[:size]
			return b, nil
		case err != nil:
			b.Release()
			return nil, err
		case size == len(b.B):
			b = grow(b, limit)
		}
	}
}

// grow returns a larger copy of b, and releases b.
func grow(b *buf.Buf, limit int64) *buf.Buf {
	larger := buf.Get(int(min(2*int64(len(b.B)), limit+1)))
	copy(larger.B, b.B)
	b.Release()
	return larger
}

// A bodyReader reads a body as sent. It keeps its error, because a decompressor may
// replace it with another.
type bodyReader struct {
	body   io.Reader
	limits *kserve.Limits
	n      int64
	err    error
}

func (s *bodyReader) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.n += int64(n)
	switch over := s.limits.CheckBody(s.n); {
	case over != nil:
		s.err = over
	case err != nil && err != io.EOF:
		s.err = cutShort(s.n, err)
	default:
		return n, err
	}
	return n, s.err
}

func cutShort(n int64, err error) error {
	return infer.Errorf(infer.Cancelled, "the body of the request ended after %d bytes: %w", n, err)
}
