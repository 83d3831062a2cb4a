package server

import (
	"sync"
	"time"
)

// maxFailures is the number of failed loads that are logged in a minute, and of failed requests.
// Clients can make thousands of them in a second, and get the reason in any case.
const maxFailures = 100

// A logLimit bounds the number of records in a minute.
type logLimit struct {
	mu      sync.Mutex // guards the following
	since   time.Time  // when the minute began
	logged  int        // in the minute
	skipped int        // since the last record
}

// allow reports whether a record may be logged at now, and how many were skipped before it.
func (l *logLimit) allow(now time.Time) (ok bool, skipped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Minute {
		l.since, l.logged = now, 0
	}
	if l.logged == maxFailures {
		l.skipped++
		return false, 0
	}
	l.logged++
	skipped, l.skipped = l.skipped, 0
	return true, skipped
}
