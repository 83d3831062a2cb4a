package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept to three digits, from a nanosecond to an hour. What takes
// longer counts as an hour.
const (
	longest = time.Hour
	digits  = 3
)

// A Window is what was answered in a span of time. A request belongs to the
// window in which it ends.
type Window struct {
	Took   time.Duration
	Rows   int   // of the requests that were answered without an error
	Failed int   // requests that were answered with an error
	Late   int   // requests that we sent later than their schedule says
	Err    error // that of the first that failed

	total     time.Duration // of the latencies; the histogram's own is rounded
	latencies *hdrhistogram.Histogram
	behind    *hdrhistogram.Histogram // how late requests were sent; nil if none was due at a time
	spans     []Span                  // of requests that were due at a time, and were answered without an error
}

// NewWindow returns a window in which nothing was answered.
func NewWindow() *Window {
	return &Window{latencies: newHistogram()}
}

// Answer counts a request that was answered after the latency.
func (w *Window) Answer(latency time.Duration) {
	latency = max(0, min(latency, longest))
	w.total += latency
	count(w.latencies, latency)
}

// Sent counts a request that was sent so much later than it was due.
func (w *Window) Sent(late time.Duration) {
	if late > lateness {
		w.Late++
	}
	if w.behind == nil {
		w.behind = newHistogram()
	}
	count(w.behind, max(0, min(late, longest)))
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(longest), digits) }

func count(h *hdrhistogram.Histogram, d time.Duration) {
	if err := h.RecordValue(int64(d)); err != nil {
		panic("bench: a duration within the range was refused: " + err.Error())
	}
}

// Fail counts a request that was answered with an error.
func (w *Window) Fail(err error) {
	if w.Failed == 0 {
		w.Err = err
	}
	w.Failed++
}

// Requests returns how many requests were answered without an error.
func (w *Window) Requests() int { return int(w.latencies.TotalCount()) }

// Rate returns the requests that were answered in a second.
func (w *Window) Rate() float64 {
	if w.Took <= 0 {
		return 0
	}
	return float64(w.Requests()) / w.Took.Seconds()
}

// Latency returns the one that a percentage of requests is not above, or their
// mean if percentile is 0.
func (w *Window) Latency(percentile float64) time.Duration {
	if percentile == 0 {
		return w.total / time.Duration(max(1, w.Requests()))
	}
	return time.Duration(w.latencies.ValueAtPercentile(percentile))
}

// Merge returns one window in place of several that follow each other.
func Merge(windows []*Window) *Window {
	all := NewWindow()
	for _, w := range windows {
		if all.Err == nil {
			all.Err = w.Err
		}
		all.Took += w.Took
		all.Rows += w.Rows
		all.Failed += w.Failed
		all.Late += w.Late
		all.total += w.total
		all.latencies.Merge(w.latencies)
		all.spans = append(all.spans, w.spans...)
		if w.behind != nil {
			if all.behind == nil {
				all.behind = newHistogram()
			}
			all.behind.Merge(w.behind)
		}
	}
	return all
}

// A timeline divides a load into seconds. A request belongs to the second in which it ends.
// The zero value has not begun.
type timeline struct {
	done []Second
	open *Window // the second after those
}

// at returns the second that a time since the load's begin belongs to, and
// closes those before it. Times may only go on.
func (t *timeline) at(now time.Duration) *Window {
	if t.open == nil {
		t.open = NewWindow()
	}
	for time.Duration(len(t.done)+1)*time.Second <= now {
		t.close()
	}
	return t.open
}

func (t *timeline) close() {
	w := t.open
	t.done = append(t.done, Second{
		At: time.Duration(len(t.done)) * time.Second, Requests: w.Requests(), Failed: w.Failed,
		P50: w.Latency(50), P99: w.Latency(99), Max: w.Latency(100),
	})
	w.Failed = 0
	w.latencies.Reset()
}

// end closes the last second, in which nothing may have been answered if it has
// just begun.
func (t *timeline) end(now time.Duration) []Second {
	if w := t.at(now); now%time.Second > 0 || w.Requests()+w.Failed > 0 {
		t.close()
	}
	return t.done
}
