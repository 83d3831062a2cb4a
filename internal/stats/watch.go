package stats

import (
	"slices"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Batch is one run of the engine with the requests that shared it, as a timeline shows it.
type Batch struct {
	Number      uint64 // from 1, in the order in which watched runs ended
	Instance    int    // from 1
	CloseReason batching.Reason
	Rows        int
	Retry       bool // it is run again, or a part of it
	Failed      bool

	Taken      time.Time // the instance took it
	RunStarted time.Time // the engine was called
	RunEnded   time.Time // the engine returned
	Split      time.Time // the outputs were split

	Requests []BatchRequest // in the order of their rows
}

// A BatchRequest is one request of a batch.
type BatchRequest struct {
	Queued time.Time
	Rows   int
}

const (
	// maxWatched is how many of the last batches are kept for viewers.
	maxWatched = 512

	// In each window at most maxPerWindow batches are shown: no viewer sees more, and the others
	// must not cost what these do.
	window       = 500 * time.Millisecond
	maxPerWindow = 400
)

// A watched holds the last batches of a version while there are viewers.
type watched struct {
	mu       sync.Mutex        // guards the following
	last     uint64            // number of the last batch, shown or not
	shown    uint64            // how many were shown
	recent   [maxWatched]Batch // the nth of them is at n % maxWatched
	began    time.Time         // of the window
	inWindow int               // shown in it
}

// A Watch reads the batches that end while it is open. Only open watches cost something: without
// one, a batch costs a check of a pointer.
type Watch struct {
	counters *Counters
	watched  *watched
	seen     uint64 // number of the last batch that was returned or missed
}

// Watch opens a watch, which the caller must close.
func (c *Counters) Watch() *Watch {
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	if c.viewers++; c.viewers == 1 {
		c.watched.Store(&watched{})
	}
	now := c.watched.Load()
	now.mu.Lock()
	defer now.mu.Unlock()
	return &Watch{counters: c, watched: now, seen: now.last}
}

// Close closes the watch. The last one gives the memory back.
func (w *Watch) Close() {
	c := w.counters
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	if c.viewers--; c.viewers == 0 {
		c.watched.Store(nil)
	}
}

// Next returns the batches that have ended since the last call, at most n of them: the newest.
// missed is the number of the others.
func (w *Watch) Next(n int) (batches []Batch, missed uint64) {
	w.watched.mu.Lock()
	defer w.watched.mu.Unlock()
	shown, most := w.watched.shown, min(w.watched.shown, maxWatched, uint64(n))
	fresh := uint64(0)
	for fresh < most && w.watched.recent[(shown-fresh)%maxWatched].Number > w.seen {
		fresh++
	}
	for i := shown - fresh + 1; i <= shown; i++ {
		b := w.watched.recent[i%maxWatched]
		b.Requests = slices.Clone(b.Requests) // its memory is used again
		batches = append(batches, b)
	}
	missed = w.watched.last - w.seen - fresh
	w.seen = w.watched.last
	return batches, missed
}

// Seen returns the number of the last batch that Next returned or missed.
func (w *Watch) Seen() uint64 { return w.seen }

// Observes reports whether a batch that ended at the given time is to be shown to watches, with
// Observe. One that is not counts as missed.
func (c *Counters) Observes(ended time.Time) bool {
	now := c.watched.Load()
	if now == nil {
		return false
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	if ended.Sub(now.began) >= window {
		now.began, now.inWindow = ended, 0
	}
	if now.inWindow == maxPerWindow {
		now.last++
		return false
	}
	now.inWindow++
	return true
}

// Observe shows a batch to the open watches, and copies its requests. The number of b is not used.
func (c *Counters) Observe(b *Batch) {
	now := c.watched.Load()
	if now == nil {
		return
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	now.last++
	now.shown++
	entry := &now.recent[now.shown%maxWatched]
	requests := append(entry.Requests[:0], b.Requests...)
	*entry = *b
	entry.Number, entry.Requests = now.last, requests
}
