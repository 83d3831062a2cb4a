package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
)

const (
	// maxViewers is how many streams of events may be open.
	maxViewers = 64

	// maxOfCaller is how many of them may be of one caller, and keptFree how many of the last places
	// are for callers without one: a few callers must not keep all others out.
	maxOfCaller = 8
	keptFree    = 16

	// maxStream is how long a stream is open. Browsers open another one then, and are
	// authenticated again: a key may have been revoked.
	maxStream = 5 * time.Minute

	// reopen is when browsers open another stream. Without it they wait for seconds, and the page
	// says that the server has stopped.
	reopen = 200 * time.Millisecond

	// stall is how long a client may leave an event unread. One that reads no more would hold its
	// place for ever.
	stall = 30 * time.Second

	// maxBatches is how many batches an event has at most, which bounds its size.
	maxBatches = 400
)

// A hello is the first event of a stream.
type hello struct {
	Version  string    `json:"version"`
	Interval int64     `json:"interval_ms"`
	Bounds   []float64 `json:"bounds_ms"` // upper bounds of the buckets of times
}

// A timeline is an event with the batches of the model that the viewer watches, which follow as
// "batches".
type timeline struct {
	Model   string `json:"model"`
	Version string `json:"version"`
	Missed  uint64 `json:"missed"` // batches that are left out
}

// A batch is one that has ended. Times are in microseconds: Taken is Unix time, the others are
// since then.
type batch struct {
	Number   uint64     `json:"n"`
	Instance int        `json:"i"`
	Reason   string     `json:"why"`
	Rows     int        `json:"rows"`
	Retry    bool       `json:"retry,omitempty"`
	Failed   bool       `json:"failed,omitempty"`
	Taken    int64      `json:"taken"`
	Started  int64      `json:"run"`
	Ended    int64      `json:"end"`
	Split    int64      `json:"split"`
	Requests [][2]int64 `json:"requests"` // time in the queue until Taken, and rows
}

// ServeEvents sends events until the client leaves, the server stops, or maxStream has passed. The
// parameters model and version name the version whose batches are sent; without model none are. With
// the parameter count the stream ends after that many figures.
func (d *Dashboard) ServeEvents(w http.ResponseWriter, r *http.Request) error {
	left := -1
	if text := r.URL.Query().Get("count"); text != "" {
		var err error
		if left, err = strconv.Atoi(text); err != nil || left < 1 {
			return infer.Errorf(infer.Invalid, "count: found %q, expected a number from 1", text)
		}
	}
	caller := callerOf(r)
	if err := d.board.enter(caller); err != nil {
		return err
	}
	defer d.board.leave(caller)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would collect events
	v := &viewer{dashboard: d, w: w, client: http.NewResponseController(w), model: r.URL.Query().Get("model"), version: r.URL.Query().Get("version")}
	defer v.unwatch()
	if v.begin() != nil {
		return nil // the client has left
	}
	ticker := time.NewTicker(d.opts.Interval)
	defer ticker.Stop()
	end := time.NewTimer(maxStream)
	defer end.Stop()
	for {
		if v.send(time.Now()) != nil {
			return nil // the client has left
		}
		if left--; left == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-end.C:
			return nil
		case <-r.Context().Done():
			return nil
		case <-d.src.Stopping():
			return nil
		}
	}
}

// A viewer is one open stream.
type viewer struct {
	dashboard      *Dashboard
	w              http.ResponseWriter
	client         *http.ResponseController
	edition        uint64 // of the board, that was sent last
	model, version string // that it watches; "" if none
	reel           *reel  // nil if the model does not serve
	seen           uint64 // batches of it, sent or missed
}

func (v *viewer) begin() error {
	text, err := json.Marshal(hello{Version: v.dashboard.opts.Version, Interval: v.dashboard.opts.Interval.Milliseconds(), Bounds: bounds()})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(v.w, "retry: %d\n", reopen.Milliseconds()); err != nil {
		return err
	}
	return v.event("hello", text)
}

// send sends what is new.
func (v *viewer) send(now time.Time) error {
	text, edition, err := v.dashboard.since(v.edition, now, v.dashboard.opts.Interval/2)
	if err != nil {
		return err
	}
	v.edition = edition
	if err := v.event("figures", text); err != nil {
		return err
	}
	if v.follow(); v.reel != nil {
		if err := v.sendBatches(now); err != nil {
			return err
		}
	}
	return v.client.Flush()
}

func (v *viewer) sendBatches(now time.Time) error {
	batches, last, err := v.reel.since(v.seen, now, v.dashboard.opts.Interval/2)
	if err != nil || len(batches) == 0 {
		return err
	}
	missed := last - v.seen - uint64(len(batches))
	v.seen = last
	text, err := json.Marshal(timeline{Model: v.model, Version: v.version, Missed: missed})
	if err != nil {
		return err
	}
	text = append(text[:len(text)-1], `,"batches":[`...) // in place of the last brace
	text = append(text, bytes.Join(batches, []byte(","))...)
	return v.event("batches", append(text, "]}"...))
}

func encode(b *stats.Batch) batch {
	since := func(t time.Time) int64 { return t.Sub(b.Taken).Microseconds() }
	e := batch{
		Number: b.Number, Instance: b.Instance, Reason: b.CloseReason.String(), Rows: b.Rows, Retry: b.Retry, Failed: b.Failed,
		Taken: b.Taken.UnixMicro(), Started: since(b.RunStarted), Ended: since(b.RunEnded), Split: since(b.Split),
	}
	for _, r := range b.Requests {
		e.Requests = append(e.Requests, [2]int64{-since(r.Queued), int64(r.Rows)})
	}
	return e
}

// follow watches the version that serves now: a model may be loaded, unloaded or replaced while a
// viewer watches it.
func (v *viewer) follow() {
	if v.model == "" {
		return
	}
	counters, err := v.dashboard.src.Counters(v.model, v.version)
	if err != nil {
		v.unwatch()
		return
	}
	if v.reel != nil && v.reel.counters == counters {
		return
	}
	v.unwatch()
	v.reel, v.seen = v.dashboard.reels.follow(counters)
}

func (v *viewer) unwatch() {
	if v.reel != nil {
		v.dashboard.reels.unfollow(v.reel)
	}
	v.reel, v.seen = nil, 0
}

// event writes an event. text has no line breaks. The deadline lasts until the response has ended:
// net/http removes it before the next request.
func (v *viewer) event(name string, text []byte) error {
	_ = v.client.SetWriteDeadline(time.Now().Add(stall)) // fails only if the connection is closed
	_, err := fmt.Fprintf(v.w, "event: %s\ndata: %s\n\n", name, text)
	return err
}
