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

// firstChunk is the memory that a body of unknown length starts with.
const firstChunk = 64 << 10

// readBody returns the body of a request, with one count that is the caller's. A
// client that is too slow is not waited for.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request) (*buf.Buf, error) {
	if h.opts.BodyTimeout == 0 || r.ContentLength == 0 {
		return readBody(r, &h.opts.Limits)
	}
	conn := http.NewResponseController(w)
	// A writer that has no connection has no deadlines either.
	_ = conn.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout))
	body, err := readBody(r, &h.opts.Limits)
	switch {
	case err == nil:
		// Whether the client is still there is found out by reading on.
		_ = conn.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The deadline stays, so that nobody waits for the rest of the body.
		return nil, infer.Errorf(infer.Invalid, "the body of the request was not here after %v; send it faster, or let the server wait for longer", h.opts.BodyTimeout)
	}
	return body, err
}

// readBody returns the body of a request, decompressed, with one count that is
// the caller's. Nothing is read of a body that says it is longer than allowed.
func readBody(r *http.Request, limits *kserve.Limits) (*buf.Buf, error) {
	encoding, err := bodyEncoding(r.Header.Values("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	if err := limits.CheckBody(r.ContentLength); err != nil {
		return nil, err
	}
	if encoding != "" {
		return inflate(r, encoding, limits)
	}
	if r.ContentLength >= 0 {
		return readKnown(r.Body, int(r.ContentLength))
	}
	return readUnknown(&sent{body: r.Body, limits: limits}, limits.Body)
}

func readKnown(r io.Reader, size int) (*buf.Buf, error) {
	b := buf.Get(size)
	if n, err := io.ReadFull(r, b.B); err != nil {
		b.Release()
		return nil, cutShort(int64(n), err)
	}
	return b, nil
}

// readUnknown reads to the end, and doubles its memory whenever it is full, up to
// one byte more than most. r has an error for that byte.
func readUnknown(r io.Reader, most int64) (*buf.Buf, error) {
	b, size := buf.Get(int(min(firstChunk, most+1))), 0
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
			b = grown(b, most)
		}
	}
}

// grown returns a larger copy of b, and lets go of b.
func grown(b *buf.Buf, most int64) *buf.Buf {
	larger := buf.Get(int(min(2*int64(len(b.B)), most+1)))
	copy(larger.B, b.B)
	b.Release()
	return larger
}

// sent reads a body as it is sent. What goes wrong is remembered, because who
// decompresses the body may say it in other words.
type sent struct {
	body   io.Reader
	limits *kserve.Limits
	n      int64
	err    error
}

func (s *sent) Read(p []byte) (int, error) {
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
