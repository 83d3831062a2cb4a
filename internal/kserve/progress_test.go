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

// deadlineWriter notes the write deadlines of its connection.
type deadlineWriter struct {
	*httptest.ResponseRecorder

	writes []time.Time
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.writes = append(w.writes, t)
	return nil
}

func TestAClientHasATimeForEachPartOfALargeAnswer(t *testing.T) {
	for size, steps := range map[int]int{
		kserve.SmallAnswer: 0, kserve.SmallAnswer + 1: 1, kserve.AnswerStep + 1: 2, 10 * kserve.AnswerStep: 10,
	} {
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
		began := time.Now()
		kserve.WriteAnswer(w, make([]byte, size))
		if w.Body.Len() != size || steps == 0 && len(w.writes) > 0 {
			t.Errorf("%d of %d bytes, with the deadlines %v", w.Body.Len(), size, w.writes)
		}
		if steps > 0 && (len(w.writes) != steps+1 || w.writes[0].Before(began.Add(kserve.AnswerTimeout)) || !w.writes[steps].IsZero()) {
			t.Errorf("%d bytes have the deadlines %v", size, w.writes)
		}
	}
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
