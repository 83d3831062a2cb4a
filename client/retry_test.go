package client

import (
	"testing"
	"time"
)

func TestRetriesAreDecided(t *testing.T) {
	const ms = time.Millisecond
	began := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	overloaded, unavailable := &Error{Code: Overloaded}, &Error{Code: Unavailable}
	asked := &Error{Code: Unavailable, RetryAfter: 300 * ms}
	for _, tt := range []struct {
		name  string
		retry Retry
		a     attempt
		now   time.Duration // since began
		wait  time.Duration
		again bool
	}{
		{name: "the zero Retry never does", a: attempt{err: asked}},
		{name: "another error", retry: Retry{Max: 1}, a: attempt{}},
		{name: "a code that waiting does not help against", retry: Retry{Max: 1}, a: attempt{err: &Error{Code: Invalid, RetryAfter: ms}}},
		{name: "as the server asks", retry: Retry{Max: 1}, a: attempt{err: asked}, wait: 300 * ms, again: true},
		{name: "first backoff, at least", retry: Retry{Max: 1}, a: attempt{err: overloaded}, wait: 50 * ms, again: true},
		{name: "first backoff, with jitter", retry: Retry{Max: 1}, a: attempt{err: overloaded, chance: 0.5}, wait: 75 * ms, again: true},
		{name: "second backoff", retry: Retry{Max: 2}, a: attempt{err: unavailable, retries: 1, chance: 0.5}, wait: 150 * ms, again: true},
		{name: "longest backoff", retry: Retry{Budget: time.Hour}, a: attempt{err: unavailable, retries: 1000}, wait: time.Second, again: true},
		{name: "the last of some", retry: Retry{Max: 3}, a: attempt{err: asked, retries: 2}, wait: 300 * ms, again: true},
		{name: "one more than that", retry: Retry{Max: 3}, a: attempt{err: asked, retries: 3}},
		{name: "at the end of the budget", retry: Retry{Budget: time.Second}, a: attempt{err: asked}, now: 700 * ms, wait: 300 * ms, again: true},
		{name: "just beyond it", retry: Retry{Budget: time.Second}, a: attempt{err: asked}, now: 700*ms + 1},
		{name: "just before the deadline", retry: Retry{Max: 1}, a: attempt{err: asked, deadline: at(300*ms + 1)}, wait: 300 * ms, again: true},
		{name: "at the deadline", retry: Retry{Max: 1}, a: attempt{err: asked, deadline: at(300 * ms)}},
		{name: "a sequence that may have run", retry: Retry{Max: 1}, a: attempt{err: unavailable, stateful: true}},
		{name: "a sequence that was refused", retry: Retry{Max: 1}, a: attempt{err: asked, stateful: true}, wait: 300 * ms, again: true},
		{name: "a sequence with a full queue", retry: Retry{Max: 1}, a: attempt{err: &Error{Code: Overloaded, RetryAfter: 300 * ms}, stateful: true}, wait: 300 * ms, again: true},
		{name: "a sequence whose answer was not read in time", retry: Retry{Max: 1}, a: attempt{err: overloaded, stateful: true}},
	} {
		tt.a.began = began
		if wait, again := tt.retry.next(tt.a, at(tt.now)); wait != tt.wait || again != tt.again {
			t.Errorf("%s: got %v, %v, want %v, %v", tt.name, wait, again, tt.wait, tt.again)
		}
	}
}
