package client

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// A payload is the body of a request in parts, which belong to the caller of the client.
// The transport of net/http may read a body after the call has returned; the payload
// sees to it that it does not read the caller's memory then. A nil payload is an empty
// body.
type payload struct {
	parts [][]byte

	mu       sync.Mutex // held while parts are read; guards the following
	released bool
}

// release ends all reading.
func (p *payload) release() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
}

// attach makes p the body of a request. The transport may ask for the body again, if a
// connection turns out to be closed before anything was sent.
func (p *payload) attach(req *http.Request) {
	if p == nil {
		return
	}
	for _, part := range p.parts {
		req.ContentLength += int64(len(part))
	}
	req.GetBody = func() (io.ReadCloser, error) { return &payloadReader{payload: p, rest: p.parts}, nil }
	req.Body, _ = req.GetBody()
}

// A payloadReader reads a payload once.
type payloadReader struct {
	payload *payload
	rest    [][]byte // the parts to come
	at      int      // in the first of them
}

var errReleased = errors.New("the call has returned")

// Read implements [io.Reader].
func (r *payloadReader) Read(b []byte) (n int, err error) {
	r.payload.mu.Lock()
	defer r.payload.mu.Unlock()
	if r.payload.released {
		return 0, errReleased
	}
	for n < len(b) && len(r.rest) > 0 {
		copied := copy(b[n:], r.rest[0][r.at:])
		n += copied
		if r.at += copied; r.at == len(r.rest[0]) {
			r.rest, r.at = r.rest[1:], 0
		}
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close implements [io.Closer].
func (r *payloadReader) Close() error { return nil }
