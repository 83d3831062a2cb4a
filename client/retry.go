package client

import "time"

// A Retry says how long and how often a client sends a call again that failed with
// [Overloaded] or [Unavailable]. It waits for as long as the server asks for
// ([Error.RetryAfter]), and otherwise for 50 to 100 milliseconds, and twice as long each
// further time, up to 2 seconds.
//
// If waiting would exceed the limits below or the deadline of the context, the call fails
// at once, with the error of the last attempt.
//
// [Client.Live], [Client.Ready], [Client.ModelReady] and [Client.Stream] do not retry.
//
// An error without RetryAfter may come after the model ran: from a connection that broke, or
// as Overloaded over gRPC, if the answer was not read in time. So a request that is retried
// may have run before. That does not matter for most models. After such an error the client
// does not retry requests with the parameter "sequence_id", whose models keep state, nor
// [Client.Load] and [Client.Unload], for which Unavailable often means that the server does
// not allow them.
type Retry struct {
	// Budget is the longest time from the first attempt to the last. Zero means no limit
	// if Max is set, and no retries otherwise.
	Budget time.Duration

	// Max is the most retries of a call. Zero means no limit if Budget is set, and no
	// retries otherwise.
	Max int
}

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 2 * time.Second
)

// An attempt is a call that failed, as far as [Retry.next] needs to know.
type attempt struct {
	err      *Error // nil if the error is another
	retries  int    // before this attempt
	began    time.Time
	deadline time.Time // of the context; zero if there is none
	stateful bool      // the call must not run twice, see [Retry]
	chance   float64   // for jitter, at least 0 and less than 1
}

// next decides whether to send a call again that failed at now, and after how long.
func (r Retry) next(a attempt, now time.Time) (wait time.Duration, again bool) {
	switch {
	case r.Budget <= 0 && r.Max <= 0, r.Max > 0 && a.retries >= r.Max:
		return 0, false
	case a.err == nil || a.err.Code != Overloaded && a.err.Code != Unavailable:
		return 0, false
	case a.stateful && a.err.RetryAfter <= 0:
		return 0, false
	}
	wait = a.err.RetryAfter
	if wait <= 0 {
		wait = backoffAfter(a.retries, a.chance)
	}
	at := now.Add(wait)
	switch {
	case r.Budget > 0 && at.Sub(a.began) > r.Budget:
		return 0, false
	case !a.deadline.IsZero() && !at.Before(a.deadline):
		return 0, false
	}
	return wait, true
}

// backoffAfter returns the time before a retry that the server has said nothing about: between
// half of an interval and all of it, so that clients that failed together do not come back
// together.
func backoffAfter(retries int, chance float64) time.Duration {
	const doublings = 5 // reach maxBackoff
	interval := min(firstBackoff<<min(retries, doublings), maxBackoff)
	return interval/2 + time.Duration(chance*float64(interval/2))
}
