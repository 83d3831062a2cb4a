// Package panics records panics that were recovered, so that a defect costs the requests
// that ran into it and not the process.
//
// Every goroutine that parses or computes for a client recovers, calls [Report], and fails
// what it was working on. Nothing here decides what that is.
package panics

import (
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Limit is the number of panics within [Window] that makes a server unready: then a defect
// is not an exception any more, and requests should go elsewhere.
const (
	Limit  = 10
	Window = time.Minute
)

// A history counts panics, and remembers the times of the last ones.
type history struct {
	mu    sync.Mutex // guards the following
	count uint64
	last  [Limit]time.Time // a ring: that of panic n is at index n % Limit
}

// add counts a panic at now, and reports whether fewer than Limit came in the Window before
// it.
func (h *history) add(now time.Time) (rare bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	oldest := &h.last[h.count%Limit]
	rare = h.count < Limit || now.Sub(*oldest) >= Window
	*oldest = now
	h.count++
	return rare
}

// frequent reports whether Limit panics came in the Window before now.
func (h *history) frequent(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count >= Limit && now.Sub(h.last[h.count%Limit]) < Window
}

// process has the panics of this process: a defect may be anywhere in it.
var process history

// Report records a panic. It must be called in the deferred function that recovered cause.
// where names the work that panicked. One record with the stack goes to log, unless there
// were [Limit] in the last [Window]: clients that can cause panics must not fill the disk.
func Report(log *slog.Logger, where string, cause any, attrs ...any) {
	if !process.add(time.Now()) {
		return
	}
	log.Error("recovered from a panic: this is a defect, please report it",
		append([]any{"where", where, "cause", cause, "stack", string(debug.Stack())}, attrs...)...)
}

// Count returns the number of panics since the start.
func Count() uint64 {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.count
}

// Frequent reports whether there were [Limit] panics in the last [Window].
func Frequent() bool { return process.frequent(time.Now()) }
