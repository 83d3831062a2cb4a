package kservehttp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

const (
	// initialBodySize is the first allocation for a body of unknown length.
	initialBodySize = 64 << 10

	// maxPreallocated is how much memory is allocated before the body arrives, because of its
	// Content-Length. The buffer of a longer body grows with what has arrived, so that a
	// client cannot claim memory without sending data.
	maxPreallocated = 1 << 20
)

// errStopping refuses a request whose body has not arrived when the server stops.
var errStopping = infer.Errorf(infer.Unavailable, "the server is shutting down, and the body of the request has not arrived")

// readBody returns the decompressed body of a request. The caller owns the reference. It
// fails if the body stalls for BodyTimeout, or if charge cannot grow by its size.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request, charge *budget.Charge) (*buf.Buf, error) {
	timer := kserve.BeginBody(w, r, h.opts.BodyTimeout)
	body, err := readUntimed(r, &h.opts.Limits, charge)
	if timer.End(err) {
		if timer.Stopping() {
			return nil, errStopping
		}
		return nil, infer.Errorf(infer.Invalid, "the body of the request did not arrive within %v; send it faster, or raise --body-timeout-secs", h.opts.BodyTimeout)
	}
	return body, err
}

// readUntimed is readBody without a timeout. It returns the body decompressed. If the
// Content-Length exceeds the limit, it reads nothing.
func readUntimed(r *http.Request, limits *kserve.Limits, charge *budget.Charge) (*buf.Buf, error) {
	encoding, err := bodyEncoding(r.Header["Content-Encoding"])
	if err != nil {
		return nil, err
	}
	if err := limits.CheckBody(r.ContentLength); err != nil {
		return nil, err
	}
	if encoding != "" {
		return decompress(r, encoding, limits, charge)
	}
	if r.ContentLength >= 0 {
		return readKnown(r.Body, int(r.ContentLength), charge)
	}
	return readUnknown(&bodyReader{body: r.Body, limits: limits}, limits.Body, charge)
}

// allocate returns a buffer of the given size, and adds the buffer's capacity to charge. It
// fails if that exceeds the budget.
func allocate(size int, charge *budget.Charge) (*buf.Buf, error) {
	if !charge.Grow(int64(buf.Capacity(size))) {
		return nil, kserve.ErrOverBudget
	}
	return buf.Get(size), nil
}

// readKnown reads a body of the given size. It grows its memory eightfold whenever that is full,
// up to size, beginning with maxPreallocated.
func readKnown(r io.Reader, size int, charge *budget.Charge) (*buf.Buf, error) {
	b, err := allocate(min(size, maxPreallocated), charge)
	if err != nil {
		return nil, err
	}
	for done := 0; ; {
		n, err := io.ReadFull(r, b.B[done:])
		if done += n; err != nil {
			b.Release()
			return nil, incompleteBody(int64(done), err)
		}
		if done == size {
			return b, nil
		}
		if b, err = grow(b, min(8*done, size), charge); err != nil {
			return nil, err
		}
	}
}

// readUnknown reads until EOF, and doubles its memory whenever it is full, up to limit
// plus one byte. r returns an error for that byte.
func readUnknown(r io.Reader, limit int64, charge *budget.Charge) (*buf.Buf, error) {
	b, err := allocate(int(min(initialBodySize, limit+1)), charge)
	if err != nil {
		return nil, err
	}
	for size := 0; ; {
		n, err := r.Read(b.B[size:])
		size += n
		switch {
		case errors.Is(err, io.EOF):
			b.B = b.B[:size]
			return b, nil
		case err != nil:
			b.Release()
			return nil, err
		case size == len(b.B):
			if b, err = grow(b, int(min(2*int64(len(b.B)), limit+1)), charge); err != nil {
				return nil, err
			}
		}
	}
}

// grow returns a copy of b with more memory, and releases b. charge grows by the difference:
// both exist only while b is copied.
func grow(b *buf.Buf, size int, charge *budget.Charge) (*buf.Buf, error) {
	defer b.Release()
	if !charge.Grow(int64(buf.Capacity(size) - buf.Capacity(len(b.B)))) {
		return nil, kserve.ErrOverBudget
	}
	larger := buf.Get(size)
	copy(larger.B, b.B)
	return larger, nil
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
		s.err = incompleteBody(s.n, err)
	default:
		return n, err
	}
	return n, s.err
}

// incompleteBody returns the error of a body that could not be read to its end: its client has gone,
// or has sent what HTTP does not allow, such as a chunk whose length is not a number.
func incompleteBody(n int64, err error) error {
	_, broken := errors.AsType[net.Error](err)
	if broken || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled) {
		return infer.Errorf(infer.Cancelled, "the body of the request ended after %d bytes: %w", n, err)
	}
	return infer.Errorf(infer.Invalid, "the body of the request cannot be read after %d bytes: %w", n, err)
}
