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

// maxWatched is how many of the last batches are kept for viewers. A viewer that reads twice
// a second misses none of 1,000 batches per second.
const maxWatched = 512

// A watched holds the last batches of a version while there are viewers.
type watched struct {
	mu     sync.Mutex        // guards the following
	last   uint64            // number of the last batch
	recent [maxWatched]Batch // batch n is at n % maxWatched
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
	fresh := w.watched.last - w.seen
	kept := min(fresh, maxWatched, uint64(n))
	for number := w.watched.last - kept + 1; number <= w.watched.last; number++ {
		b := w.watched.recent[number%maxWatched]
		b.Requests = slices.Clone(b.Requests) // its memory is used again
		batches = append(batches, b)
	}
	w.seen = w.watched.last
	return batches, fresh - kept
}

// Watched reports whether a watch is open.
func (c *Counters) Watched() bool { return c.watched.Load() != nil }

// Observe shows a batch to the open watches, and copies its requests. The number of b is not used.
func (c *Counters) Observe(b *Batch) {
	now := c.watched.Load()
	if now == nil {
		return
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	now.last++
	entry := &now.recent[now.last%maxWatched]
	requests := append(entry.Requests[:0], b.Requests...)
	*entry = *b
	entry.Number, entry.Requests = now.last, requests
}
