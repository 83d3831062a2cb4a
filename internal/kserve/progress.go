package kserve

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"
)

// bodyProgress is how much of a body must arrive within the timeout of [BeginBody].
const bodyProgress = 64 << 10

const (
	// AnswerStep is how much of a response a client must take within AnswerTimeout.
	AnswerStep = 256 << 10

	// SmallAnswer is the size of responses that have no time limit: they fit into the kernel's
	// buffer of a new connection, and no client can hold more than that.
	SmallAnswer = 16 << 10

	// AnswerTimeout is long enough for a network that pauses.
	AnswerTimeout = 30 * time.Second
)

// WriteAnswer writes the body of a response. The client must take each AnswerStep of it within
// AnswerTimeout, unless it is small. It may have disconnected.
func WriteAnswer(w http.ResponseWriter, body []byte) {
	if len(body) <= SmallAnswer {
		_, _ = w.Write(body)
		return
	}
	client := http.NewResponseController(w)
	defer func() { _ = client.SetWriteDeadline(time.Time{}) }() // the next answer starts without one
	for step := range slices.Chunk(body, AnswerStep) {
		_ = client.SetWriteDeadline(time.Now().Add(AnswerTimeout)) // fails only if the connection is closed
		if _, err := w.Write(step); err != nil {
			return
		}
	}
}

// A BodyTimer interrupts a client that does not get on with its body: if neither the next
// 64 KiB of it nor the rest arrive within the timeout. A slow client that gets on is not
// interrupted.
type BodyTimer struct {
	w       http.ResponseWriter
	r       *http.Request // nil if there is no body
	timeout time.Duration // 0 means none
}

// ConnKey is the key of the connection in the context of an HTTP request, which may have a method
// Closing: whether the server stops.
type ConnKey struct{}

// BeginBody starts the time of the body of r, which the caller reads next. 0 means no
// timeout. It may replace the body of r.
func BeginBody(w http.ResponseWriter, r *http.Request, timeout time.Duration) BodyTimer {
	if r.ContentLength == 0 {
		return BodyTimer{}
	}
	t := BodyTimer{w, r, timeout}
	if timeout == 0 {
		return t
	}
	t.extend()
	if r.ContentLength < 0 || r.ContentLength > bodyProgress {
		r.Body = &progressReader{ReadCloser: r.Body, timer: t}
	}
	return t
}

// End stops the time when the body was read, or reading has failed with err. It reports
// whether the error is that of a client that did not get on.
func (t BodyTimer) End(err error) (stalled bool) {
	if t.r == nil {
		return false
	}
	if err == nil {
		// net/http keeps reading in order to notice that the client disconnects.
		_ = http.NewResponseController(t.w).SetReadDeadline(time.Time{})
	}
	// Otherwise the deadline stays set, so that net/http does not wait for the rest of the body.
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// mostRest is how much of a body may follow what a handler wants of it, as much as net/http reads
// itself before it answers.
const mostRest = 256 << 10

// SkipRest reads what follows in a body whose handler has all that it wants: bytes after the end of
// compressed data, or after the last part of a form. They must arrive before [BodyTimer.End]:
// net/http waits for them before it sends an answer, and has no time limit then.
func SkipRest(body io.Reader) error {
	switch _, err := io.CopyN(io.Discard, body, mostRest); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("more than %d bytes follow the end of what the body has", mostRest)
}

// Stopping reports whether a client that did not get on had less time because the server stops.
// Then the response asks it to close the connection.
func (t BodyTimer) Stopping() bool {
	c, ok := t.r.Context().Value(ConnKey{}).(interface{ Closing() bool })
	if !ok || !c.Closing() {
		return false
	}
	t.w.Header().Set("Connection", "close")
	return true
}

// extend starts the time anew. Writers without a connection have no deadlines.
func (t BodyTimer) extend() {
	_ = http.NewResponseController(t.w).SetReadDeadline(time.Now().Add(t.timeout))
}

// A progressReader extends the deadline whenever enough was read.
type progressReader struct {
	io.ReadCloser

	timer BodyTimer
	n     int // bytes since the deadline was extended
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if p.n += n; p.n >= bodyProgress {
		p.n = 0
		p.timer.extend()
	}
	return n, err
}
