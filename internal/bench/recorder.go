package bench

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An answer is the result of one request.
type answer struct {
	rows             int
	due, sent, ended time.Time
	err              error
}

// A recorder collects the answers of the current window. All clients share one; its lock
// is held only briefly.
type recorder struct {
	began   time.Time     // start of the load
	want    int           // number of answers that ends a window; 0 means no limit
	enough  chan struct{} // receives one value when a window has enough answers; size 1
	waiting atomic.Int64  // requests in flight

	mu       sync.Mutex // guards the following
	window   *Window
	opened   time.Time // start of the current window
	timeline timeline
}

func (r *recorder) begin(now time.Time, want int) {
	r.began, r.opened = now, now
	r.want, r.enough = want, make(chan struct{}, 1)
	r.window = newWindow()
}

// record counts an answer. planned reports whether the request had a due time.
func (r *recorder) record(a answer, planned bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// An answer that ended later may have been recorded before.
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
		default: // the last window ended before the value was received
		}
	}
}

// cut closes the window and opens the next. The caller owns the closed one.
func (r *recorder) cut(now time.Time) *Window {
	next := newWindow()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.window
	w.Took = now.Sub(r.opened)
	r.window, r.opened = next, now
	return w
}

// soFar returns a copy of the figures of the current window.
func (r *recorder) soFar(now time.Time) *Window {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := *r.window
	open.spans = nil // may be large
	w := merge([]*Window{&open})
	w.Took = now.Sub(r.opened)
	return w
}

// end returns the timeline until now. Later answers are not part of it.
func (r *recorder) end(now time.Time) []Second {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.timeline.end(now.Sub(r.began)))
}
