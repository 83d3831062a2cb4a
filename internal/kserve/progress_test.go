package kserve_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// deadlines is a response writer that notes how often its read deadline is set.
type deadlines struct {
	*httptest.ResponseRecorder
	set, cleared int
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	if at.IsZero() {
		d.cleared++
	} else {
		d.set++
	}
	return nil
}

func TestABodyThatGetsOnHasMoreTime(t *testing.T) {
	for _, test := range []struct {
		size, chunk int
		ends        error // in place of the end of the body
		want        deadlines
		stalled     bool
	}{
		{size: 0, chunk: 1, want: deadlines{}}, // nothing to wait for
		{size: 64 << 10, chunk: 1 << 10, want: deadlines{set: 1, cleared: 1}},
		{size: 256 << 10, chunk: 1 << 10, want: deadlines{set: 5, cleared: 1}},
		{size: 256 << 10, chunk: 64<<10 - 1, want: deadlines{set: 3, cleared: 1}}, // two chunks each
		{size: 100 << 10, chunk: 1 << 10, ends: os.ErrDeadlineExceeded, want: deadlines{set: 2}, stalled: true},
		{size: 100 << 10, chunk: 1 << 10, ends: io.ErrUnexpectedEOF, want: deadlines{set: 2}},
	} {
		t.Run(fmt.Sprint(test.size, test.chunk, test.ends), func(t *testing.T) {
			w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, test.size)))
			if test.ends != nil {
				r.Body = io.NopCloser(io.MultiReader(r.Body, failing{test.ends}))
			}
			timer := kserve.BeginBody(w, r, time.Minute)
			_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, test.chunk))
			stalled := timer.End(err)
			if stalled != test.stalled || (err == nil) != (test.ends == nil) || w.set != test.want.set || w.cleared != test.want.cleared {
				t.Errorf("stalled %v, %v; deadline set %d times and cleared %d times, want %d and %d", stalled, err, w.set, w.cleared, test.want.set, test.want.cleared)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
