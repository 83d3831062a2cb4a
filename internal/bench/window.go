package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded with three significant digits, up to an hour. Longer ones count as
// an hour.
const (
	longest = time.Hour
	digits  = 3
)

// A Window is the answers within a span of time. A request belongs to the window in which
// it ends.
type Window struct {
	Took   time.Duration
	Rows   int   // of requests answered without an error
	Failed int   // requests answered with an error
	Late   int   // requests sent later than their schedule requires
	Err    error // of the first failed request

	total     time.Duration // sum of latencies; that of the histogram is rounded
	latencies *hdrhistogram.Histogram
	behind    *hdrhistogram.Histogram // delays of sending; nil without due times
	spans     []Span                  // of requests with a due time that were answered without an error
}

// newWindow returns a window without answers.
func newWindow() *Window {
	return &Window{latencies: newHistogram()}
}

// Answer counts a request that was answered without an error.
func (w *Window) Answer(latency time.Duration) {
	latency = max(0, min(latency, longest))
	w.total += latency
	count(w.latencies, latency)
}

// Sent counts a request that was sent with the given delay after its due time.
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

// Requests returns the number of requests answered without an error.
func (w *Window) Requests() int { return int(w.latencies.TotalCount()) }

// Rate returns the throughput in req/s.
func (w *Window) Rate() float64 {
	if w.Took <= 0 {
		return 0
	}
	return float64(w.Requests()) / w.Took.Seconds()
}

// Latency returns a percentile of the latency, or its mean if percentile is 0.
func (w *Window) Latency(percentile float64) time.Duration {
	if percentile == 0 {
		return w.total / time.Duration(max(1, w.Requests()))
	}
	return time.Duration(w.latencies.ValueAtPercentile(percentile))
}

// merge combines consecutive windows.
func merge(windows []*Window) *Window {
	all := newWindow()
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
// The zero value is an empty timeline.
type timeline struct {
	done []Second
	open *Window // the current second
}

// at returns the second of a time since the start of the load, and closes earlier ones.
// Times must not decrease.
func (t *timeline) at(now time.Duration) *Window {
	if t.open == nil {
		t.open = newWindow()
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

// end closes the last second, which may be empty if it has just begun.
func (t *timeline) end(now time.Duration) []Second {
	if w := t.at(now); now%time.Second > 0 || w.Requests()+w.Failed > 0 {
		t.close()
	}
	return t.done
}
