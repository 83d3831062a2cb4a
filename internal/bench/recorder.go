package bench

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An answer is how one request went.
type answer struct {
	rows             int
	due, sent, ended time.Time
	err              error
}

// A recorder collects what is answered in the window that is open. All clients
// share one: a lock for as long as it takes to count is little beside a request.
type recorder struct {
	began   time.Time     // of the load
	want    int           // answers that end a window; 0 means that none do
	enough  chan struct{} // has a place for the one word that a window gets
	waiting atomic.Int64  // requests that are sent and not answered

	mu       sync.Mutex // guards the following
	window   *Window
	opened   time.Time // when the window was
	timeline timeline
}

func (r *recorder) begin(now time.Time, want int) {
	r.began, r.opened = now, now
	r.want, r.enough = want, make(chan struct{}, 1)
	r.window = NewWindow()
}

// record counts an answer. planned says that the request was due at a time.
func (r *recorder) record(a answer, planned bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Another one that ended later may have been here before.
	second := r.timeline.at(a.ended.Sub(r.began))
	if planned {
		r.window.Sent(a.sent.Sub(a.due))
	}
	if a.err != nil {
		r.window.Fail(a.err)
		second.Fail(a.err)
	} else {
		latency := a.ended.Sub(a.due)
		r.window.Rows += a.rows
		r.window.Answer(latency)
		second.Answer(latency)
		if planned {
			r.window.spans = append(r.window.spans, Span{a.due.Sub(r.began), a.ended.Sub(r.began)})
		}
	}
	if r.window.Requests()+r.window.Failed == r.want {
		select {
		case r.enough <- struct{}{}:
		default: // the last window ended without waiting for it
		}
	}
}

// cut closes the window and opens the next. The caller owns the closed one.
func (r *recorder) cut(now time.Time) *Window {
	next := NewWindow()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.window
	w.Took = now.Sub(r.opened)
	r.window, r.opened = next, now
	return w
}

// soFar returns a copy of the figures of the window that is open.
func (r *recorder) soFar(now time.Time) *Window {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := *r.window
	open.spans = nil // there may be many
	w := Merge([]*Window{&open})
	w.Took = now.Sub(r.opened)
	return w
}

// end returns the seconds until now. What is answered later is in none.
func (r *recorder) end(now time.Time) []Second {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.timeline.end(now.Sub(r.began)))
}
