package python

import "time"

// A backoff decides how long to wait before a dead worker is restarted. It is
// deterministic: the time and the random number are arguments.
//
// The first death is followed by an immediate restart. The delay then doubles with each
// death in a row. It is limited to half a second if the worker completed batches in
// between: probably some requests crash the model, and the others should be served. It is
// limited to half a minute if the worker completed none, because starting it takes CPU
// time from models that work.
type backoff struct {
	deaths     int // in a row, with less than quietPeriod between them
	unanswered int // the latest of those, without a completed batch
	last       time.Time
}

const (
	quietPeriod        = time.Minute
	firstDelay         = 100 * time.Millisecond
	maxDelay           = 500 * time.Millisecond
	maxUnansweredDelay = 30 * time.Second
	crashLoopDeaths    = 5 // deaths in a row without a completed batch
)

// recordDeath counts a death and returns how long to wait before the restart. answered is
// whether the worker had completed a batch. random, from 0 to 1, adds jitter, so that
// workers that died together do not restart at the same time.
func (c *backoff) recordDeath(now time.Time, answered bool, random float64) time.Duration {
	if now.Sub(c.last) >= quietPeriod && answered {
		c.deaths = 0
	}
	c.last = now
	c.deaths++
	c.unanswered++
	if answered {
		c.unanswered = 0
	}
	limit := maxDelay
	if c.unanswered > 1 {
		limit = maxUnansweredDelay
	}
	if c.deaths == 1 {
		return 0
	}
	delay := limit
	if doublings := c.deaths - 2; doublings < 10 {
		delay = min(limit, firstDelay<<doublings)
	}
	return delay/2 + time.Duration(random*float64(delay/2))
}

// crashLooping reports whether the worker dies whenever it is started.
func (c *backoff) crashLooping() bool { return c.unanswered >= crashLoopDeaths }
